"""The operations of a planned step: its priced items at peak rates, as a plan lists them.

They are those of the busiest stage: the roofline behind the plan, item by item.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardwise.estimate.items import PricedItem
from shardwise.estimate.training.chip_rates import is_embedding_or_head
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.estimate.training.run_variant import FusionProfile
from shardwise.estimate.training.step_items import step_items
from shardwise.ops import collective
from shardwise.ops.einsum import shards
from shardwise.ops.layers import RESIDUAL, passing
from shardwise.ops.program import Matmul, Transfer
from shardwise.plan.schema.training import Operation
from shardwise.search.training.rank import Candidate

MOSTLY = 0.5  # a role of which less is waited for counts as hidden


def operations(chosen: Candidate) -> tuple[Operation, ...]:
    """Every operation of the step; times are of all `count` occurrences together."""
    listed: list[Operation] = []
    for item in step_items(chosen.peak, chosen.program):
        if item.role is None:
            listed.append(local_operation(item, _computed_flops(chosen.peak, item)))
        else:
            hidden = is_hidden(chosen, item.role)
            sent = _as_sent(chosen.peak, item)
            listed += collective_operation(item, sent, chosen.peak.mesh, hidden=hidden)
    return tuple(listed)


def is_hidden(chosen: Candidate, role: str) -> bool:
    """Whether the strategy runs most of a role's traffic beside other work."""
    exposed, traffic = chosen.time.comm_s.get(role, 0.0), chosen.time.traffic_s.get(role, 0.0)
    return bool(exposed < MOSTLY * traffic)


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


def _computed_flops(peak: PricedLayout, item: PricedItem) -> float:
    """FLOPs as kernels compute them, those of masked tiles among them."""
    if not isinstance(matmul := item.work, Matmul):
        return 0.0
    times = float(item.count) / (matmul.count * matmul.pieces)
    kernels = replace(peak.rates, fusion=FusionProfile())
    return times * float(kernels.computed_flops(matmul, peak.mesh))


def _as_sent(peak: PricedLayout, item: PricedItem) -> PricedItem:
    """A gather or a scattered sum that a ring of chips passes on: n - 1 times what a chip has."""
    if not isinstance(transfer := item.work, Transfer):
        return item
    layout, before = peak.layout, transfer.move.before
    if item.role == "context" and layout.context_kind == "ring":
        what = f"shards of {before.name}"
    elif layout.passes_on and _collective_matmul(peak, transfer):
        what = f"pieces of {before.name}"
    else:
        return item
    n = peak.mesh[transfer.role]
    return replace(
        item,
        kind="permute",
        work=None,
        what=what,
        count=item.count * (n - 1),
        joined_bytes=item.joined_bytes / n,
    )


def _collective_matmul(peak: PricedLayout, transfer: Transfer) -> bool:
    """Whether what a block reads or writes goes round the chips of `tensor` under its products."""
    if transfer.role != "tensor" or is_embedding_or_head(transfer):
        return False
    is_residual = transfer.move.before.base in RESIDUAL
    return is_residual and transfer.term.module in passing(peak.config.groups[transfer.group].layer)
