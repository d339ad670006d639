"""Merges of the outputs of ring attention's steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardwise.arrays import Num
from shardwise.estimate.elementwise import BACKWARD_ELEMENTWISE
from shardwise.estimate.items import PricedItem
from shardwise.estimate.training.priced_layout import PricedLayout

# Bytes per element that merging one step of ring attention reads and writes, with sums in fp32, and
# the share of queries that a step concerns on average (Transformer Engine, `context_parallel.py`).
MERGE_BYTES = 10.0
MERGED_QUERIES = 0.75
RING_MERGE = "attn.merge"  # name of the items that merge a ring's steps


def ring_merges(priced: PricedLayout) -> Iterator[PricedItem]:
    """Items for merging the outputs of a ring's steps in one microbatch.

    Each step after the first reads the output of its keys and values, and reads and writes the
    merged one. Under a causal mask half of the steps concern half of the queries.
    """
    layout = priced.layout
    rates = priced.rates
    if layout.context_kind != "ring" or rates.fusion.ideal or rates.measured:
        return
    n_bytes = _ring_merge_bytes(priced)
    ratios = {"forward": 1.0, "backward": BACKWARD_ELEMENTWISE}
    if layout.full_remat:
        ratios["remat"] = 1.0
    for phase, ratio in ratios.items():
        yield replace(rates.elementwise(phase, ratio * n_bytes), name=RING_MERGE)


def _ring_merge_bytes(priced: PricedLayout) -> Num:
    """Bytes to merge the outputs of a ring's steps in one microbatch's forward pass."""
    context = priced.layout.sizes["context"]
    tokens = priced.layout.micro_batch * priced.job.seq / context
    total: Num = 0.0
    for attention, n_layers in priced.config.attentions:
        width = attention.n_heads * attention.d_head_v / priced.layout.sizes["tensor"]
        total = total + n_layers * MERGED_QUERIES * (context - 1) * tokens * width
    return total * MERGE_BYTES
