"""A plan as its program sees it, where a chip is several devices.

The program is one for every device. What it holds, computes and sends is counted for a chip, all of
its devices together, as in the plan. The plan's side is worked out again over devices: each of them
gathers the weights of a layer for itself, so that a chip holds and takes in more than as one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from shardwise import units
from shardwise.check.hlo.collectives import Collective
from shardwise.plan.schema.common import MemoryBytes, Operation
from shardwise.plan.schema.training import Plan
from shardwise.plan.training.operations import operations
from shardwise.plan.training.rebuild import rebuild
from shardwise.runtime.layout.chip_devices import over_devices
from shardwise.search.training import rank


def as_devices(plan: Plan) -> tuple[Plan, str]:
    """The plan with operations and memory of chips whose devices run it, and a sentence about it.

    Times stay those of the plan. Where a chip is one device it is the plan itself, and "".

    Raises:
        NotDivisible: a chip's share that its devices cannot share.
    """
    case = rebuild(plan)
    dealt = over_devices(case.layout, case.model, case.system)
    n = dealt.per_chip
    if n == 1:
        return plan, ""
    given = (case.model, case.system, case.job, dealt.layout, case.cal, case.placement)
    device = rank.evaluate(*given)
    works = operations(device)
    found = replace(
        plan,
        operations=tuple(_times(op, n) for op in works),
        estimate=replace(plan.estimate, memory_bytes_per_chip=_all(plan.memory, device, n)),
    )
    return found, _told(plan, found, dealt.role, n)


def of_chip(found: Iterable[Collective], per_chip: int) -> list[Collective]:
    """Collectives with what all devices of a chip take in."""
    return [replace(one, received_bytes=one.received_bytes * per_chip) for one in found]


def _times(op: Operation, n: int) -> Operation:
    return replace(
        op,
        flops=op.flops * n,
        computed_flops=op.computed_flops * n,
        hbm_bytes=op.hbm_bytes * n,
        network_bytes=op.network_bytes * n,
        joined_bytes=op.joined_bytes * n,
    )


def _all(planned: MemoryBytes, device: rank.Candidate, n: int) -> MemoryBytes:
    held = device.memory
    return replace(
        planned,
        weights=n * float(held.weights),
        gradients=n * float(held.gradients),
        optimizer=n * float(held.optimizer),
        activations=n * float(held.activations),
        other=n * float(held.other),
        total=n * float(held.total),
    )


def _told(plan: Plan, found: Plan, role: str, n: int) -> str:
    size = plan.strategy.mesh[role]
    before, after = (units.show_gib(one.memory.total) for one in (plan, found))
    return (
        f"A chip is {n} devices: {role} {size} of the plan is {role} {size * n} of the program. "
        f"Numbers are those of its {n} devices together (memory {after}, as one chip {before})."
    )
