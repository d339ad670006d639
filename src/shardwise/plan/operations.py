"""Priced items as the operations of a plan, at peak rates."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.estimate.items import PricedItem
from shardwise.ops import collective
from shardwise.ops.einsum import shards
from shardwise.plan.schema.common import Operation


def local_operation(item: PricedItem, computed_flops: float = 0.0) -> Operation:
    """Work of the chip itself."""
    return Operation(
        name=item.name,
        phase=item.phase,
        expression=item.expression(()),
        count=max(1, round(float(item.count))),
        flops=float(item.flops),
        hbm_bytes=float(item.n_bytes),
        collective=None,
        role=None,
        network_bytes=0.0,
        time_s=float(item.seconds),
        math_s=float(item.math_s),
        hbm_s=float(item.memory_s),
        hidden=False,
        computed_flops=computed_flops,
    )


def collective_operation(
    item: PricedItem, sent: PricedItem, mesh: dict[str, int], *, hidden: bool = False
) -> Iterator[Operation]:
    """A collective; none over one chip, or where nothing is sent.

    Args:
        item: as it is priced.
        sent: the same as it travels.
    """
    axes = tuple(axis for axis in sent.axes if mesh[axis] > 1)
    joined = float(sent.count * sent.joined_bytes)
    if joined <= 0 or (item.axes and not axes):
        return
    yield Operation(
        name=item.name,
        phase=item.phase,
        expression=sent.expression(axes),
        count=max(1, round(float(sent.count) * sent.arrays)),
        flops=0.0,
        hbm_bytes=0.0,
        collective=sent.kind,
        role=item.role,
        network_bytes=float(collective.received_bytes(sent.kind, joined, shards(axes, mesh))),
        time_s=float(item.seconds),
        math_s=0.0,
        hbm_s=0.0,
        hidden=hidden,
        joined_bytes=joined,
        axes=axes,
    )
