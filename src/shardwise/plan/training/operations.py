"""The operations of a planned step: the roofline of the busiest stage, item by item."""

from __future__ import annotations

from dataclasses import replace

from shardwise.estimate.items import PricedItem
from shardwise.estimate.training.chip_rates import is_embedding_or_head
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.estimate.training.run_variant import FusionProfile
from shardwise.estimate.training.step_items import step_items
from shardwise.ops.layers import RESIDUAL, collective_matmul_blocks
from shardwise.ops.program import Matmul, Transfer
from shardwise.plan.operations import collective_operation, local_operation
from shardwise.plan.schema.common import Operation
from shardwise.search.training.rank import Candidate

HIDDEN = 0.5  # a role counts as hidden if less than this share of its traffic is exposed


def operations(chosen: Candidate) -> tuple[Operation, ...]:
    """All operations of the step; times cover all `count` occurrences."""
    listed: list[Operation] = []
    for item in step_items(chosen.peak, chosen.program):
        if item.role is None:
            listed.append(local_operation(item, _computed_flops(chosen.peak, item)))
        else:
            hidden = is_hidden(chosen, item.role)
            on_network = _on_network(chosen.peak, item)
            listed += collective_operation(item, on_network, chosen.peak.mesh, hidden=hidden)
    return tuple(listed)


def is_hidden(chosen: Candidate, role: str) -> bool:
    """Whether most of a role's traffic overlaps with other work."""
    exposed = chosen.time.comm_s.get(role, 0.0)
    traffic = chosen.time.traffic_s.get(role, 0.0)
    return bool(exposed < HIDDEN * traffic)


def _computed_flops(peak: PricedLayout, item: PricedItem) -> float:
    """FLOPs that kernels compute, including masked tiles."""
    if not isinstance(matmul := item.work, Matmul):
        return 0.0
    occurrences = float(item.count) / (matmul.count * matmul.n_chunks)
    unfused = replace(peak.rates, fusion=FusionProfile())
    return occurrences * float(unfused.computed_flops(matmul, peak.mesh))


def _on_network(peak: PricedLayout, item: PricedItem) -> PricedItem:
    """The collective that runs: a gather or reduce-scatter around a ring is n - 1 permutes."""
    if not isinstance(transfer := item.work, Transfer):
        return item
    layout = peak.layout
    array = transfer.move.before.name
    if item.role == "context" and layout.context_kind == "ring":
        contents = f"shards of {array}"
    elif layout.uses_collective_matmul and _collective_matmul(peak, transfer):
        contents = f"pieces of {array}"
    else:
        return item
    n_shards = peak.mesh[transfer.role]
    return replace(
        item,
        kind="permute",
        work=None,
        description=contents,
        count=item.count * (n_shards - 1),
        joined_bytes=item.joined_bytes / n_shards,
    )


def _collective_matmul(peak: PricedLayout, transfer: Transfer) -> bool:
    """Whether the residual of a block is sent around `tensor` as a collective matmul."""
    if transfer.role != "tensor" or is_embedding_or_head(transfer):
        return False
    is_residual = transfer.move.before.base in RESIDUAL
    layer = peak.config.groups[transfer.group].layer
    return is_residual and transfer.term.module in collective_matmul_blocks(layer)
