"""Collectives of a planned step by role and kind, to compare with a compiled program."""

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
        axes: mesh axes over which any of them runs.
        each: the distinct sets of axes over which a single collective runs.
        n: number of collectives.
        joined_bytes: total size of the arrays that they join over their shards (V of the book); for
            permutes, the bytes that a chip sends.
        received_bytes: total bytes that one chip receives.
        names: names of the operations.
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

    All-reduces of scalars (the loss, the gradient norm) and of the softmax statistics of a sharded
    vocabulary are left out.

    Args:
        plan: from `shardwise.plan`, or loaded.
        step: for a serving plan: `decode` or `prefill`.

    Raises:
        BadInput: a serving plan without a step, or a training plan with one.
    """
    if isinstance(plan, Plan):
        if step is not None:
            raise BadInput(
                f'a training plan has a single step; step "{step}" applies to serving plans.'
            )
        return group_collectives(plan.operations)
    if step not in STEPS:
        raise BadInput(f'a serving plan has the steps {" and ".join(STEPS)}, not "{step}".')
    return group_collectives(op for op in plan.operations if op.phase == step)


def group_collectives(operations: Iterable[Operation]) -> tuple[PlannedCollective, ...]:
    """Collectives by role and kind, in their order, without transfers to host memory."""
    groups: dict[tuple[str, str], list[Operation]] = {}
    for op in operations:
        if op.collective and op.role and op.axes:
            groups.setdefault((op.role, op.collective), []).append(op)
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
        for (role, kind), ops in groups.items()
    )
