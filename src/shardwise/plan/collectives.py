"""Collectives of a planned step, grouped by role and kind to compare with a compiled program."""

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
    """All collectives of one role and kind in a step, on a chip of the busiest pipeline stage.

    Args:
        axes: mesh axes that any of these collectives runs over.
        each: the sets of axes that single collectives run over, without repetitions.
        n: number of collectives.
        joined_bytes: total bytes of the whole arrays that they move, all shards together (V of the
            book); for permutes, the bytes that the chip sends.
        received_bytes: total bytes that the chip receives.
        names: names of the planned operations.
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
    """The collectives of a planned step, by role and kind.

    Small all-reduces are left out: those of scalars (the loss, the gradient norm), and those of
    softmax statistics if the vocabulary is sharded.

    Args:
        plan: from `shardwise.plan`, or loaded from a file.
        step: `decode` or `prefill` of a serving plan; None for a training plan.

    Raises:
        BadInput: `step` is missing for a serving plan, or given for a training plan.
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
    """Group collectives by role and kind, in order; transfers to host memory are left out."""
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
