"""Numbers of a KV cache: keys and values in the dtype of the cache."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from shardwise.models import Attention, ModelConfig
from shardwise.runtime.weights.descriptions import layer_stacks
from shardwise.runtime.weights.quantized import Scaled, is_narrow, quantize

Array = jax.Array
CacheArray = Array | Scaled

SCALE_DTYPE = jnp.float32  # one scale per token and head, that is per about 128 numbers


def stored_dtype(dtype: Any, platform: str) -> Any:
    """The dtype of the array that holds keys or values of a dtype.

    XLA's CPU compiler converts a whole array in bf16 to fp32 and back to read or write a few rows
    of it, so that on CPUs bf16 is stored as integers with the same bits.

    Args:
        platform: `RoleMesh.platform` of the chips.
    """
    return jnp.uint16 if platform == "cpu" and dtype == jnp.bfloat16 else dtype


def to_cache(x: Array, dtype: Any) -> CacheArray:
    """Convert keys or values [.., H] to the dtype of the cache.

    A dtype of 8 bits or fewer gets one scale per token and head.
    """
    if is_narrow(dtype):
        return quantize(x, dtype, (-1,), SCALE_DTYPE)
    return x.astype(dtype)


def cached_stacks(config: ModelConfig) -> list[tuple[Attention, int]]:
    """(attention, number of layers) of each stack of layers of a model."""
    pairs = []
    for layer_stack in layer_stacks(config):
        attention = config.groups[layer_stack.kind].layer.attention
        if attention is None:
            raise ValueError("a layer without attention has no cache")
        pairs.append((attention, len(layer_stack.layers)))
    return pairs


def cached_widths(a: Attention) -> dict[str, int]:
    """Width of the keys "k" and values "v" of a head; latents and rotary parts are "k" alone."""
    if a.mla:
        return {"k": a.mla.kv_lora_rank + a.mla.d_rope}
    return {"k": a.d_head, "v": a.d_head}
