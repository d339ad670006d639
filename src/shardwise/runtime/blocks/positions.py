"""Positions in attention: rotary embeddings, ALiBi slopes, and queries scaled by position.

q_BTNH and k_BTKH are queries and keys (x_BTNH either) of the T tokens of a chip, positions_BT their
positions in the sequence.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from shardwise.models import Attention
from shardwise.models.numerics import Rope, RopeScaling, Temperature

Array = jax.Array
Floats = NDArray[np.floating[Any]]


class RotaryAngles(NamedTuple):
    """Cosines and sines of the rotation of each pair of dims, [B or 1, T, 1, pairs]."""

    cos: Array
    sin: Array


def rotary_angles(a: Attention, positions_BT: Array, seq: int) -> RotaryAngles:
    """Rotary angles of an attention, in fp32.

    Args:
        a: the attention.
        positions_BT: positions of the tokens; B is 1 where all sequences have the same.
        seq: tokens of a whole sequence, on which two kinds of scaling depend.
    """
    rope = a.rotary
    n_dims = rope.dims or (a.mla.d_rope if a.mla else a.d_head)
    gain = rope.scaling.attention_factor if rope.scaling else 1.0
    radians = jnp.asarray(frequencies(rope, n_dims, seq), jnp.float32)
    angles = positions_BT[..., None, None].astype(jnp.float32) * radians
    return RotaryAngles(gain * jnp.cos(angles), gain * jnp.sin(angles))


def rotate(rope: Rope, x_BTNH: Array, angles: RotaryAngles) -> Array:
    """Rotate pairs of dims in fp32 and return the dtype of x; dims without an angle stay.

    A pair is two neighbors where `rope.interleaved`, otherwise one dim of the first half of the
    rotated dims and one of the second.
    """
    half = angles.cos.shape[-1]
    wide = x_BTNH.astype(jnp.float32)
    rotated_dims = wide[..., : 2 * half]
    plain_dims = wide[..., 2 * half :]
    if rope.interleaved:
        rotated = _rotate_neighbors(rotated_dims, angles)
        return jnp.concatenate([rotated, plain_dims], axis=-1).astype(x_BTNH.dtype)
    first = rotated_dims[..., :half]
    second = rotated_dims[..., half:]
    halves = [
        first * angles.cos - second * angles.sin,
        second * angles.cos + first * angles.sin,
    ]
    return jnp.concatenate([*halves, plain_dims], axis=-1).astype(x_BTNH.dtype)


def _rotate_neighbors(x_BTNH: Array, angles: RotaryAngles) -> Array:
    """Rotate pairs of neighbors without strided reads, which are slow on a TPU."""
    cos, sin = (jnp.repeat(x, 2, axis=-1) for x in angles)
    is_even = jnp.arange(x_BTNH.shape[-1]) % 2 == 0
    neighbor = jnp.where(is_even, -jnp.roll(x_BTNH, -1, axis=-1), jnp.roll(x_BTNH, 1, axis=-1))
    return x_BTNH * cos + neighbor * sin


def frequencies(rope: Rope, n_dims: int, seq: int) -> Floats:
    """Radians per token of each rotated pair, theta^(-2i/n_dims), scaled for longer sequences.

    Raises:
        ValueError: a kind of scaling that is not in `SCALINGS`.
    """
    unscaled = rope.theta ** (-np.arange(0, n_dims, 2) / n_dims)
    if rope.scaling is None:
        return unscaled
    if rope.scaling.kind not in SCALINGS:
        raise ValueError(f"unknown rope scaling: {rope.scaling.kind}")
    return SCALINGS[rope.scaling.kind](rope, rope.scaling, unscaled, seq)


def _linear(rope: Rope, scaling: RopeScaling, unscaled: Floats, seq: int) -> Floats:
    return unscaled / scaling.factor


def _dynamic(rope: Rope, scaling: RopeScaling, unscaled: Floats, seq: int) -> Floats:
    """Increase theta by the length of this sequence (dynamic NTK)."""
    n_dims = 2 * len(unscaled)
    original = scaling.original or seq
    growth = scaling.factor * max(seq, original) / original - (scaling.factor - 1)
    theta = rope.theta * growth ** (n_dims / (n_dims - 2))
    return frequencies(dataclasses.replace(rope, theta=theta, scaling=None), n_dims, seq)


def _llama3(rope: Rope, scaling: RopeScaling, unscaled: Floats, seq: int) -> Floats:
    """Divide by `factor` the pairs with fewer than `low_freq` rotations over the original context,
    keep those with more than `high_freq`, and interpolate in between (Llama 3.1)."""
    rotations = (scaling.original or seq) * unscaled / (2 * math.pi)
    weight = (rotations - scaling.low_freq) / (scaling.high_freq - scaling.low_freq)
    return _interpolate(unscaled, scaling.factor, weight)


def _yarn(rope: Rope, scaling: RopeScaling, unscaled: Floats, seq: int) -> Floats:
    """Interpolate as `_llama3` does, linearly in the index of the pair (arXiv 2309.00071,
    section 3.2)."""
    n_dims = 2 * len(unscaled)
    original = scaling.original or seq

    def pair_index(rotations: float) -> float:
        """Index of the pair with this number of rotations over the original context."""
        wavelength = original / (rotations * 2 * math.pi)
        return n_dims * math.log(wavelength) / (2 * math.log(rope.theta))

    first = pair_index(scaling.beta_fast)
    last = pair_index(scaling.beta_slow)
    if scaling.truncate:
        first = math.floor(first)
        last = math.ceil(last)
    first = max(first, 0)
    last = min(last, n_dims - 1)
    weight = 1.0 - (np.arange(n_dims // 2) - first) / max(last - first, 1e-3)
    return _interpolate(unscaled, scaling.factor, weight)


def _longrope(rope: Rope, scaling: RopeScaling, unscaled: Floats, seq: int) -> Floats:
    """Divide each pair by a factor of its own, chosen by whether the sequence exceeds the original
    context."""
    is_long = scaling.original is not None and seq > scaling.original
    return unscaled / np.array(scaling.long if is_long else scaling.short)


def _interpolate(unscaled: Floats, factor: float, weight: Floats) -> Floats:
    """Blend unscaled frequencies (weight 1) with those divided by `factor` (weight 0)."""
    weight = np.clip(weight, 0.0, 1.0)
    return unscaled * (weight + (1.0 - weight) / factor)


SCALINGS: dict[str, Any] = {
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


def alibi_slopes(n_heads: int) -> Floats:
    """ALiBi slope of each head, the decrease of its scores per token: 2^(-8 i / n) for a power of
    two of heads; other numbers take those of the next smaller power, then every other one of the
    next larger power.

    Source: Press et al., arXiv 2108.12409, section 3, and its published code.
    """
    n_base = 2 ** int(math.log2(n_heads))
    power_of_two = 2.0 ** (-8 * np.arange(1, n_base + 1) / n_base)
    interleaved = 2.0 ** (-4 * np.arange(1, 2 * (n_heads - n_base), 2) / n_base)
    return np.concatenate([power_of_two, interleaved])


def scale_by_position(temperature: Temperature, q_BTNH: Array, positions_BT: Array) -> Array:
    """Scale queries by a factor that grows with the logarithm of their position (Llama 4)."""
    steps = jnp.floor((positions_BT.astype(jnp.float32) + 1.0) / temperature.floor)
    factor = 1.0 + temperature.scale * jnp.log1p(steps)
    return (q_BTNH * factor[..., None, None]).astype(q_BTNH.dtype)
