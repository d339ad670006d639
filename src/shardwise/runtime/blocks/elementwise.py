"""Elementwise operations between the matmuls of a layer: norms, activations and softcaps.

x is the residual, the input of a block, or (in norms of queries and keys) an array [.., N, H].
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from shardwise.models.numerics import Norm

Array = jax.Array

# Keyed by the names of `models.numerics.ACTIVATIONS`.
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "gelu_quick": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "relu": jax.nn.relu,
    "relu2": lambda x: jnp.square(jax.nn.relu(x)),
}


def gated(activation: str, up: Array, gate: Array | None) -> Array:
    """Activation of the gate times the up projection; without a gate, of the up projection."""
    function = ACTIVATIONS[activation]
    return function(up) if gate is None else function(gate) * up


def normalize(
    norm: Norm,
    x: Array,
    n_dims: int = 1,
    *,
    n_chips: int = 1,
    all_reduce: Callable[[Array], Array] = lambda x: x,
) -> Array:
    """Divide x by the root mean square of its last `n_dims` dims, in the dtype of x.

    Args:
        norm: the norm; its kind "layer" subtracts the mean first.
        x: array in a dtype that can hold the squares.
        n_dims: number of dims, from the last, that are normalized together.
        n_chips: number of chips that shard those dims.
        all_reduce: function that sums over those chips.
    """
    dims = tuple(range(-n_dims, 0))
    size = n_chips * math.prod(x.shape[-n_dims:])

    def mean(x: Array) -> Array:
        return all_reduce(x.sum(axis=dims, keepdims=True)) / size

    if norm.kind == "layer":
        x = x - mean(x)
    return x * jax.lax.rsqrt(mean(jnp.square(x)) + norm.eps)


def scale_and_shift(
    norm: Norm, x: Array, scale: Array | None, bias: Array | None = None, dtype: Any = None
) -> Array:
    """Multiply a normalized x by the norm's scale and add its bias, in `dtype` or that of x.

    A norm without a scale or a bias (None) skips that operation.
    """
    y = x.astype(jnp.float32)
    if scale is not None:
        offset = 1.0 if norm.plus_one else 0.0
        y = y * (scale.astype(jnp.float32) + offset)
    if bias is not None:
        y = y + bias.astype(jnp.float32)
    return y.astype(dtype or x.dtype)


def multiply(x: Array, factor: float) -> Array:
    """Multiply x by a number, which is not rounded to the dtype of x; 1 leaves x unchanged."""
    return x if factor == 1 else (x.astype(jnp.float32) * factor).astype(x.dtype)


def clip(x: Array, bound: float | None) -> Array:
    """Limit x to [-bound, bound]; None leaves x unchanged."""
    return x if bound is None else jnp.clip(x, -bound, bound)


def softcap(x: Array, cap: float | None) -> Array:
    """Limit x to (-cap, cap) by cap tanh(x / cap); None leaves x unchanged."""
    return x if cap is None else cap * jnp.tanh(x / cap)
