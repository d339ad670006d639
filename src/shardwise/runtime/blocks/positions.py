"""Positions: queries and keys are turned, scores fall with distance, queries grow.

q_BTNH and k_BTKH are queries and keys (x_BTNH either), T tokens of this chip with their
positions_BT in the sequence.
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
Numbers = NDArray[np.floating[Any]]


class Turns(NamedTuple):
    """Cosines and sines of the angles by which pairs of dims are turned, [B or 1, T, 1, pairs]."""

    cos: Array
    sin: Array


def turns(a: Attention, positions_BT: Array, seq: int) -> Turns:
    """The angles of an attention's rotary positions, in fp32.

    Args:
        a: the attention.
        positions_BT: places of tokens (1 for B where all sequences have the same).
        seq: tokens of a whole sequence, by which two kinds of scaling go.
    """
    rope = a.rotary
    dims = rope.dims or (a.mla.d_rope if a.mla else a.d_head)
    gain = rope.scaling.attention_factor if rope.scaling else 1.0
    radians = jnp.asarray(frequencies(rope, dims, seq), jnp.float32)
    angles = positions_BT[..., None, None].astype(jnp.float32) * radians
    return Turns(gain * jnp.cos(angles), gain * jnp.sin(angles))


def turned(rope: Rope, x_BTNH: Array, by: Turns) -> Array:
    """Pairs of dims turned, in fp32, back in the dtype of x; what is left of H stays.

    A pair is two neighbours where `rope` says so; otherwise one of the first half of the turned
    dims and one of the second.
    """
    half = by.cos.shape[-1]
    wide = x_BTNH.astype(jnp.float32)
    both, rest = wide[..., : 2 * half], wide[..., 2 * half :]
    if rope.interleaved:
        both = _neighbours(both, by)
        return jnp.concatenate([both, rest], axis=-1).astype(x_BTNH.dtype)
    first, second = both[..., :half], both[..., half:]
    turned = [first * by.cos - second * by.sin, second * by.cos + first * by.sin]
    return jnp.concatenate([*turned, rest], axis=-1).astype(x_BTNH.dtype)


def _neighbours(x_BTNH: Array, by: Turns) -> Array:
    """Each number and its neighbour turned, where they lie: strided reads are slow on a TPU."""
    cos, sin = (jnp.repeat(x, 2, axis=-1) for x in by)
    even = jnp.arange(x_BTNH.shape[-1]) % 2 == 0
    other = jnp.where(even, -jnp.roll(x_BTNH, -1, axis=-1), jnp.roll(x_BTNH, 1, axis=-1))
    return x_BTNH * cos + other * sin


def frequencies(rope: Rope, dims: int, seq: int) -> Numbers:
    """Radians per token of each turned pair, theta^(-2i/dims), changed for longer sequences.

    Raises:
        ValueError: a kind of scaling that is not in `SCALINGS`.
    """
    plain = rope.theta ** (-np.arange(0, dims, 2) / dims)
    if rope.scaling is None:
        return plain
    if rope.scaling.kind not in SCALINGS:
        raise ValueError(f"scaling {rope.scaling.kind}")
    return SCALINGS[rope.scaling.kind](rope, rope.scaling, plain, seq)


def _linear(rope: Rope, scaling: RopeScaling, plain: Numbers, seq: int) -> Numbers:
    return plain / scaling.factor


def _dynamic(rope: Rope, scaling: RopeScaling, plain: Numbers, seq: int) -> Numbers:
    """A larger theta, from the length of this sequence."""
    dims, original = 2 * len(plain), scaling.original or seq
    longer = scaling.factor * max(seq, original) / original - (scaling.factor - 1)
    theta = rope.theta * longer ** (dims / (dims - 2))
    return frequencies(dataclasses.replace(rope, theta=theta, scaling=None), dims, seq)


def _llama3(rope: Rope, scaling: RopeScaling, plain: Numbers, seq: int) -> Numbers:
    """Slower by `factor` what turns less than `low_freq` times over the first training, as before
    what turns more than `high_freq` times, and between them between (Llama 3.1)."""
    seen = (scaling.original or seq) * plain / (2 * math.pi)
    kept = (seen - scaling.low_freq) / (scaling.high_freq - scaling.low_freq)
    return _blended(plain, scaling.factor, kept)


def _yarn(rope: Rope, scaling: RopeScaling, plain: Numbers, seq: int) -> Numbers:
    """As llama3, blended over the number of the pair (arXiv 2309.00071, section 3.2)."""
    dims, original = 2 * len(plain), scaling.original or seq

    def pair(turns: float) -> float:
        """The pair that turns so often over the first training."""
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    kept = 1.0 - (np.arange(dims // 2) - low) / max(high - low, 1e-3)
    return _blended(plain, scaling.factor, kept)


def _longrope(rope: Rope, scaling: RopeScaling, plain: Numbers, seq: int) -> Numbers:
    """Divisors of their own, other ones beyond the length of the first training."""
    longer = scaling.original is not None and seq > scaling.original
    return plain / np.array(scaling.long if longer else scaling.short)


def _blended(plain: Numbers, factor: float, kept: Numbers) -> Numbers:
    kept = np.clip(kept, 0.0, 1.0)
    return plain * (kept + (1.0 - kept) / factor)


SCALINGS: dict[str, Any] = {
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


def slopes(n_heads: int) -> Numbers:
    """By how much scores of each head fall per token: 2^(-8 i / n) for a power of two of heads;
    of others those of the next smaller power, and every other one of the next larger.

    Source: Press et al., arXiv 2108.12409, section 3, and its published code.
    """
    n = 2 ** int(math.log2(n_heads))
    first = 2.0 ** (-8 * np.arange(1, n + 1) / n)
    between = 2.0 ** (-4 * np.arange(1, 2 * (n_heads - n), 2) / n)
    return np.concatenate([first, between])


def tempered(temperature: Temperature, q_BTNH: Array, positions_BT: Array) -> Array:
    """Queries grown by their position."""
    steps = jnp.floor((positions_BT.astype(jnp.float32) + 1.0) / temperature.floor)
    grown = 1.0 + temperature.scale * jnp.log1p(steps)
    return (q_BTNH * grown[..., None, None]).astype(q_BTNH.dtype)
