"""A plan evaluated over the devices of its chips, for chips that have several devices.

A plan counts chips; the compiled program runs on every device. To compare them, memory, FLOPs and
traffic of the program are added up over the devices of a chip, and the plan is evaluated again with
the devices as its smallest unit: each device gathers the weights of a layer by itself, so a chip
stores and receives more bytes than it would as a single device.
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
    """The plan with operations and memory as its chips' devices need them, and a note about it.

    The times of the plan do not change. If a chip is one device, the plan is returned unchanged,
    with an empty note.

    Raises:
        NotDivisible: a chip's part of the arrays cannot be divided among its devices.
    """
    case = rebuild(plan)
    device_split = device_layout(case.layout, case.model, case.system)
    n_devices = device_split.devices_per_chip
    if n_devices == 1:
        return plan, ""
    device = rank.evaluate(
        case.model, case.system, case.job, device_split.layout, case.cal, case.placement
    )
    device_operations = operations(device)
    memory = _chip_memory(plan.memory, device, n_devices)
    device_plan = replace(
        plan,
        operations=tuple(_chip_operation(op, n_devices) for op in device_operations),
        estimate=replace(plan.estimate, memory_bytes_per_chip=memory),
    )
    role = device_split.role
    size = plan.strategy.mesh[role]
    note = (
        f"A chip is {n_devices} devices: {role} {size} of the plan is {role} {size * n_devices} of "
        f"the program. Numbers are totals of the {n_devices} devices (memory "
        f"{units.show_gib(memory.total)}; as one device {units.show_gib(plan.memory.total)})."
    )
    return device_plan, note


def chip_collectives(collectives: Iterable[Collective], n_devices: int) -> list[Collective]:
    """Collectives with `received_bytes` per chip, the sum over its devices."""
    return [replace(c, received_bytes=c.received_bytes * n_devices) for c in collectives]


def _chip_operation(op: Operation, n_devices: int) -> Operation:
    return replace(
        op,
        flops=op.flops * n_devices,
        computed_flops=op.computed_flops * n_devices,
        hbm_bytes=op.hbm_bytes * n_devices,
        network_bytes=op.network_bytes * n_devices,
        joined_bytes=op.joined_bytes * n_devices,
    )


def _chip_memory(planned: MemoryBytes, device: rank.Candidate, n_devices: int) -> MemoryBytes:
    memory = device.memory
    return replace(
        planned,
        weights=n_devices * float(memory.weights),
        gradients=n_devices * float(memory.gradients),
        optimizer=n_devices * float(memory.optimizer),
        activations=n_devices * float(memory.activations),
        other=n_devices * float(memory.other),
        total=n_devices * float(memory.total),
    )
