"""Kernels that an engine starts in one pass, and what its element-wise ones read and write."""

from __future__ import annotations

from shardwise.arrays import Num, where
from shardwise.estimate.elementwise import elementwise_widths
from shardwise.estimate.serving.load import Load
from shardwise.models import Layer, ModelConfig, Moe

# Kernels of one layer as serving engines fuse them: queries, keys and values are one product, so
# are gate and up; a norm takes the residual sum before it along. (vLLM's and SGLang's Llama.)
ATTENTION = 6  # norm, qkv, rotation and writing of the cache, attention, its join, out
LATENT = 10  # MLA: norm, downs, norm of latents, q up, absorbed k and v, rotation, attention, out
SCAN = 6  # norm, in, convolution, scan, gated norm, out
DENSE = 4  # norm, gate and up, activation, down
ROUTED = 9  # norm, router, choice, sorting, two grouped products, activation, weighted sum, copy
SHARED = 3
ENDS = 4  # embedding, last norm, unembedding, choice of the token


def layer_kernels(config: ModelConfig, load: Load) -> Num:
    """Kernels of one pass; a pass that mixes prompts and generation runs attention twice."""
    total = ENDS + sum(g.count * _of_layer(g.layer) for g in config.groups)
    both = where(load.prefill > 0, 1, 0) * where(load.decode > 0, 1, 0)
    return total + both * config.n_layers


def _of_layer(layer: Layer) -> int:
    n = 0
    if layer.attention:
        n += LATENT if layer.attention.mla else ATTENTION
    if layer.mamba:
        n += SCAN
    if isinstance(layer.ffn, Moe):
        n += ROUTED + (SHARED if layer.ffn.d_ff_shared else 0)
    elif layer.ffn:
        n += DENSE
    return n


def elementwise_bytes(config: ModelConfig, tensor: Num) -> Num:
    """Bytes that the element-wise steps of all layers read and write for one token on a chip."""
    total: Num = 0.0
    for group in config.groups:
        along, across = elementwise_widths(config, group.layer)
        total = total + group.count * (along + across / tensor)
    return 2.0 * total
