"""Collectives of a forward pass that the sharding algebra does not derive. Book §7.

These are the exchanges of attention, dispatch and combine of experts, and sends between pipeline
stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shardwise.arrays import Num, ceil_div, minimum, where
from shardwise.estimate.items import PricedItem
from shardwise.estimate.serving.load import Load
from shardwise.estimate.serving.priced_engine import PricedEngine
from shardwise.formulas.experts import places_hit
from shardwise.models import Attention
from shardwise.models.count import kv_elements
from shardwise.strategy.serving_layout import ServeForm

WIRE_BYTES = 2.0  # bytes per element of all activations that are sent


def batch_shards(form: ServeForm, mesh: Mapping[str, Num]) -> Num:
    """Number of shards into which attention splits an engine's batch."""
    if form.weights == "gathered":
        return mesh["expert"] * mesh["fsdp"]
    return mesh["expert"]


def local_rows(form: ServeForm, mesh: Mapping[str, Num], rows: Num) -> Num:
    """Tokens of a pass that the fullest chip computes, out of `rows` in the engine."""
    return ceil_div(rows, batch_shards(form, mesh) * mesh["context"])


def extra_traffic(engine: PricedEngine, load: Load) -> Iterator[PricedItem]:
    """Priced collectives of one pass through all layers; those that do not occur have count 0."""
    config = engine.config
    for attention, n_layers in config.attentions:
        yield from _attention_traffic(engine, attention, n_layers, load)
    yield from _expert_traffic(engine, load)
    n_bytes = local_rows(engine.layout, engine.mesh, load.rows) * config.d_model * WIRE_BYTES
    yield engine.collective(
        name="stage.send",
        kind="permute",
        role="pipe",
        axes=("pipe",),
        description="activations to the next stage, each chip its part",
        count=engine.mesh["pipe"] - 1,
        joined_bytes=n_bytes / engine.mesh["tensor"],
    )


def _attention_traffic(
    engine: PricedEngine, attention: Attention, n_layers: int, load: Load
) -> Iterator[PricedItem]:
    """Collectives of attention in `n_layers` layers.

    - `attn.exchange`: with a KV cache sharded over the batch, AllToAlls send queries to the chips
      that hold the cache and results back. With a cache sharded over the sequence, an AllReduce
      adds partial results.
    - `attn.keys`: with `context` parallelism, an AllGather of the keys and values of prompts.
    - `attn.join`: with `context` parallelism, an AllReduce of partial results of decoded tokens.
    """
    form = engine.layout
    mesh = engine.mesh
    kv_heads = 1 if attention.mla else attention.n_kv_heads
    rows = load.n_decoding * load.tokens_per_sequence / batch_shards(form, mesh)
    if form.kv != "copied":
        over_batch = form.kv == "batch"
        exchanges = (mesh["tensor"] > kv_heads) & (load.n_decoding > 0)
        head_dims = attention.d_head + attention.d_head_v
        yield engine.collective(
            name="attn.exchange",
            kind="all_to_all" if over_batch else "all_reduce",
            role="tensor",
            axes=("tensor",),
            description=(
                "queries to their caches, results back"
                if over_batch
                else "results over the sequence"
            ),
            count=where(exchanges, n_layers * (1 + over_batch), 0),
            joined_bytes=rows * attention.n_heads * head_dims / 2 * WIRE_BYTES,
        )
    new_keys = load.prefill_tokens / batch_shards(form, mesh) * kv_elements(attention) * WIRE_BYTES
    yield engine.collective(
        name="attn.keys",
        kind="all_gather",
        role="context",
        axes=("context",),
        description="keys of prompts",
        count=where(load.prefill_tokens > 0, n_layers, 0),
        joined_bytes=new_keys / minimum(mesh["tensor"], kv_heads),
    )
    results = rows * attention.n_heads * attention.d_head_v * WIRE_BYTES
    yield engine.collective(
        name="attn.join",
        kind="all_reduce",
        role="context",
        axes=("context",),
        description="results over the sequence",
        count=where(load.n_decoding > 0, n_layers, 0),
        joined_bytes=results / minimum(mesh["tensor"], attention.n_heads),
    )


def _expert_traffic(engine: PricedEngine, load: Load) -> Iterator[PricedItem]:
    """Collectives of each routed layer: one to dispatch tokens, one to combine the results.

    AllToAlls send a token once to each chip that has some of its experts. TPUs gather the tokens of
    all chips, and reduce-scatter the results: programs with static sizes have no AllToAll of
    unequal sizes, and in one of equal sizes every expert has room for the most tokens.

    The chips of `tensor` hold the same tokens, and each sends all of them over its `expert` axis.
    """
    config = engine.config
    mesh = engine.mesh
    gathers = engine.rates.chip.kind == "tpu"
    exchanges = [
        ("moe.dispatch", "all_gather" if gathers else "all_to_all", "tokens to their experts"),
        ("moe.combine", "reduce_scatter" if gathers else "all_to_all", "tokens back"),
    ]
    for moe, n_layers in config.moes:
        elements = local_rows(engine.layout, mesh, load.rows) * (moe.d_latent or config.d_model)
        copies = 1.0 if gathers else places_hit(mesh["expert"], moe.experts_per_token)
        for name, kind, description in exchanges:
            yield engine.collective(
                name=name,
                kind=kind,
                role="expert",
                axes=("expert",),
                description=description,
                count=n_layers,
                joined_bytes=elements * WIRE_BYTES * copies * mesh["expert"],
            )
