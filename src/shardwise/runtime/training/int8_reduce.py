"""Sums of gradients that travel in int8, with what rounding lost kept for the next step.

A chip adds to its gradient what it lost of the last one, rounds the sum to int8 under one scale for
every `SCALED` numbers, and sends each of the other copies its part. Parts are added up in fp32
where they arrive. Where every copy needs the whole sum, it is rounded once more and gathered. Each
loss stays on the chip where it happened (error feedback, as of 1-bit SGD, Interspeech 2014): over
steps all of a gradient arrives, later than it would.

Letters of arrays: N chips of a sum, R rows of S numbers that share a scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.workload import SCALED

Array = jax.Array
Cut = tuple[tuple[str, ...], int, int]  # mesh axes, chips over them, dim counted from the last
MOST = 127  # of int8, either way


class Owing(NamedTuple):
    """The place of a gradient, and what was lost of those before it.

    Attributes:
        gradient: as a sum leaves it.
        lost: of the shape before the sum, in the dtype in which it is kept.
    """

    gradient: Array
    lost: Array


def reduced(gradient: Array, lost: Array, cuts: Sequence[Cut], axes: tuple[str, ...]) -> Owing:
    """The sum over copies in fp32, of the part that this chip updates, and what is lost now.

    Args:
        gradient: of this chip.
        lost: before; of the same shape.
        cuts: scattered along these, one after the other, as `gradients.Deal` has them.
        axes: along which every chip gets all that is left then.
    """
    wide = gradient.astype(jnp.float32) + lost.astype(jnp.float32)
    found, left = _scattered(wide, cuts, axes)
    return Owing(found, left.astype(lost.dtype))


def _scattered(x: Array, cuts: Sequence[Cut], axes: tuple[str, ...]) -> tuple[Array, Array]:
    """(the sum of a part, what is lost of all parts): of its own part a chip also has what the
    sums after this one lose."""
    if not cuts:
        return _everywhere(x, axes) if axes else (x, jnp.zeros_like(x))
    (names, n, from_last), *rest = cuts
    dim = x.ndim + from_last
    parts = jnp.moveaxis(x.reshape(*x.shape[:dim], n, -1, *x.shape[dim + 1 :]), dim, 0)
    rows_NRS = _rows(parts.reshape(n, -1))
    sum_RS, lost_NRS = _exchanged(rows_NRS, names)
    found, later = _scattered(_flat(sum_RS, parts.shape[1:]), rest, axes)
    lost = jax.vmap(lambda rows: _flat(rows, parts.shape[1:]))(lost_NRS)
    lost = lost.at[lax.axis_index(names)].add(later)
    return found, jnp.moveaxis(lost, 0, dim).reshape(x.shape)


def _everywhere(x: Array, names: tuple[str, ...]) -> tuple[Array, Array]:
    """(the sum of all of an array, what is lost): each chip sums a part, which then all get."""
    n = lax.axis_size(names)
    flat = jnp.pad(x.reshape(-1), (0, -x.size % (n * SCALED)))
    sum_RS, lost_NRS = _exchanged(flat.reshape(n, -1, SCALED), names)
    whole, scale = quantised(sum_RS)
    here = lax.axis_index(names)
    lost_NRS = lost_NRS.at[here].add(sum_RS - _wide(whole, scale))
    both = (lax.all_gather(part, names, axis=0, tiled=True) for part in (whole, scale))
    return _flat(_wide(*both), x.shape), _flat(lost_NRS, x.shape)


def _exchanged(rows_NRS: Array, names: tuple[str, ...]) -> tuple[Array, Array]:
    """(sum_RS of this chip's part of the rows, what rounding lost of all of them)."""
    whole, scale = quantised(rows_NRS)
    arrived = (
        lax.all_to_all(part, names, split_axis=0, concat_axis=0, tiled=True)
        for part in (whole, scale)
    )
    return _wide(*arrived).sum(axis=0), rows_NRS - _wide(whole, scale)


def quantised(x: Array) -> tuple[Array, Array]:
    """(int8, fp32 scales) of rows of numbers; rows with one that is none have scales that are none,
    so that whoever reads them is told."""
    scale = jnp.abs(x).max(axis=-1, keepdims=True) / MOST
    # Said here, as a largest number may pass over those that are none.
    scale = jnp.where(jnp.isfinite(x).all(axis=-1, keepdims=True), scale, jnp.nan)
    return jnp.round(x / jnp.where(scale > 0, scale, 1.0)).astype(jnp.int8), scale


def _wide(whole: Array, scale: Array) -> Array:
    return whole.astype(jnp.float32) * scale


def _rows(flat: Array) -> Array:
    """[N, numbers] -> [N, R, S], filled up with zeros."""
    filled = jnp.pad(flat, ((0, 0), (0, -flat.shape[1] % SCALED)))
    return filled.reshape(len(flat), -1, SCALED)


def _flat(rows: Array, shape: tuple[int, ...]) -> Array:
    """An array of rows again, without what they were filled up with."""
    return rows.reshape(-1)[: math.prod(shape)].reshape(shape)
