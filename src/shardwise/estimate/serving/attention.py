"""Attention of a pass: caches that are read, pairs that are multiplied, and what is sent for it.

Book §7. Keys and values are split over `tensor` by heads, as far as there are heads; what is left
of `tensor` copies them, or splits them over the batch (two AllToAlls) or the sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardwise import units
from shardwise.arrays import Num, maximum, minimum
from shardwise.estimate.items import PricedItem
from shardwise.estimate.kernels import head_share, sm_flops_per_clock
from shardwise.estimate.serving.chip_rates import ServeRates
from shardwise.estimate.serving.extra_traffic import batch_shards
from shardwise.estimate.serving.load import Load
from shardwise.estimate.serving.priced_engine import PricedEngine
from shardwise.models import Attention, Mamba
from shardwise.models.count import kv_elements, mean_visible, scan_flops, state_elements
from shardwise.strategy.serving_layout import ServeForm

STATE_BYTES = 4.0  # states of scans are kept in fp32 (state-spaces/mamba, `states_in_fp32`)


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """Seconds of attention and of scans in one pass through all layers.

    Args:
        caches: reading what earlier tokens left, or multiplying with it where that is longer.
        prompts: pairs of prompts.
    """

    caches: Num
    prompts: Num


def core(engine: PricedEngine, load: Load) -> Core:
    """Attention and scans of all layers."""
    given = (engine.layout, engine.mesh, engine.rates, load)
    caches: Num = 0.0
    prompts: Num = 0.0
    for a, n in engine.config.attentions:
        caches = caches + n * _caches_s(a, *given)
        prompts = prompts + n * _prompts_s(a, *given)
    for m, n in engine.config.mambas:
        caches = caches + n * _states_s(m, *given)
        prompts = prompts + n * _scan_s(m, *given)
    return Core(caches=caches, prompts=prompts)


def core_items(engine: PricedEngine, load: Load) -> Iterator[PricedItem]:
    """Attention of one engine, with all its seconds on what binds it."""
    rates, n_layers = engine.rates, engine.config.n_layers
    seconds = core(engine, load)
    if seconds.caches > 0:
        yield PricedItem(
            name="attn.caches",
            phase="forward",
            what="queries against the keys and values of earlier tokens",
            count=n_layers,
            flops=sum(
                n * float(_cache_flops(a, engine.layout, engine.mesh, load))
                for a, n in engine.config.attentions
            ),
            flops_per_s=rates.attention_flops_per_s,
            n_bytes=seconds.caches * rates.hbm,
            bytes_per_s=rates.hbm,
        )
    if seconds.prompts > 0:
        yield PricedItem(
            name="attn.prompts",
            phase="forward",
            what="causal attention of the prompt",
            count=n_layers,
            flops=seconds.prompts * rates.attention_flops_per_s,
            flops_per_s=rates.attention_flops_per_s,
        )


def visible(attention: Attention, context: Num) -> Num:
    """Keys that the next token of a sequence sees: at most a window; half a chunk in the mean."""
    if attention.window is None:
        return context
    width = attention.window / 2 if attention.chunked else attention.window
    return minimum(context, width)


def kv_shards(attention: Attention, form: ServeForm, sizes: Mapping[str, Num]) -> Num:
    """Ways that the cache of one layer is split over the chips of an engine's stage."""
    heads = 1 if attention.mla else attention.n_kv_heads
    over_tensor = sizes["tensor"]
    if form.kv == "copied":
        over_tensor = minimum(over_tensor, heads)
    return over_tensor * batch_shards(form, sizes) * sizes["context"]


def _caches_s(
    a: Attention, form: ServeForm, sizes: Mapping[str, Num], rates: ServeRates, load: Load
) -> Num:
    """Seconds of one layer for the sequences that generate."""
    keys = load.decode * visible(a, load.context)
    n_bytes = keys * kv_elements(a) * units.bytes_per_element(rates.job.kv)
    read_s = n_bytes / kv_shards(a, form, sizes) / rates.hbm
    return maximum(read_s, _cache_flops(a, form, sizes, load) / rates.attention_flops_per_s)


def _cache_flops(a: Attention, form: ServeForm, sizes: Mapping[str, Num], load: Load) -> Num:
    """FLOPs of one chip in one layer for the sequences that generate."""
    keys = load.decode * visible(a, load.context)
    width = 2 * a.mla.kv_lora_rank + a.mla.d_rope if a.mla else a.d_head + a.d_head_v
    heads = minimum(sizes["tensor"], a.n_heads) if form.kv == "copied" else sizes["tensor"]
    split = heads * batch_shards(form, sizes) * sizes["context"]
    return 2 * load.drafted * keys * a.n_heads * width / split


def _prompts_s(
    a: Attention, form: ServeForm, sizes: Mapping[str, Num], rates: ServeRates, load: Load
) -> Num:
    """Seconds of one layer for prompts: causal attention in tiles."""
    pairs = load.pairs
    if a.window is not None:
        pairs = minimum(pairs, load.prefill * mean_visible(a, maximum(load.reach, 1)))
    flops = 2 * pairs * a.n_heads * (a.d_head + a.d_head_v)
    split = minimum(sizes["tensor"], a.n_heads) * batch_shards(form, sizes) * sizes["context"]
    return flops / split / (rates.attention_flops_per_s * _heads(a, rates))


def _heads(a: Attention, rates: ServeRates) -> float:
    """Rate of heads of this width against those of 128."""
    each = sm_flops_per_clock(rates.chip, rates.wide)
    return float(head_share(a.d_head, each)) if each and not rates.ideal else 1.0


def _states_s(
    m: Mamba, form: ServeForm, sizes: Mapping[str, Num], rates: ServeRates, load: Load
) -> Num:
    """Seconds to read and write the states of sequences that generate."""
    n_bytes = 2 * load.decode * state_elements(m) * STATE_BYTES
    return n_bytes / (sizes["tensor"] * batch_shards(form, sizes)) / rates.hbm


def _scan_s(
    m: Mamba, form: ServeForm, sizes: Mapping[str, Num], rates: ServeRates, load: Load
) -> Num:
    """Seconds of the scan of prompts."""
    flops = load.prefill * scan_flops(m, maximum(load.reach, 1))
    split = sizes["tensor"] * batch_shards(form, sizes) * sizes["context"]
    return flops / split / rates.attention_flops_per_s
