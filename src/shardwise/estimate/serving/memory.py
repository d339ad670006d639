"""What each chip of an engine holds, and how many sequences fit. Book §7, §8."""

from __future__ import annotations

from collections.abc import Mapping

from shardwise import units
from shardwise.arrays import Num, ceil_div, floor, maximum
from shardwise.estimate.chip_memory import DRIVER_BYTES, Memory
from shardwise.estimate.serving.attention import STATE_BYTES, kv_shards
from shardwise.estimate.serving.extra_traffic import batch_shards
from shardwise.models import Attention, ModelConfig, Moe
from shardwise.models.count import kv_elements, state_elements
from shardwise.models.weights import layer_weights, outer_weights
from shardwise.ops.program import weight_elements
from shardwise.strategy.serving_layout import ServeForm, serve_table
from shardwise.workload import Serve

# Share of the memory that engines leave free for what they do not count (vLLM and SGLang:
# `gpu_memory_utilization` and `mem_fraction_static` of about 0.9).
FREE = 0.1
PASS_TOKENS = 8192  # rows of the largest pass, vLLM's `max_num_batched_tokens` on large chips
ROW_BYTES = 2.0  # of an activation
LOGIT_BYTES = 4.0


def engine_memory(
    config: ModelConfig,
    form: ServeForm,
    sizes: Mapping[str, Num],
    job: Serve,
    batch: Num,
    capacity: float,
    *,
    ideal: bool = False,
) -> Memory:
    """Bytes of the fullest chip with `batch` sequences of `job.context` tokens in an engine.

    Args:
        ideal: nothing but weights and caches, as the book counts.
    """
    caches = batch * cache_bytes(config, form, sizes, job)
    other = 0.0 if ideal else _pass_bytes(config, form, sizes, batch)
    return Memory(
        weights=weights_bytes(config, form, sizes, job),
        kv_cache=caches,
        other=other,
        capacity=capacity,
        margin=0.0 if ideal else maximum(DRIVER_BYTES, FREE * capacity),
    )


def max_batch(
    config: ModelConfig,
    form: ServeForm,
    sizes: Mapping[str, Num],
    job: Serve,
    capacity: float,
    *,
    ideal: bool = False,
) -> Num:
    """Most sequences of `job.context` tokens that fit in one engine; 0 where weights do not.

    Caches that are split over sequences come in whole sequences for each part.
    """
    empty = engine_memory(config, form, sizes, job, 0.0, capacity, ideal=ideal)
    room = capacity - empty.total - empty.margin
    one = cache_bytes(config, form, sizes, job)
    if not ideal:
        one = one + _logit_bytes(config, form, sizes)
    return maximum(0.0, floor(room / one))


def weights_bytes(
    config: ModelConfig, form: ServeForm, sizes: Mapping[str, Num], job: Serve
) -> Num:
    """Weights of a chip of the fullest stage: its share of the layers, and an end of the model."""
    rules, total = serve_table(form), 0.0
    for group in config.groups:
        for weight in layer_weights(config, group.layer):
            held = weight_elements(weight.dims, weight.shape, rules, sizes)
            experts = isinstance(group.layer.ffn, Moe) and len(weight.dims) == 3
            if experts and weight.dims[0] == "E":
                held = held / sizes["expert"]
            total = total + group.count * held
    fullest = ceil_div(config.n_layers, sizes["pipe"]) / config.n_layers
    ends = [weight_elements(w.dims, w.shape, rules, sizes) for w in outer_weights(config)]
    # A pipeline has one end on each of two stages, one stage has both.
    both, larger = sum(ends), maximum(0.0, 0.0, *ends)
    at_end = larger + (both - larger) * (sizes["pipe"] == 1)
    return (total * fullest + at_end) * units.bytes_per_element(job.weights)


def cache_bytes(config: ModelConfig, form: ServeForm, sizes: Mapping[str, Num], job: Serve) -> Num:
    """Cache of one sequence on a chip of the fullest stage, over the ways that sequences split."""
    element, total = units.bytes_per_element(job.kv), 0.0
    for a, n in config.attentions:
        held = n * kv_elements(a) * _held(a, job.context)
        total = total + element * held / kv_shards(a, form, sizes)
    states = STATE_BYTES * sum(n * state_elements(m) for m, n in config.mambas)
    total = total + states / (sizes["tensor"] * batch_shards(form, sizes))
    return total * ceil_div(config.n_layers, sizes["pipe"]) / config.n_layers


def _held(a: Attention, context: int) -> float:
    return float(context if a.window is None else min(a.window, context))


def _pass_bytes(config: ModelConfig, form: ServeForm, sizes: Mapping[str, Num], batch: Num) -> Num:
    """Activations of the largest pass, which live for one layer, and the logits of its samples."""
    rows = PASS_TOKENS / (batch_shards(form, sizes) * sizes["context"])
    moe = config.moe
    wide = config.d_ff * (moe.experts_per_token if moe else 1)
    heads = max((a.n_heads * a.d_head for a, _ in config.attentions), default=0)
    width = 3.0 * config.d_model + (2.0 * wide + 2.0 * heads) / sizes["tensor"]
    return rows * width * ROW_BYTES + batch * _logit_bytes(config, form, sizes)


def _logit_bytes(config: ModelConfig, form: ServeForm, sizes: Mapping[str, Num]) -> Num:
    return LOGIT_BYTES * config.vocab / (sizes["tensor"] * batch_shards(form, sizes))
