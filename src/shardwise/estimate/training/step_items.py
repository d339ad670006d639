"""All operations of a training step on a chip of the fullest stage, as priced items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from shardwise.estimate.items import PricedItem
from shardwise.estimate.training.extra_traffic import between_stages, extra_traffic
from shardwise.estimate.training.gradient_sync import sync_items, update
from shardwise.estimate.training.matmul_kinds import is_embedding_or_head
from shardwise.estimate.training.microbatch import (
    compute,
    derived_traffic,
    recomputed_parts,
)
from shardwise.estimate.training.offload import offload, offload_share
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.estimate.training.token_prediction import mtp_items, traffic_share
from shardwise.ops.program import Step


def step_items(priced: PricedLayout, program: Step) -> Iterator[PricedItem]:
    """Priced items of one step of one layout on a chip of the fullest stage.

    Their seconds add up to the compute, traffic and update times that `step_time` returns, and
    without a pipeline to its head: in a pipeline, the stage with the head may have fewer layers.
    """
    m = priced.layout.n_microbatches
    parts = recomputed_parts(priced.layout)
    layers_share = float(priced.stage.share)
    collectives_share = float(traffic_share(priced))

    def in_step(items: Iterable[PricedItem]) -> Iterator[PricedItem]:
        """Items of one microbatch in all layers -> the same in a step on one stage."""
        for item in items:
            n = m * (collectives_share if item.role else layers_share)
            if is_embedding_or_head(item.work):
                n = m
            if item.phase == "remat" and item.role is None:
                n = n * priced.remat_share
            yield item.times(n)

    def recomputed(items: Iterable[PricedItem]) -> Iterator[PricedItem]:
        """Items of a forward pass -> those that remat runs a second time in a step."""
        for item in items:
            if item.part and item.part in parts:
                remat = replace(item, phase="remat")
                share = collectives_share if item.role else layers_share
                yield remat.times(share * m * priced.remat_share)

    layer_items: dict[str, list[PricedItem]] = {}
    for item in compute(priced, program):
        local_items = [*in_step([item]), *recomputed([item])]
        if is_embedding_or_head(item.work):
            local_items = [local.times(priced.head_passes(item.work)) for local in local_items]
        else:
            for local in local_items:
                layer_items.setdefault(local.phase, []).append(local)
        yield from local_items
    yield from mtp_items(priced, layer_items)
    for item in derived_traffic(priced, program):
        yield from in_step([item])
        yield from recomputed([item])
    extra = [*extra_traffic(priced)]
    yield from in_step(extra)
    yield from recomputed(extra)
    for item in between_stages(priced):
        yield item.times(m)
    for item in offload(priced, program):
        yield item.times(m * collectives_share * offload_share(priced))
    yield from sync_items(priced)
    yield update(priced)
