"""Positions in attention: rotary embeddings, ALiBi slopes, and queries scaled by position.

q_BTNH are queries and k_BTKH keys of the T tokens of a chip, x_BTNH either of the two, positions_BT
the positions of the tokens in their sequences.
"""

from __future__ import annotations

import dataclasses
import functools
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
    """Compute the rotary angles of tokens, in fp32.

    Args:
        positions_BT: positions of the tokens; B is 1 if all sequences have the same positions.
        seq: number of tokens of a whole sequence, on which two kinds of scaling depend.
    """
    rope = a.rotary
    n_dims = rope.dims or (a.mla.d_rope if a.mla else a.d_head)
    gain = rope.scaling.attention_factor if rope.scaling else 1.0
    radians = jnp.asarray(frequencies(rope, n_dims, seq), jnp.float32)
    angles = positions_BT[..., None, None].astype(jnp.float32) * radians
    return RotaryAngles(gain * jnp.cos(angles), gain * jnp.sin(angles))


def rotate(rope: Rope, x_BTNH: Array, angles: RotaryAngles) -> Array:
    """Rotate pairs of dims of each head in fp32; return the dtype of x.

    A pair is two neighboring dims if `rope.interleaved`; otherwise it is dim i of the first half of
    the rotated dims, and dim i of their second half. Dims without an angle are left unchanged.
    """
    return _rotated(rope.interleaved, x_BTNH, angles)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rotated(interleaved: bool, x_BTNH: Array, angles: RotaryAngles) -> Array:
    half = angles.cos.shape[-1]
    wide = x_BTNH.astype(jnp.float32)
    rotated_dims = wide[..., : 2 * half]
    plain_dims = wide[..., 2 * half :]
    if interleaved:
        rotated = _rotate_neighbors(rotated_dims, angles)
        return jnp.concatenate([rotated, plain_dims], axis=-1).astype(x_BTNH.dtype)
    first = rotated_dims[..., :half]
    second = rotated_dims[..., half:]
    halves = [
        first * angles.cos - second * angles.sin,
        second * angles.cos + first * angles.sin,
    ]
    return jnp.concatenate([*halves, plain_dims], axis=-1).astype(x_BTNH.dtype)


def _rotated_forward(
    interleaved: bool, x_BTNH: Array, angles: RotaryAngles
) -> tuple[Array, RotaryAngles]:
    return _rotated(interleaved, x_BTNH, angles), angles


def _rotated_backward(interleaved: bool, angles: RotaryAngles, ct_BTNH: Array) -> tuple[Any, None]:
    """The transpose of a rotation is the rotation by the negative angle.

    Derived automatically it is a sum of padded halves in fp32, which XLA's TPU compiler writes to
    HBM.
    """
    return _rotated(interleaved, ct_BTNH, RotaryAngles(angles.cos, -angles.sin)), None


_rotated.defvjp(_rotated_forward, _rotated_backward)


def _rotate_neighbors(x_BTNH: Array, angles: RotaryAngles) -> Array:
    """Rotate pairs of neighboring dims, without strided reads, which are slow on TPUs."""
    cos, sin = (jnp.repeat(x, 2, axis=-1) for x in angles)
    is_even = jnp.arange(x_BTNH.shape[-1]) % 2 == 0
    neighbor = jnp.where(is_even, -jnp.roll(x_BTNH, -1, axis=-1), jnp.roll(x_BTNH, 1, axis=-1))
    return x_BTNH * cos + neighbor * sin


def frequencies(rope: Rope, n_dims: int, seq: int) -> Floats:
    """Frequency of each rotated pair i, in radians per token: theta^(-2i/n_dims), then scaled.

    Raises:
        ValueError: the kind of scaling is not in `SCALINGS`.
    """
    unscaled = rope.theta ** (-np.arange(0, n_dims, 2) / n_dims)
    if rope.scaling is None:
        return unscaled
    if rope.scaling.kind not in SCALINGS:
        raise ValueError(f"unknown rope scaling: {rope.scaling.kind}")
    return SCALINGS[rope.scaling.kind](rope, rope.scaling, unscaled, seq)


def _linear(rope: Rope, scaling: RopeScaling, unscaled: Floats, seq: int) -> Floats:
    """Divide all frequencies by the same factor (position interpolation)."""
    return unscaled / scaling.factor


def _dynamic(rope: Rope, scaling: RopeScaling, unscaled: Floats, seq: int) -> Floats:
    """Increase theta with the length of the sequence (dynamic NTK)."""
    n_dims = 2 * len(unscaled)
    original_context = scaling.original or seq
    growth = scaling.factor * max(seq, original_context) / original_context - (scaling.factor - 1)
    theta = rope.theta * growth ** (n_dims / (n_dims - 2))
    return frequencies(dataclasses.replace(rope, theta=theta, scaling=None), n_dims, seq)


def _llama3(rope: Rope, scaling: RopeScaling, unscaled: Floats, seq: int) -> Floats:
    """Divide low frequencies by `factor`, keep high ones, and interpolate in between (Llama 3.1).

    Low frequencies rotate fewer than `low_freq` times over the original context, high ones more
    than `high_freq` times.
    """
    rotations = (scaling.original or seq) * unscaled / (2 * math.pi)
    weight = (rotations - scaling.low_freq) / (scaling.high_freq - scaling.low_freq)
    return _interpolate(unscaled, scaling.factor, weight)


def _yarn(rope: Rope, scaling: RopeScaling, unscaled: Floats, seq: int) -> Floats:
    """Interpolate as `_llama3` does, but linearly in the index of the pair.

    Source: YaRN, arXiv 2309.00071, section 3.2.
    """
    n_dims = 2 * len(unscaled)
    original_context = scaling.original or seq

    def pair_index(rotations: float) -> float:
        """Index of the pair that rotates this number of times over the original context."""
        wavelength = original_context / (rotations * 2 * math.pi)
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
    """Divide each frequency by its factor for long or for short sequences (LongRoPE).

    Sequences are long if they exceed the original context.
    """
    is_long = scaling.original is not None and seq > scaling.original
    return unscaled / np.array(scaling.long if is_long else scaling.short)


def _interpolate(unscaled: Floats, factor: float, weight: Floats) -> Floats:
    """Weighted mean of frequencies (weight 1) and frequencies divided by `factor` (weight 0)."""
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
    """ALiBi slope of each head: the decrease of its scores per token of distance.

    For n heads, with n a power of two, they are 2^(-8 i / n) for i = 1 to n. Other numbers of heads
    take the slopes for the next smaller power of two, then every other slope for the next larger.

    Source: Press et al., arXiv 2108.12409, section 3, and its published code.
    """
    n_base = 2 ** int(math.log2(n_heads))
    power_of_two = 2.0 ** (-8 * np.arange(1, n_base + 1) / n_base)
    interleaved = 2.0 ** (-4 * np.arange(1, 2 * (n_heads - n_base), 2) / n_base)
    return np.concatenate([power_of_two, interleaved])


def scale_by_position(temperature: Temperature, q_BTNH: Array, positions_BT: Array) -> Array:
    """Scale queries by a factor that grows with the logarithm of their positions (Llama 4)."""
    steps = jnp.floor((positions_BT.astype(jnp.float32) + 1.0) / temperature.floor)
    factor = 1.0 + temperature.scale * jnp.log1p(steps)
    return (q_BTNH * factor[..., None, None]).astype(q_BTNH.dtype)
