"""What a pass of an engine sends beside the sharding algebra: for attention, to experts, to the
next stage. Book §7."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shardwise.arrays import Num, ceil_div, minimum, where
from shardwise.estimate.items import PricedItem
from shardwise.estimate.serving.load import Load
from shardwise.estimate.serving.priced_engine import PricedEngine
from shardwise.formulas.experts import places_hit
from shardwise.models import Attention, Moe
from shardwise.models.count import kv_elements
from shardwise.strategy.serving_layout import ServeForm

ROUNDED_BYTES = 2.0  # queries, outputs, prompts' keys and the residual on their way between chips


def batch_shards(form: ServeForm, sizes: Mapping[str, Num]) -> Num:
    """Ways that the sequences of an engine are split."""
    return sizes["expert"] * (sizes["fsdp"] if form.weights == "gathered" else 1)


def rows_here(form: ServeForm, sizes: Mapping[str, Num], rows: Num) -> Num:
    """Tokens of a pass on the fullest chip."""
    return ceil_div(rows, batch_shards(form, sizes) * sizes["context"])


def extra_traffic(engine: PricedEngine, load: Load) -> Iterator[PricedItem]:
    """Collectives of one pass through all layers; `count` may be 0."""
    config, form, sizes = engine.config, engine.layout, engine.mesh
    for a, n in config.attentions:
        yield from _attention(engine, a, n, load)
    yield from _to_experts(engine, load)
    local = rows_here(form, sizes, load.rows) * config.d_model * ROUNDED_BYTES
    yield _collective(
        engine,
        "stage.send",
        "permute",
        "pipe",
        "activations to the next stage, each chip its part",
        sizes["pipe"] - 1,
        local / sizes["tensor"],
    )


def _attention(engine: PricedEngine, a: Attention, n: int, load: Load) -> Iterator[PricedItem]:
    """Of `n` layers: queries to the chips that hold their caches, results back; for parts of a
    sequence the keys of prompts, and results of generated tokens."""
    form, sizes = engine.layout, engine.mesh
    heads = 1 if a.mla else a.n_kv_heads
    rows = load.decode * load.drafted / batch_shards(form, sizes)
    if form.kv != "copied":
        n_bytes = rows * a.n_heads * (a.d_head + a.d_head_v) / 2 * ROUNDED_BYTES
        batch = form.kv == "batch"
        kind, times = ("all_to_all", 2 * n) if batch else ("all_reduce", n)
        what = "queries to their caches, results back" if batch else "results over the sequence"
        count = where(sizes["tensor"] > heads, times, 0)
        yield _collective(engine, "attn.exchange", kind, "tensor", what, count, n_bytes)
    fresh = load.prefill / batch_shards(form, sizes) * kv_elements(a) * ROUNDED_BYTES
    split = minimum(sizes["tensor"], heads)
    count = where(load.prefill > 0, n, 0)
    yield _collective(
        engine, "attn.keys", "all_gather", "context", "keys of prompts", count, fresh / split
    )
    joined = rows * a.n_heads * a.d_head_v * ROUNDED_BYTES / minimum(sizes["tensor"], a.n_heads)
    count = where(load.decode > 0, n, 0)
    yield _collective(
        engine, "attn.join", "all_reduce", "context", "results over the sequence", count, joined
    )


def _to_experts(engine: PricedEngine, load: Load) -> Iterator[PricedItem]:
    """Tokens to the experts of other chips and back: two exchanges in a routed layer.

    A token goes once to each chip that has experts of it; along `tensor` every chip has it.
    """
    config, form, sizes = engine.config, engine.layout, engine.mesh
    degree = sizes["expert"]
    for group in config.groups:
        if isinstance(moe := group.layer.ffn, Moe):
            here = rows_here(form, sizes, load.rows) * (moe.d_latent or config.d_model)
            places = places_hit(degree, moe.experts_per_token)
            n_bytes = here * ROUNDED_BYTES * places * degree
            for name, what in (
                ("moe.dispatch", "tokens to their experts"),
                ("moe.combine", "tokens back"),
            ):
                yield _collective(engine, name, "all_to_all", "expert", what, group.count, n_bytes)


def _collective(
    engine: PricedEngine, name: str, kind: str, axis: str, what: str, count: Num, n_bytes: Num
) -> PricedItem:
    return engine.collective(
        name=name,
        role=axis,
        kind=kind,
        axes=(axis,),
        what=what,
        count=count,
        joined_bytes=n_bytes,
    )
