"""Chips that a program sees as several devices: how a chip's share is dealt out over them.

A plan speaks of chips. Where each has two devices (TPU v2, v3, 7x), one role of its mesh has twice
as many members in the program, and the two devices of a chip are neighbours along it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwise.errors import NotDivisible
from shardwise.hardware import System
from shardwise.models import ModelConfig
from shardwise.search.model_sizes import kv_heads_divide, tensor_widths
from shardwise.strategy.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealt:
    """A layout over devices.

    Args:
        layout: its mesh counts devices, not chips.
        role: of the mesh, along which the devices of a chip lie; "" where a chip is one device.
        per_chip: devices of a chip.
    """

    layout: Layout
    role: str = ""
    per_chip: int = 1


def per_chip(system: System) -> int:
    """Devices that a program sees of one chip."""
    return (system.chip.n_devices or 1) if system.chip.ici else 1


def over_devices(layout: Layout, model: ModelConfig, system: System) -> Dealt:
    """The layout of a plan over devices.

    A chip that computes several sequences in a step deals them out over its devices: along `fsdp`
    where the plan shards weights so, as each device then holds its part of the chip's weights, else
    along `data`. One sequence is computed by both, each with its heads and half of the residual's
    tokens: along `tensor`.

    Raises:
        NotDivisible: neither the sequences nor the heads of a chip divide.
    """
    n = per_chip(system)
    if n == 1:
        return Dealt(layout=layout)
    batch = _cut_batch(layout, n)
    if batch is not None:
        parts = layout.mesh.fsdp * layout.mesh.context * n
        role = "fsdp" if layout.mesh.fsdp > 1 and model.d_model % parts == 0 else "data"
        return Dealt(layout=_times(batch, role, n), role=role, per_chip=n)
    tensor = layout.mesh.tensor * n
    bad = [f"{k} {v:,}" for k, v in tensor_widths(model).items() if v % tensor]
    if bad or not kv_heads_divide(model, tensor):
        raise NotDivisible(
            f"{system.chip.name} has {n} devices a chip, and a chip has {layout.micro_batch} x "
            f"{layout.n_microbatches} sequences and 1/{layout.mesh.tensor} of the heads: neither "
            f"is dealt out over {n}. Give each chip {n} sequences, or take a smaller tensor."
        )
    cut = _times(layout, "tensor", n)
    return Dealt(layout=replace(cut, sequence_parallel=True), role="tensor", per_chip=n)


def _cut_batch(layout: Layout, n: int) -> Layout | None:
    """The layout with what one of n devices computes of a chip's sequences: smaller microbatches,
    or fewer of them where no pipeline counts on their number."""
    if layout.micro_batch % n == 0:
        return replace(layout, micro_batch=layout.micro_batch // n)
    if layout.n_microbatches % n == 0 and layout.mesh.pipe == 1:
        return replace(layout, n_microbatches=layout.n_microbatches // n)
    return None


def _times(layout: Layout, role: str, n: int) -> Layout:
    mesh = layout.mesh
    return replace(layout, mesh=replace(mesh, **{role: getattr(mesh, role) * n}))
