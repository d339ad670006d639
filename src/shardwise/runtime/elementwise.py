"""What stands between the products of a layer: norms and rotation.

x_BTD the residual or the input of a block, q_BTNH and k_BTKH queries and keys; T are tokens of this
chip with their positions in the sequence.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.models.numerics import Rope

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


def rms_norm(x: Array, scale: Array, eps: float) -> Array:
    """Over the last dim, in fp32, back in the dtype of x."""
    wide = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return (wide * inverse * scale.astype(jnp.float32)).astype(x.dtype)


def rotate(x_BTNH: Array, positions_BT: Array, frequencies: Array) -> Array:
    """Rotary positions: the first half of the rotated width against the second.

    Args:
        frequencies: radians per token, half as many as are rotated; what is left of H stays.
    """
    half = frequencies.shape[0]
    angles = positions_BT[..., None].astype(jnp.float32) * frequencies  # B T half
    cos, sin = jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]
    first, second, rest = jnp.split(x_BTNH.astype(jnp.float32), [half, 2 * half], axis=-1)
    turned = [first * cos - second * sin, second * cos + first * sin, rest]
    return jnp.concatenate(turned, axis=-1).astype(x_BTNH.dtype)


def frequencies(rope: Rope, d_head: int) -> Array:
    """Radians per token of each turned pair of dims: theta^(-2i/dims).

    Under "llama3" pairs that turn less than `low_freq` times over the first training's positions
    turn slower by `factor`, those that turn more than `high_freq` times as before, and others
    between (the rule of Llama 3.1's published code).
    """
    dims = rope.dims or d_head
    turns = rope.theta ** (-np.arange(0, dims, 2) / dims)
    scaling = rope.scaling
    if scaling is not None and scaling.original:
        seen = scaling.original * turns / (2 * math.pi)  # turns over the first training
        low, high = scaling.low_freq, scaling.high_freq
        kept = np.clip((seen - low) / (high - low), 0.0, 1.0)
        turns = turns * (kept + (1.0 - kept) / scaling.factor)
    return jnp.asarray(turns, jnp.float32)
