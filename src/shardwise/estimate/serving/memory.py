"""Memory of an engine's chips, and the largest batch that fits. Book §7, §8."""

from __future__ import annotations

from collections.abc import Mapping

from shardwise import units
from shardwise.arrays import Num, ceil_div, floor, maximum
from shardwise.estimate.chip_memory import DRIVER_BYTES, Memory
from shardwise.estimate.serving.attention import STATE_ELEMENT_BYTES, kv_shards
from shardwise.estimate.serving.chip_rates import HEAD_BYTES
from shardwise.estimate.serving.extra_traffic import batch_shards
from shardwise.estimate.serving.overhead import engine_overhead
from shardwise.estimate.serving.sparse import INDEX_KEY_BYTES, is_sparse
from shardwise.models import ModelConfig
from shardwise.models.count import kv_elements, state_elements
from shardwise.models.weights import Weight, layer_weights, outer_weights
from shardwise.ops.program import weight_elements
from shardwise.strategy.serving_layout import ServeForm, serve_table
from shardwise.workload import Serve

# Tokens of the largest pass of a scheduler: vLLM's `max_num_batched_tokens` on large chips.
MAX_PASS_TOKENS = 8192
ACTIVATION_BYTES = 2.0  # bytes per element
LOGIT_BYTES = 4.0  # bytes per element


def engine_memory(
    config: ModelConfig,
    form: ServeForm,
    mesh: Mapping[str, Num],
    job: Serve,
    batch: Num,
    capacity: float,
    *,
    ideal: bool = False,
) -> Memory:
    """Memory of the fullest chip of an engine that holds `batch` sequences of `job.context` tokens.

    Args:
        form: how the layout shards weights and KV cache.
        mesh: mesh role -> chips of the engine.
        job: context length and dtypes.
        batch: number of sequences in the engine.
        capacity: HBM of a chip, bytes.
        ideal: whether to count only weights and KV cache, as the book does.
    """
    kv_cache = batch * cache_bytes(config, form, mesh, job)
    weights = weights_bytes(config, form, mesh, job)
    if ideal:
        return Memory(weights=weights, kv_cache=kv_cache, capacity=capacity)
    return Memory(
        weights=weights,
        kv_cache=kv_cache,
        other=engine_overhead(job.engine).runtime_bytes
        + _activation_bytes(config, mesh, MAX_PASS_TOKENS)
        + batch * _logit_bytes(config, form, mesh),
        capacity=capacity,
        margin=_unused_bytes(job, weights, capacity),
    )


def program_bytes(
    config: ModelConfig,
    form: ServeForm,
    mesh: Mapping[str, Num],
    job: Serve,
    batch: Num,
    pass_tokens: Num,
) -> Num:
    """Bytes that the program of one pass takes on the fullest chip, all activations counted.

    An engine keeps memory for larger passes, and for its libraries.

    Args:
        batch: number of sequences in the engine's cache.
        pass_tokens: tokens of the pass, on each shard of the batch.
    """
    kept = batch * (cache_bytes(config, form, mesh, job) + _logit_bytes(config, form, mesh))
    activations = _activation_bytes(config, mesh, pass_tokens)
    return weights_bytes(config, form, mesh, job) + kept + activations


def _unused_bytes(job: Serve, weights: Num, capacity: float) -> Num:
    """Bytes of the HBM that the job's engine leaves free, for memory that it does not count."""
    overhead = engine_overhead(job.engine)
    available = capacity - weights if overhead.unused_after_weights else capacity
    return maximum(DRIVER_BYTES, overhead.unused_share * available)


def max_batch(
    config: ModelConfig,
    form: ServeForm,
    mesh: Mapping[str, Num],
    job: Serve,
    capacity: float,
    *,
    ideal: bool = False,
) -> Num:
    """Largest number of sequences of `job.context` tokens that fit in one engine.

    0 if the weights alone do not fit. The result is not rounded to whole sequences per shard of the
    batch. Arguments are those of `engine_memory`.
    """
    empty = engine_memory(config, form, mesh, job, 0.0, capacity, ideal=ideal)
    available = capacity - empty.total - empty.margin
    sequence_bytes = cache_bytes(config, form, mesh, job)
    if not ideal:
        sequence_bytes = sequence_bytes + _logit_bytes(config, form, mesh)
    return maximum(0.0, floor(available / sequence_bytes))


