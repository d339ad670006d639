"""The operations of a planned step: its priced items at peak rates, as a plan lists them.

They are those of the busiest stage: the roofline behind the plan, item by item.
"""

from __future__ import annotations

from dataclasses import replace

from shardwise.estimate.items import PricedItem
from shardwise.estimate.training.chip_rates import Kernels, is_end
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.estimate.training.step_items import step_items
from shardwise.ops.layers import RESIDUAL, passing
from shardwise.ops.program import Matmul, Transfer
from shardwise.plan.operations import collective_operation, local_operation
from shardwise.plan.schema.common import Operation
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


def _computed_flops(peak: PricedLayout, item: PricedItem) -> float:
    """FLOPs as kernels compute them, those of masked tiles among them."""
    if not isinstance(matmul := item.work, Matmul):
        return 0.0
    times = float(item.count) / (matmul.count * matmul.pieces)
    kernels = replace(peak.rates, kernels=Kernels())
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
    if transfer.role != "tensor" or is_end(transfer):
        return False
    is_residual = transfer.move.before.base in RESIDUAL
    return is_residual and transfer.term.module in passing(peak.config.groups[transfer.group].layer)
