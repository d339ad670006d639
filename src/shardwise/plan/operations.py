"""Convert priced items, at peak rates, to the operations that a plan lists."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.estimate.items import PricedItem
from shardwise.ops import collective
from shardwise.ops.einsum import shards
from shardwise.plan.schema.common import Operation


def local_operation(item: PricedItem, computed_flops: float = 0.0) -> Operation:
    """Convert an item that runs on the chip, without communication."""
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
    item: PricedItem, on_network: PricedItem, mesh: dict[str, int], *, hidden: bool = False
) -> Iterator[Operation]:
    """Convert a collective. There is no operation if it runs over one chip or sends no bytes.

    Args:
        item: the item that has the time of the collective.
        on_network: the collective that the program runs: `item`, or the permutes that replace it.
        mesh: role -> size of its mesh axis.
        hidden: whether most of the communication overlaps with compute.
    """
    axes = tuple(axis for axis in on_network.axes if mesh[axis] > 1)
    joined_bytes = float(on_network.count * on_network.joined_bytes)
    if joined_bytes <= 0 or (item.axes and not axes):
        return
    received = collective.received_bytes(on_network.kind, joined_bytes, shards(axes, mesh))
    yield Operation(
        name=item.name,
        phase=item.phase,
        expression=on_network.expression(axes),
        count=max(1, round(float(on_network.count) * on_network.arrays)),
        flops=0.0,
        hbm_bytes=0.0,
        collective=on_network.kind,
        role=item.role,
        network_bytes=float(received),
        time_s=float(item.seconds),
        math_s=0.0,
        hbm_s=0.0,
        hidden=hidden,
        joined_bytes=joined_bytes,
        axes=axes,
    )