def weights_bytes(config: ModelConfig, form: ServeForm, mesh: Mapping[str, Num], job: Serve) -> Num:
    """Bytes of the weights on a chip of the fullest pipeline stage.

    A stage holds its layers, and at an end of the model the embedding or the unembedding.
    """
    rules = serve_table(form)

    def local_elements(weight: Weight) -> Num:
        return weight_elements(weight.dims, weight.shape, rules, mesh)

    layers = 0.0
    for group in config.groups:
        for weight in layer_weights(config, group.layer):
            elements = local_elements(weight)
            if weight.per_expert:
                elements = elements / mesh["expert"]
            layers = layers + group.count * elements
    stage_share = ceil_div(config.n_layers, mesh["pipe"]) / config.n_layers
    outer = [local_elements(weight) for weight in outer_weights(config)]
    # In a pipeline, embedding and unembedding are on different stages; a single stage has both.
    larger = maximum(0.0, 0.0, *outer)
    embedding_and_head = larger + (sum(outer) - larger) * (mesh["pipe"] == 1)
    dtype_bytes = units.bytes_per_element(job.weights)
    head_bytes = max(dtype_bytes, HEAD_BYTES)  # embedding and unembedding are not quantized
    return layers * stage_share * dtype_bytes + embedding_and_head * head_bytes


def cache_bytes(config: ModelConfig, form: ServeForm, mesh: Mapping[str, Num], job: Serve) -> Num:
    """Mean bytes that each sequence's KV cache and SSM states take on a chip of the fullest stage.

    The mean is over all sequences of the engine: where the batch is sharded, a chip holds only some
    of them.
    """
    kv_bytes = units.bytes_per_element(job.kv)
    is_whole = engine_overhead(job.engine).keeps_whole_sequences
    total = 0.0
    for attention, n_layers in config.attentions:
        key_bytes = kv_bytes * kv_elements(attention)
        n_keys = job.context
        if is_sparse(attention):
            key_bytes += INDEX_KEY_BYTES
        elif attention.window and not is_whole:
            n_keys = min(attention.window, job.context)
        total = total + n_layers * key_bytes * float(n_keys) / kv_shards(attention, form, mesh)
    states = STATE_ELEMENT_BYTES * sum(n * state_elements(mamba) for mamba, n in config.mambas)
    total = total + states / (mesh["tensor"] * batch_shards(form, mesh))
    return total * ceil_div(config.n_layers, mesh["pipe"]) / config.n_layers


def _activation_bytes(config: ModelConfig, mesh: Mapping[str, Num], pass_tokens: Num) -> Num:
    """Bytes of activations on one chip in the largest pass; they live for one layer only.

    Each shard of the batch has a scheduler and passes of its own.
    """
    rows = pass_tokens / mesh["context"]
    d_ff = config.d_ff
    d_routed = 0
    if config.moe:
        d_ff = d_ff * config.moe.experts_per_token
        # Outputs of a token's experts before their weighted sum, which are not sharded.
        d_routed = config.d_model * config.moe.experts_per_token
    d_heads = max((a.n_heads * a.d_head for a, _ in config.attentions), default=0)
    width = 3.0 * config.d_model + d_routed + (2.0 * d_ff + 2.0 * d_heads) / mesh["tensor"]
    return rows * width * ACTIVATION_BYTES


def _logit_bytes(config: ModelConfig, form: ServeForm, mesh: Mapping[str, Num]) -> Num:
    """Mean bytes of logits on one chip for each sequence of the engine."""
    return LOGIT_BYTES * config.vocab / (mesh["tensor"] * batch_shards(form, mesh))
