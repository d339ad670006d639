"""Time of attention and SSM scans in a forward pass of an inference engine. Book §7.

Keys and values are sharded by KV heads over the mesh axis `tensor`. If `tensor` is larger than the
number of KV heads, `ServeForm.kv` says whether the cache is also replicated ("copied") or sharded
over the batch or the sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardwise import units
from shardwise.arrays import Num, maximum, minimum
from shardwise.estimate.items import PricedItem
from shardwise.estimate.kernels import head_dim_efficiency
from shardwise.estimate.serving.chip_rates import ServeRates
from shardwise.estimate.serving.extra_traffic import batch_shards
from shardwise.estimate.serving.load import Load
from shardwise.estimate.serving.priced_engine import PricedEngine
from shardwise.estimate.serving.sparse import (
    INDEX_KEY_BYTES,
    index_flops,
    is_sparse,
    latent_flops,
)
from shardwise.models import Attention, Mamba
from shardwise.models.count import kv_elements, mean_visible, scan_flops, state_elements
from shardwise.strategy.serving_layout import ServeForm

# SSM states are kept in fp32 (state-spaces/mamba, `states_in_fp32`).
STATE_ELEMENT_BYTES = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTime:
    """Seconds of attention and SSM scans in one pass through all layers.

    Args:
        decode_s: seconds for the decoding sequences. Attention takes the larger of the time to read
            the KV cache and the time of its matmuls.
        prefill_s: seconds for the prompts: the two matmuls of causal attention, and SSM scans.
    """

    decode_s: Num
    prefill_s: Num


def attention_time(engine: PricedEngine, load: Load) -> AttentionTime:
    """Compute the time of attention and SSM scans in all layers of one pass."""
    decode_s: Num = 0.0
    prefill_s: Num = 0.0
    for attention, n_layers in engine.config.attentions:
        decode_s = decode_s + n_layers * _decode_attention_s(attention, engine, load)
        prefill_s = prefill_s + n_layers * _prefill_attention_s(attention, engine, load)
    for mamba, n_layers in engine.config.mambas:
        decode_s = decode_s + n_layers * _decode_scan_s(mamba, engine, load)
        prefill_s = prefill_s + n_layers * _prefill_scan_s(mamba, engine, load)
    return AttentionTime(decode_s=decode_s, prefill_s=prefill_s)


def attention_items(engine: PricedEngine, load: Load) -> Iterator[PricedItem]:
    """Items for attention and SSM scans of one engine, which has one layout, not arrays of them.

    The whole time of decode is attributed to HBM reads, that of prefill to FLOPs.
    """
    rates = engine.rates
    time = attention_time(engine, load)
    if time.decode_s > 0:
        flops = 0.0
        for attention, n_layers in engine.config.attentions:
            flops += n_layers * float(_decode_flops(attention, engine, load))
        yield PricedItem(
            name="attn.caches",
            phase="forward",
            description="queries against the keys and values of earlier tokens",
            count=engine.config.n_layers,
            flops=flops,
            flops_per_s=rates.attention_flops_per_s,
            n_bytes=time.decode_s * rates.hbm_bytes_per_s,
            bytes_per_s=rates.hbm_bytes_per_s,
        )
    if time.prefill_s > 0:
        yield PricedItem(
            name="attn.prompts",
            phase="forward",
            description="causal attention of the prompt",
            count=engine.config.n_layers,
            flops=time.prefill_s * rates.attention_flops_per_s,
            flops_per_s=rates.attention_flops_per_s,
        )


def visible_keys(attention: Attention, context: Num) -> Num:
    """Number of keys that the next token of a sequence of `context` tokens attends to.

    It is at most the window in sliding-window attention, and half a chunk on average in chunked
    attention.
    """
    if attention.window is None:
        return context
    if attention.chunked:
        return minimum(context, attention.window / 2)
    return minimum(context, attention.window)


def kv_shards(attention: Attention, form: ServeForm, mesh: Mapping[str, Num]) -> Num:
    """Number of distinct shards of one layer's KV cache among the chips of a pipeline stage."""
    tensor_shards = mesh["tensor"]
    if form.kv == "copied":
        tensor_shards = minimum(tensor_shards, 1 if attention.mla else attention.n_kv_heads)
    return tensor_shards * batch_shards(form, mesh) * mesh["context"]


