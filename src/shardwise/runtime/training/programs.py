"""Build the training step of a plan, for `check` to compile and for the trainer to run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from shardwise.errors import BadInput, raise_all
from shardwise.models import ModelConfig
from shardwise.plan.schema.json_io import decode
from shardwise.plan.schema.training import Plan
from shardwise.plan.training.limit_text import limit_text
from shardwise.plan.training.rebuild import rebuild
from shardwise.runtime.layout.chip_devices import device_layout
from shardwise.runtime.layout.mesh import arrange, role_mesh
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.program import Program
from shardwise.runtime.training import host_offload
from shardwise.runtime.training.partitioned import PartitionedStep, unsupported_partitioned
from shardwise.runtime.training.step import MakeOptimizer, TrainStep
from shardwise.search.training.problem import Case
from shardwise.search.training.runtime_limits import program_limits
from shardwise.strategy.layout import Layout, rules_of

# Capacity factor of experts in a plan: no expert gets more tokens than under balanced routing.
PLANNED_CAPACITY = 1.0


def train_step(devices: np.ndarray[Any, Any], plan: str, collectives: str = "plan") -> Program:
    """Build the training step of a plan, as a program for the compiler.

    Args:
        devices: all devices of the machine, with the dims that `mesh.arrange` takes.
        collectives: who chooses the collectives, one of `program.COLLECTIVES`.
    """
    decoded = decode(plan)
    if not isinstance(decoded, Plan):
        raise TypeError("a serving plan has no training step")
    case = rebuild(decoded)
    step = step_of(case, devices, capacity=PLANNED_CAPACITY, collectives=collectives)
    return Program(
        name="train step",
        fn=step.function(),
        args=step.shapes(),
        mesh=step.table.mesh.jax_mesh,
        donate=(0,),
    )


def step_of(
    case: Case,
    devices: np.ndarray[Any, Any],
    *,
    capacity: float | None = None,
    make_optimizer: MakeOptimizer | None = None,
    collectives: str = "plan",
) -> TrainStep:
    """Build the training step of a layout, with the devices where the placement puts its chips.

    Args:
        devices: all devices of the machine, with the dims that `mesh.arrange` takes.
        capacity: capacity factor of experts, see `TrainStep`.
        make_optimizer: function that makes the optimizer; None for the plan's optimizer.
        collectives: who chooses the collectives, one of `program.COLLECTIVES`.

    Raises:
        BadInput: the runtime does not support the plan; lists all reasons.
    """
    raise_all(BadInput, unsupported(case))
    on_devices = device_layout(case.layout, case.model, case.system)
    layout = on_devices.layout
    problems = []
    step_class = TrainStep
    if collectives == "compiler":
        step_class = PartitionedStep
        problems += unsupported_partitioned(case.model, layout, case.job)
    if layout.offload and not host_offload.is_available(devices):
        kind = devices.flat[0].device_kind
        problems.append(
            f"offload {', '.join(layout.offload)}: programs of {kind} have no access to host "
            f"memory ({host_offload.KIND} in JAX). Plan without --offload."
        )
    raise_all(BadInput, problems)
    if case.system.chip.ici is None:
        devices = devices.reshape(*devices.shape[:2], 1)
    arranged = arrange(case.placement, case.layout.sizes, devices, on_devices.role)
    axis_sizes = tensor_axes(case.model, layout) | fsdp_axes(case, layout)
    mesh = role_mesh(layout.sizes, arranged, factored_roles(layout), axis_sizes)
    table = Table(rules=rules_of(layout), mesh=mesh)
    return step_class(
        config=case.model,
        job=case.job,
        layout=layout,
        table=table,
        capacity=capacity,
        make_optimizer=make_optimizer,
    )


def unsupported(case: Case) -> list[str]:
    """List what the runtime makes no program of, as messages."""
    limits = program_limits(case.model, case.job, case.layout, case.system.chip)
    return [limit_text(limit) for limit in limits]


def factored_roles(layout: Layout) -> tuple[str, ...]:
    """Roles that become one mesh axis for each prime factor of their size.

    These are the roles over which ZeRO 1 and 2 partition updates: their whole size may divide no
    dim of a weight, while some of its prime factors do.
    """
    if layout.zero in (1, 2):
        return ("data", "context", "expert")
    return ()


def tensor_axes(model: ModelConfig, layout: Layout) -> dict[str, tuple[int, ...]]:
    """Sizes of the mesh axes of `tensor`, if it has more chips than there are KV heads.

    The first axes shard the KV heads; the chips along the last axis have copies of the same heads.
    """
    tensor = layout.mesh.tensor
    head_counts = {a.n_kv_heads for a, _ in model.attentions if not a.mla}
    sizes: list[int] = []
    for n_heads in sorted({n for n in head_counts if n < tensor} | {tensor}):
        size = n_heads // math.prod(sizes)
        if size > 1:
            sizes.append(size)
    if len(sizes) < 2:
        return {}
    return {"tensor": tuple(sizes)}


def fsdp_axes(case: Case, layout: Layout) -> dict[str, tuple[int, ...]]:
    """Sizes of the mesh axes of `fsdp`, one for each ring, if `fsdp` spans all chips of a slice.

    `sharding.scatter` then reduces along one ring after the other, except on SparseCores.
    """
    span = dict(case.placement.spans).get("fsdp")
    if not span:
        return {}
    sizes = [ring.size for ring in span.rings if ring.size > 1]
    n_chips = math.prod(sizes)
    if len(sizes) < 2 or n_chips * case.system.n_slices != case.system.n_chips:
        return {}
    sizes.reverse()
    fsdp = layout.sizes["fsdp"]
    if fsdp > n_chips:
        sizes.append(fsdp // n_chips)
    return {"fsdp": tuple(sizes)}
