"""What stands between the products of a layer: norms and rotation.

x_BTD the residual or the input of a block, q_BTNH and k_BTKH queries and keys; T are tokens of this
chip with their positions in the sequence.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

Array = jax.Array


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
