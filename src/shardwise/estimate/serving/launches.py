"""Number of kernels that an engine launches in one pass, and bytes of its element-wise kernels."""

from __future__ import annotations

from shardwise.arrays import Num, where
from shardwise.estimate.elementwise import ROUTED, widths
from shardwise.estimate.serving.load import Load
from shardwise.models import Layer, ModelConfig, Moe

# Kernels in each kind of block, fused as in vLLM's and SGLang's Llama: one matmul for queries, keys
# and values, one for gate and up; a norm includes the residual sum before it.
ATTENTION = 6  # norm, qkv, rotary and cache write, attention, its reduction, out
LATENT_ATTENTION = 10  # MLA: norm, downs, latent norms, q up, absorbed k and v, rotary, core, out
# Of sparse attention over a latent cache (DeepSeek-V3.2, GLM-5), which chooses keys: queries, keys,
# weights, norm, rotary, rotation and quantization, cache write, scores, top-k.
INDEXER = 10
MAMBA = 6  # norm, in, convolution, scan, gated norm, out
DENSE_FFN = 4  # norm, gate and up, activation, down
ROUTED_FFN = 9  # norm, router, top-k, sort, two grouped matmuls, activation, weighted sum, copy
SHARED_EXPERT = 3
OUTSIDE_LAYERS = 4  # embedding, final norm, unembedding, sampling


def kernel_launches(config: ModelConfig, load: Load) -> Num:
    """Number of kernels in one pass.

    A pass with both prompts and decoding sequences runs attention twice in each layer.
    """
    total = OUTSIDE_LAYERS
    for group in config.groups:
        total += group.count * _layer_kernels(group.layer)
    is_mixed = where(load.prefill_tokens > 0, 1, 0) * where(load.n_decoding > 0, 1, 0)
    return total + is_mixed * config.n_layers


def _layer_kernels(layer: Layer) -> int:
    """Number of kernels in one layer."""
    n = 0
    if layer.attention:
        n += LATENT_ATTENTION if layer.attention.mla else ATTENTION
        if layer.attention.mla and layer.attention.window:
            n += INDEXER
    if layer.mamba:
        n += MAMBA
    if isinstance(layer.ffn, Moe):
        n += ROUTED_FFN
        if layer.ffn.d_ff_shared:
            n += SHARED_EXPERT
    elif layer.ffn:
        n += DENSE_FFN
    return n


def elementwise_bytes(config: ModelConfig, tensor: Num, expert_shards: Num = 1) -> Num:
    """Bytes per token that the element-wise kernels of all layers read and write on one chip.

    Activations have 16 bits.

    Args:
        tensor: number of chips of the mesh role `tensor`.
        expert_shards: number of those that have different experts: each copies the tokens of its
            own.
    """
    total: Num = 0.0
    for group in config.groups:
        replicated, sharded = widths(config, group.layer)
        copied = replicated.pop(ROUTED, 0.0) / expert_shards
        on_all = sum(replicated.values()) + copied
        total = total + group.count * (on_all + sum(sharded.values()) / tensor)
    return 2.0 * total
