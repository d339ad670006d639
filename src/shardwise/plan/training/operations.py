"""The operations of a planned step, at peak rates: those of a stage full of layers, and both ends.

Where the layers do not divide evenly, no stage has all of them: the stage with the head has fewer
layers. `busiest_stage` is the sum over those that one stage has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from shardwise.arrays import Num
from shardwise.estimate.items import PricedItem
from shardwise.estimate.training.chip_rates import Rates
from shardwise.estimate.training.matmul_kinds import EMBEDDING_AND_HEAD, is_embedding_or_head
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.estimate.training.run_variant import FusionProfile
from shardwise.estimate.training.step import ends_work
from shardwise.estimate.training.step_items import step_items
from shardwise.estimate.training.token_prediction import PART as MTP_PART
from shardwise.ops.layers import RESIDUAL, collective_matmul_blocks
from shardwise.ops.program import Matmul, Transfer
from shardwise.plan.operations import collective_operation, local_operation
from shardwise.plan.schema.common import Operation
from shardwise.search.training.rank import Candidate
from shardwise.strategy.layout import Layout

MAX_EXPOSED_SHARE = 0.5  # of the traffic of a role that counts as hidden


def operations(chosen: Candidate) -> tuple[Operation, ...]:
    """List all operations of a step; the time of each covers all its `count` occurrences."""
    step_operations: list[Operation] = []
    unfused = replace(chosen.peak.rates, fusion=FusionProfile())
    for item in step_items(chosen.peak, chosen.program):
        if item.role is None:
            local = local_operation(item, _computed_flops(unfused, chosen.peak.mesh, item))
            if item.work and is_embedding_or_head(item.work):
                is_embedding = item.work.term.module == "embed"
                local = replace(local, end="embed" if is_embedding else "unembed")
            elif item.part == MTP_PART:
                local = replace(local, end="unembed")
            step_operations.append(local)
        else:
            hidden = is_hidden(chosen, item.role)
            on_network = _network_collective(chosen.peak, item)
            mesh = chosen.peak.mesh
            step_operations += collective_operation(item, on_network, mesh, hidden=hidden)
    return tuple(step_operations)


def busiest_stage(
    operations: Iterable[Operation],
    n_layers: int,
    layout: Layout,
    amount: Callable[[Operation], float],
) -> float:
    """Sum an amount over the local operations of the pipeline stage that has most of it.

    Args:
        operations: of a step, as `operations` lists them.
        n_layers: layers of the model.
        amount: operation -> seconds, FLOPs or bytes.
    """
    sums = {"layers": 0.0, "update": 0.0, **dict.fromkeys(EMBEDDING_AND_HEAD, 0.0)}
    for op in operations:
        if op.collective:
            continue
        part = op.end or ("update" if op.phase == "update" else "layers")
        sums[part] += amount(op)
    m = layout.n_microbatches
    ends = ends_work(n_layers, layout, sums["layers"] / m, sums["embed"] / m, sums["unembed"] / m)
    return sums["layers"] + float(ends) + sums["update"]


def is_hidden(chosen: Candidate, role: str) -> bool:
    """Whether most of a role's traffic overlaps with compute."""
    exposed = chosen.time.comm_s.get(role, 0.0)
    traffic = chosen.time.traffic_s.get(role, 0.0)
    return bool(exposed < MAX_EXPOSED_SHARE * traffic)


def _computed_flops(rates: Rates, mesh: Mapping[str, Num], item: PricedItem) -> float:
    """FLOPs that kernels execute for a matmul, including masked tiles; 0 for other items."""
    if not isinstance(matmul := item.work, Matmul):
        return 0.0
    occurrences = float(item.count) / (matmul.count * matmul.n_chunks)
    return occurrences * float(rates.computed_flops(matmul, mesh))


def _network_collective(peak: PricedLayout, item: PricedItem) -> PricedItem:
    """The collective that the program runs for an item.

    Ring attention and collective matmuls replace a gather or reduce-scatter by n - 1 permutes.
    """
    if not isinstance(transfer := item.work, Transfer):
        return item
    layout = peak.layout
    array = transfer.move.before.name
    if item.role == "context" and layout.context_kind == "ring":
        contents = f"shards of {array}"
    elif layout.uses_collective_matmul and _is_collective_matmul(peak, transfer):
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


def _is_collective_matmul(peak: PricedLayout, transfer: Transfer) -> bool:
    """Whether a transfer of a block's residual over `tensor` is part of a collective matmul."""
    if transfer.role != "tensor" or is_embedding_or_head(transfer):
        return False
    is_residual = transfer.move.before.base in RESIDUAL
    layer = peak.config.groups[transfer.group].layer
    return is_residual and transfer.term.module in collective_matmul_blocks(layer)
