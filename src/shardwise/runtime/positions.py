"""Positions: queries and keys are turned, scores fall with distance, queries grow.

q_BTNH and k_BTKH are queries and keys (x_BTNH either), T tokens of this chip with their
positions_BT in the sequence.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from shardwise.models.numerics import Rope, RopeScaling, Temperature

Array = jax.Array
Turns = NDArray[np.floating[Any]]


def turned(rope: Rope, x_BTNH: Array, positions_BT: Array, seq: int) -> Array:
    """Rotary positions on the dims that have them.

    Args:
        rope: their numbers.
        x_BTNH: queries or keys.
        positions_BT: of their tokens (1 for B where all sequences have the same).
        seq: tokens of a whole sequence, by which two kinds of scaling go.
    """
    radians = jnp.asarray(frequencies(rope, rope.dims or x_BTNH.shape[-1], seq), jnp.float32)
    gain = rope.scaling.attention_factor if rope.scaling else 1.0
    return rotate(x_BTNH, positions_BT, radians, interleaved=rope.interleaved, gain=gain)


def rotate(
    x_BTNH: Array,
    positions_BT: Array,
    frequencies: Array,
    *,
    interleaved: bool = False,
    gain: float = 1.0,
) -> Array:
    """Pairs of dims turned by position x frequency, in fp32, back in the dtype of x.

    Args:
        x_BTNH: queries or keys.
        positions_BT: of their tokens.
        frequencies: radians per token, half as many as dims are turned; what is left of H stays.
        interleaved: pairs are neighbours; otherwise the first half of the turned dims against the
            second.
        gain: cosines and sines are multiplied with it.
    """
    half = frequencies.shape[0]
    angles = positions_BT[..., None].astype(jnp.float32) * frequencies  # B T half
    cos, sin = gain * jnp.cos(angles)[:, :, None], gain * jnp.sin(angles)[:, :, None]
    wide = x_BTNH.astype(jnp.float32)
    both, rest = wide[..., : 2 * half], wide[..., 2 * half :]
    if interleaved:
        first, second = both[..., 0::2], both[..., 1::2]
    else:
        first, second = both[..., :half], both[..., half:]
    turned = [first * cos - second * sin, second * cos + first * sin]
    if interleaved:
        both = jnp.stack(turned, axis=-1).reshape(both.shape)
        return jnp.concatenate([both, rest], axis=-1).astype(x_BTNH.dtype)
    return jnp.concatenate([*turned, rest], axis=-1).astype(x_BTNH.dtype)


def frequencies(rope: Rope, dims: int, seq: int) -> Turns:
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


def _linear(rope: Rope, scaling: RopeScaling, plain: Turns, seq: int) -> Turns:
    return plain / scaling.factor


def _dynamic(rope: Rope, scaling: RopeScaling, plain: Turns, seq: int) -> Turns:
    """A larger theta, from the length of this sequence."""
    dims, original = 2 * len(plain), scaling.original or seq
    longer = scaling.factor * max(seq, original) / original - (scaling.factor - 1)
    theta = rope.theta * longer ** (dims / (dims - 2))
    return frequencies(dataclasses.replace(rope, theta=theta, scaling=None), dims, seq)


def _llama3(rope: Rope, scaling: RopeScaling, plain: Turns, seq: int) -> Turns:
    """Slower by `factor` what turns less than `low_freq` times over the first training, as before
    what turns more than `high_freq` times, and between them between (Llama 3.1)."""
    seen = (scaling.original or seq) * plain / (2 * math.pi)
    kept = (seen - scaling.low_freq) / (scaling.high_freq - scaling.low_freq)
    return _blended(plain, scaling.factor, kept)


def _yarn(rope: Rope, scaling: RopeScaling, plain: Turns, seq: int) -> Turns:
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


def _longrope(rope: Rope, scaling: RopeScaling, plain: Turns, seq: int) -> Turns:
    """Divisors of their own, other ones beyond the length of the first training."""
    longer = scaling.original is not None and seq > scaling.original
    return plain / np.array(scaling.long if longer else scaling.short)


def _blended(plain: Turns, factor: float, kept: Turns) -> Turns:
    kept = np.clip(kept, 0.0, 1.0)
    return plain * (kept + (1.0 - kept) / factor)


SCALINGS: dict[str, Any] = {
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


def slopes(n_heads: int) -> Turns:
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
