"""Layouts for chips that JAX sees as several devices.

A plan counts chips. If each chip has two devices (TPU v2, v3, 7x), the program's mesh has twice as
many members along one role, and the two devices of a chip are neighbors along that role.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwise.errors import NotDivisible
from shardwise.hardware import System
from shardwise.models import ModelConfig
from shardwise.search.training.runtime_limits import device_counts, devices_per_chip
from shardwise.strategy.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLayout:
    """A layout whose mesh counts devices instead of chips.

    Args:
        layout: the layout; the sizes of its mesh are numbers of devices.
        role: mesh role along which the devices of a chip are neighbors; "" if a chip is one device.
        devices_per_chip: number of devices that JAX shows for one chip.
    """

    layout: Layout
    role: str = ""
    devices_per_chip: int = 1


def device_layout(layout: Layout, model: ModelConfig, system: System) -> DeviceLayout:
    """Convert the layout of a plan from chips to devices.

    The devices of a chip share its sequences. They are members of `fsdp` if the plan shards weights
    over `fsdp` (each device then holds a shard of the chip's weights), otherwise of `data`. If the
    number of sequences does not divide, the devices share the heads along `tensor`: each of two
    devices has half of the heads, and half of the residual's tokens.

    Raises:
        NotDivisible: neither the sequences nor the heads of a chip divide by its devices.
    """
    n = devices_per_chip(system.chip)
    if n == 1:
        return DeviceLayout(layout=layout)
    split_layout = _split_batch(layout, n)
    if split_layout is not None:
        n_shards = layout.mesh.fsdp * layout.mesh.context * n
        role = "fsdp" if layout.mesh.fsdp > 1 and model.d_model % n_shards == 0 else "data"
        return DeviceLayout(layout=_multiply(split_layout, role, n), role=role, devices_per_chip=n)
    if not device_counts(model, layout, system.chip).divide:
        raise NotDivisible(
            f"{system.chip.name} has {n} devices per chip, but neither the {layout.micro_batch} x "
            f"{layout.n_microbatches} sequences of a chip nor its 1/{layout.mesh.tensor} of the "
            f"heads divide by {n}. Give each chip {n} sequences, or take a smaller tensor."
        )
    tensor_layout = replace(_multiply(layout, "tensor", n), sequence_parallel=True)
    return DeviceLayout(layout=tensor_layout, role="tensor", devices_per_chip=n)


def _split_batch(layout: Layout, n: int) -> Layout | None:
    """Split a chip's sequences over n devices.

    The microbatches become smaller; if n does not divide them, there are fewer of them, unless a
    pipeline depends on their number. None if n divides neither.
    """
    if layout.micro_batch % n == 0:
        return replace(layout, micro_batch=layout.micro_batch // n)
    if layout.n_microbatches % n == 0 and layout.mesh.pipe == 1:
        return replace(layout, n_microbatches=layout.n_microbatches // n)
    return None


def _multiply(layout: Layout, role: str, n: int) -> Layout:
    """The layout with n times as many members along `role`."""
    sizes = {role: getattr(layout.mesh, role) * n}
    return replace(layout, mesh=replace(layout.mesh, **sizes))
