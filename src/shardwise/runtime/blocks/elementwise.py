"""What stands between the products of a layer: norms, activations and what is done to scores.

x is the residual or the input of a block, or queries and keys [.., N, H] under a norm of their own.
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

# By the names of `models.numerics.ACTIVATIONS`.
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "gelu_quick": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "relu": jax.nn.relu,
    "relu2": lambda x: jnp.square(jax.nn.relu(x)),
}


def normalized(
    kind: Norm,
    x: Array,
    n_dims: int = 1,
    *,
    chips: int = 1,
    total: Callable[[Array], Array] = lambda x: x,
) -> Array:
    """The last dims of x over their root mean square, in the dtype of x.

    Args:
        kind: "layer" takes the mean away before.
        x: wide enough to square.
        n_dims: how many of the last dims are normed together.
        chips: over which those dims are cut.
        total: sums a number over these chips.
    """
    dims = tuple(range(-n_dims, 0))
    size = chips * math.prod(x.shape[-n_dims:])

    def mean(x: Array) -> Array:
        return total(x.sum(axis=dims, keepdims=True)) / size

    if kind.kind == "layer":
        x = x - mean(x)
    return x * jax.lax.rsqrt(mean(jnp.square(x)) + kind.eps)


def scaled(
    kind: Norm, x: Array, scale: Array, bias: Array | None = None, dtype: Any = None
) -> Array:
    """What is normalized, times its scale and with its bias; in `dtype`, or that of x."""
    wide = scale.astype(jnp.float32) + (1.0 if kind.plus_one else 0.0)
    y = x.astype(jnp.float32) * wide
    y = y if bias is None else y + bias.astype(jnp.float32)
    return y.astype(dtype or x.dtype)


def capped(x: Array, cap: float | None) -> Array:
    """c tanh(x / c), or x without a cap."""
    return x if cap is None else cap * jnp.tanh(x / cap)
