"""The operations of a decoding pass and of a prefill pass, at peak rates."""

from __future__ import annotations

from dataclasses import replace

from shardwise import units
from shardwise.estimate.items import PricedItem
from shardwise.estimate.serving.chip_rates import ACTIVATION_BYTES
from shardwise.estimate.serving.engine import Engine
from shardwise.estimate.serving.load import Load
from shardwise.estimate.serving.pass_time import pass_items
from shardwise.ops.forward import shards_tokens
from shardwise.ops.program import Transfer
from shardwise.plan.operations import collective_operation, local_operation
from shardwise.plan.schema.common import Operation


def operations(engine: Engine, load: Load, phase: str) -> tuple[Operation, ...]:
    """List all operations of a pass on the busiest chip; times cover all `count` occurrences.

    Args:
        engine: the engine at peak rates, so that the times add up to the roofline of the pass.
        load: the tokens of the pass and their contexts.
        phase: `decode` or `prefill`.
    """
    pass_operations: list[Operation] = []
    is_tpu = engine.rates.chip.kind == "tpu"
    n_tokens = round(engine.rates.job.fresh_tokens)
    in_ring = is_tpu and shards_tokens(engine.config, engine.layout.sizes, n_tokens)
    for item in pass_items(engine, load):
        item = replace(item, phase=phase)
        if item.role is None:
            pass_operations.append(local_operation(item))
            continue
        on_network = item
        if phase == "prefill" and in_ring:
            on_network = _of_sharded_tokens(engine, item)
        pass_operations += collective_operation(item, on_network, engine.mesh)
    return tuple(pass_operations)


def _of_sharded_tokens(engine: Engine, item: PricedItem) -> PricedItem:
    """The collective of a pass that shards its tokens over `tensor` between blocks.

    Permutes around the ring of chips gather the tokens of a block, in the dtype of its products,
    and sum its output in 16 bits; together they replace an AllReduce.
    """
    transfer = item.work
    if not isinstance(transfer, Transfer) or item.kind != "all_reduce" or item.role != "tensor":
        return item
    if transfer.term.module == "embed":
        return replace(item, kind="reduce_scatter")
    n_chips = engine.mesh["tensor"]
    job = engine.rates.job
    widest = max(units.bytes_per_element(dtype) for dtype in (job.weights, job.compute))
    gathered_bytes = 1.0 if widest < ACTIVATION_BYTES else ACTIVATION_BYTES
    mean_share = (gathered_bytes + ACTIVATION_BYTES) / (2 * ACTIVATION_BYTES)
    return replace(
        item,
        kind="permute",
        work=None,
        description=f"pieces of {transfer.move.before.name}",
        count=item.count * 2 * (n_chips - 1),
        joined_bytes=item.joined_bytes / n_chips * mean_share,
    )