def _decode_attention_s(attention: Attention, engine: PricedEngine, load: Load) -> Num:
    """Seconds of attention for the decoding sequences in one layer."""
    rates = engine.rates
    n_keys = load.n_decoding * visible_keys(attention, load.mean_context)
    n_bytes = n_keys * kv_elements(attention) * units.bytes_per_element(rates.job.kv)
    shards = kv_shards(attention, engine.layout, engine.mesh)
    flops = _decode_flops(attention, engine, load)
    if is_sparse(attention) and not rates.ideal:
        sequences = batch_shards(engine.layout, engine.mesh) * engine.mesh["context"]
        n_bytes = n_bytes + load.kv_tokens * INDEX_KEY_BYTES * shards / sequences
        flops = flops + index_flops(load.tokens_per_sequence * load.kv_tokens / sequences)
    return maximum(n_bytes / shards / rates.key_bytes_per_s, flops / rates.attention_flops_per_s)


def _decode_flops(attention: Attention, engine: PricedEngine, load: Load) -> Num:
    """FLOPs of attention on one chip for the decoding sequences in one layer."""
    n_keys = load.n_decoding * visible_keys(attention, load.mean_context)
    # Contracted dim of the scores plus output dim of their product with the values, per head.
    head_dims = attention.d_head + attention.d_head_v
    if attention.mla:  # decodes with the latent keys and values that it caches
        head_dims = 2 * attention.mla.kv_lora_rank + attention.mla.d_rope
    head_shards = engine.mesh["tensor"]
    if engine.layout.kv == "copied":
        head_shards = minimum(head_shards, attention.n_heads)
    sequences = batch_shards(engine.layout, engine.mesh) * engine.mesh["context"]
    if attention.mla and is_sparse(attention) and not engine.rates.ideal:
        n_heads = attention.n_heads / head_shards
        n_keys = load.tokens_per_sequence * n_keys / sequences
        return latent_flops(attention.mla, n_heads, n_keys)
    shards = head_shards * sequences
    return 2 * load.tokens_per_sequence * n_keys * attention.n_heads * head_dims / shards


def _prefill_attention_s(attention: Attention, engine: PricedEngine, load: Load) -> Num:
    """Seconds of tiled causal attention over prompts in one layer."""
    n_pairs = load.query_key_pairs
    if attention.window is not None:
        mean_keys = mean_visible(attention, maximum(load.prefill_length, 1))
        n_pairs = minimum(n_pairs, load.prefill_tokens * mean_keys)
    head_shards = minimum(engine.mesh["tensor"], attention.n_heads)
    sequences = batch_shards(engine.layout, engine.mesh) * engine.mesh["context"]
    if attention.mla and is_sparse(attention) and not engine.rates.ideal:
        flops = latent_flops(attention.mla, attention.n_heads / head_shards, n_pairs)
        flops = flops + index_flops(load.query_key_pairs)
        return flops / sequences / engine.rates.attention_flops_per_s
    flops = 2 * n_pairs * attention.n_heads * (attention.d_head + attention.d_head_v)
    shards = head_shards * sequences
    efficiency = _head_dim_efficiency(attention, engine.rates)
    return flops / shards / (engine.rates.attention_flops_per_s * efficiency)


def _head_dim_efficiency(attention: Attention, rates: ServeRates) -> float:
    """FLOP/s of attention at this head dim, relative to head dim 128; 1 at ideal rates."""
    flops_per_clock = rates.sm_flops_per_clock(rates.half_precision_dtype)
    if rates.ideal or not flops_per_clock:
        return 1.0
    return float(head_dim_efficiency(attention.d_head, flops_per_clock))


def _decode_scan_s(mamba: Mamba, engine: PricedEngine, load: Load) -> Num:
    """Seconds to read and write the SSM states of decoding sequences in one layer."""
    n_bytes = 2 * load.n_decoding * state_elements(mamba) * STATE_ELEMENT_BYTES
    shards = engine.mesh["tensor"] * batch_shards(engine.layout, engine.mesh)
    return n_bytes / shards / engine.rates.hbm_bytes_per_s


def _prefill_scan_s(mamba: Mamba, engine: PricedEngine, load: Load) -> Num:
    """Seconds of the SSM scan over prompts in one layer."""
    flops = load.prefill_tokens * scan_flops(mamba, maximum(load.prefill_length, 1))
    mesh = engine.mesh
    shards = mesh["tensor"] * batch_shards(engine.layout, mesh) * mesh["context"]
    return flops / shards / engine.rates.attention_flops_per_s
