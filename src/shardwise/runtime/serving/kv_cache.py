"""Numbers of a KV cache: keys and values in the dtype of the cache."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from shardwise.runtime.weights.quantized import Scaled, is_narrow, quantize

Array = jax.Array
CacheArray = Array | Scaled

SCALE_DTYPE = jnp.float32  # one scale per token and head, that is per about 128 numbers


def to_cache(x: Array, dtype: Any) -> CacheArray:
    """Convert keys or values [.., H] to the dtype of the cache.

    A dtype of 8 bits or fewer gets one scale per token and head.
    """
    if is_narrow(dtype):
        return quantize(x, dtype, (-1,), SCALE_DTYPE)
    return x.astype(dtype)
