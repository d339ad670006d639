"""Gradient sums in int8 with error feedback: rounding errors are added to the next gradient.

A chip adds to its gradient the residual of the last step, rounds the sum to int8 with one scale per
`GRADIENTS_PER_SCALE` numbers, and sends every other copy its part. Parts are summed in fp32 where
they arrive. If every copy needs the whole sum, it is rounded once more and gathered. Each rounding
error stays on the chip where it occurred (error feedback, as of 1-bit SGD, Interspeech 2014): over
steps all of a gradient arrives, with a delay.

Letters of arrays: N chips of a sum, R rows of S numbers that share a scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.workload import GRADIENTS_PER_SCALE

Array = jax.Array
Cut = tuple[tuple[str, ...], int, int]  # mesh axes, chips over them, dim counted from the last
INT8_MAX = 127


class ErrorFeedback(NamedTuple):
    """A gradient with its residual.

    Attributes:
        gradient: after the sum.
        residual: rounding errors, with the shape before the sum, in the dtype of the state.
    """

    gradient: Array
    residual: Array


def reduce(
    gradient: Array, residual: Array, cuts: Sequence[Cut], axes: tuple[str, ...]
) -> ErrorFeedback:
    """Sum a gradient over copies in int8; return this chip's part in fp32, and the new residual.

    Args:
        gradient: of this chip.
        residual: of the last step; has the same shape.
        cuts: reduce-scatters, one after the other, as in `gradient_sync.UpdatePartition`.
        axes: mesh axes of the all-reduce after them.
    """
    corrected = gradient.astype(jnp.float32) + residual.astype(jnp.float32)
    part, errors = _reduce_scatter(corrected, cuts, axes)
    return ErrorFeedback(part, errors.astype(residual.dtype))


def _reduce_scatter(x: Array, cuts: Sequence[Cut], axes: tuple[str, ...]) -> tuple[Array, Array]:
    """(sum of this chip's part, rounding errors of all parts).

    The errors of its own part include those of the later sums.
    """
    if not cuts:
        if axes:
            return _all_reduce(x, axes)
        return x, jnp.zeros_like(x)
    (names, n, dim_from_last), *later_cuts = cuts
    dim = x.ndim + dim_from_last
    parts = jnp.moveaxis(x.reshape(*x.shape[:dim], n, -1, *x.shape[dim + 1 :]), dim, 0)
    rows_NRS = _rows(parts.reshape(n, -1))
    sum_RS, error_NRS = _exchange(rows_NRS, names)
    part, later_errors = _reduce_scatter(
        _without_padding(sum_RS, parts.shape[1:]), later_cuts, axes
    )
    errors = jax.vmap(lambda rows: _without_padding(rows, parts.shape[1:]))(error_NRS)
    errors = errors.at[lax.axis_index(names)].add(later_errors)
    return part, jnp.moveaxis(errors, 0, dim).reshape(x.shape)


def _all_reduce(x: Array, names: tuple[str, ...]) -> tuple[Array, Array]:
    """(sum of the whole array, rounding errors): each chip sums a part, which all then gather."""
    n = lax.axis_size(names)
    flat = jnp.pad(x.reshape(-1), (0, -x.size % (n * GRADIENTS_PER_SCALE)))
    sum_RS, error_NRS = _exchange(flat.reshape(n, -1, GRADIENTS_PER_SCALE), names)
    values, scale = quantize(sum_RS)
    error_NRS = error_NRS.at[lax.axis_index(names)].add(sum_RS - _dequantize(values, scale))
    gathered = (lax.all_gather(array, names, axis=0, tiled=True) for array in (values, scale))
    whole = _without_padding(_dequantize(*gathered), x.shape)
    return whole, _without_padding(error_NRS, x.shape)


def _exchange(rows_NRS: Array, names: tuple[str, ...]) -> tuple[Array, Array]:
    """(sum_RS of this chip's part of the rows, rounding errors of all rows)."""
    values, scale = quantize(rows_NRS)
    arrived = (
        lax.all_to_all(array, names, split_axis=0, concat_axis=0, tiled=True)
        for array in (values, scale)
    )
    return _dequantize(*arrived).sum(axis=0), rows_NRS - _dequantize(values, scale)


def quantize(x: Array) -> tuple[Array, Array]:
    """(int8 values, fp32 scales) of rows of numbers.

    A row with NaN or inf gets the scale NaN, so that the error reaches every reader.
    """
    scale = jnp.abs(x).max(axis=-1, keepdims=True) / INT8_MAX
    # Explicit, as the largest of several numbers may skip NaN.
    scale = jnp.where(jnp.isfinite(x).all(axis=-1, keepdims=True), scale, jnp.nan)
    return jnp.round(x / jnp.where(scale > 0, scale, 1.0)).astype(jnp.int8), scale


def _dequantize(values: Array, scale: Array) -> Array:
    return values.astype(jnp.float32) * scale


def _rows(flat: Array) -> Array:
    """[N, numbers] -> [N, R, S], padded with zeros."""
    padded = jnp.pad(flat, ((0, 0), (0, -flat.shape[1] % GRADIENTS_PER_SCALE)))
    return padded.reshape(len(flat), -1, GRADIENTS_PER_SCALE)


def _without_padding(rows: Array, shape: tuple[int, ...]) -> Array:
    """Restore the shape of an array from its padded rows."""
    return rows.reshape(-1)[: math.prod(shape)].reshape(shape)
