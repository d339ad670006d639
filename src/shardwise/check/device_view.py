"""Plans as their programs see them where a chip has several devices.

One program runs on every device. Its memory, FLOPs and traffic are counted for a chip, all of its
devices together, as in the plan. The plan's side is evaluated again over devices: each of them
gathers the weights of a layer, so that a chip stores and receives more than it would as one device.
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
from shardwise.runtime.layout.chip_devices import device_layout
from shardwise.search.training import rank


def plan_over_devices(plan: Plan) -> tuple[Plan, str]:
    """The plan with operations and memory of chips whose devices run it, and a note about that.

    Times stay those of the plan. Where a chip is one device the plan is returned unchanged, with
    "".

    Raises:
        NotDivisible: the devices of a chip cannot divide its share.
    """
    case = rebuild(plan)
    split = device_layout(case.layout, case.model, case.system)
    per_chip = split.devices_per_chip
    if per_chip == 1:
        return plan, ""
    device = rank.evaluate(
        case.model, case.system, case.job, split.layout, case.cal, case.placement
    )
    device_operations = operations(device)
    memory = _chip_memory(plan.memory, device, per_chip)
    device_plan = replace(
        plan,
        operations=tuple(_chip_operation(op, per_chip) for op in device_operations),
        estimate=replace(plan.estimate, memory_bytes_per_chip=memory),
    )
    size = plan.strategy.mesh[split.role]
    note = (
        f"A chip is {per_chip} devices: {split.role} {size} of the plan is {split.role} "
        f"{size * per_chip} of the program. Numbers are totals of the {per_chip} devices (memory "
        f"{units.show_gib(memory.total)}; as one device {units.show_gib(plan.memory.total)})."
    )
    return device_plan, note


def chip_collectives(collectives: Iterable[Collective], per_chip: int) -> list[Collective]:
    """Collectives with the bytes that all devices of a chip receive."""
    return [replace(c, received_bytes=c.received_bytes * per_chip) for c in collectives]


def _chip_operation(op: Operation, per_chip: int) -> Operation:
    return replace(
        op,
        flops=op.flops * per_chip,
        computed_flops=op.computed_flops * per_chip,
        hbm_bytes=op.hbm_bytes * per_chip,
        network_bytes=op.network_bytes * per_chip,
        joined_bytes=op.joined_bytes * per_chip,
    )


def _chip_memory(planned: MemoryBytes, device: rank.Candidate, per_chip: int) -> MemoryBytes:
    memory = device.memory
    return replace(
        planned,
        weights=per_chip * float(memory.weights),
        gradients=per_chip * float(memory.gradients),
        optimizer=per_chip * float(memory.optimizer),
        activations=per_chip * float(memory.activations),
        other=per_chip * float(memory.other),
        total=per_chip * float(memory.total),
    )
