"""What a plan says that a compiled program must send: its collectives by role and kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shardwise.errors import BadInput
from shardwise.plan.schema.common import Operation
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.schema.training import Plan

STEPS = ("decode", "prefill")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCollective:
    """All collectives of one kind for one role, in one step on a chip of the busiest stage.

    Args:
        axes: of the mesh, over which any of them runs.
        each: the axes over which one of them runs, once for all that run over the same.
        n: how many there are.
        joined_bytes: of all: the arrays summed over the shards that they join (V of the book); of a
            permute, what a chip sends.
        received_bytes: of all: what one chip takes in.
        names: of the operations.
    """

    role: str
    kind: str
    axes: tuple[str, ...]
    each: tuple[frozenset[str], ...]
    n: int
    joined_bytes: float
    received_bytes: float
    names: tuple[str, ...]


def planned_collectives(
    plan: Plan | ServingPlan, step: str | None = None
) -> tuple[PlannedCollective, ...]:
    """The collectives of a planned step.

    Sums of single numbers (the loss, the norm of gradients) and of the statistics of a softmax over
    a split vocabulary are not among them.

    Args:
        step: of a serving plan: `decode` or `prefill`.

    Raises:
        BadInput: a serving plan without a step, or a training plan with one.
    """
    if isinstance(plan, Plan):
        if step is not None:
            raise BadInput(f'a training plan has one step, and none is called "{step}".')
        return grouped(plan.operations)
    if step not in STEPS:
        raise BadInput(f'a serving plan has the steps {" and ".join(STEPS)}, not "{step}".')
    return grouped(op for op in plan.operations if op.phase == step)


def grouped(works: Iterable[Operation]) -> tuple[PlannedCollective, ...]:
    """Operations by role and kind, in their order; those of host memory run on no mesh."""
    found: dict[tuple[str, str], list[Operation]] = {}
    for op in works:
        if op.collective and op.role and op.axes:
            found.setdefault((op.role, op.collective), []).append(op)
    return tuple(
        PlannedCollective(
            role=role,
            kind=kind,
            axes=tuple(dict.fromkeys(axis for op in ops for axis in op.axes)),
            each=tuple(dict.fromkeys(frozenset(op.axes) for op in ops)),
            n=sum(op.count for op in ops),
            joined_bytes=sum(op.joined_bytes for op in ops),
            received_bytes=sum(op.network_bytes for op in ops),
            names=tuple(dict.fromkeys(op.name for op in ops)),
        )
        for (role, kind), ops in found.items()
    )
