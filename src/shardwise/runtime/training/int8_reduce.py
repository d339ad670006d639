"""Gradient sums in int8 with error feedback: rounding errors are added to the next gradient.

Each chip adds the residual of the previous step to its gradient, and rounds the result to int8 with
one scale per `GRADIENTS_PER_SCALE` numbers. It sends each chip that has a copy of the weight one
part of the result; that chip sums the parts it receives in fp32. If every copy needs the whole sum,
the sums are rounded once more and gathered. A rounding error stays on the chip where it occurred,
and is added to that chip's gradient in the next step (error feedback, from 1-bit SGD, Interspeech
2014). So no part of a gradient is lost; some of it arrives later.

Letters of arrays: N chips take part in a sum, R rows of S numbers that share a scale.
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
Cut = tuple[tuple[str, ...], int, int]  # an element of `gradient_sync.UpdatePartition.cuts`
INT8_MAX = 127


class ErrorFeedback(NamedTuple):
    """A gradient with the residual of its sum.

    Attributes:
        gradient: the gradient; its sum over copies, once it is summed.
        residual: rounding errors of this chip, in the shape of the gradient before the sum and in
            the dtype of the training state.
    """

    gradient: Array
    residual: Array


def reduce(
    gradient: Array, residual: Array, cuts: Sequence[Cut], axes: tuple[str, ...]
) -> ErrorFeedback:
    """Sum a gradient over copies in int8; return this chip's part in fp32, and the new residual.

    Args:
        gradient: gradient of this chip.
        residual: rounding errors of the previous step, in the shape of the gradient.
        cuts: ReduceScatters, one after the other, as in `gradient_sync.UpdatePartition`.
        axes: mesh axes of the AllReduce after them.
    """
    corrected = gradient.astype(jnp.float32) + residual.astype(jnp.float32)
    part, errors = _reduce_scatter(corrected, cuts, axes)
    return ErrorFeedback(part, errors.astype(residual.dtype))


def _reduce_scatter(x: Array, cuts: Sequence[Cut], axes: tuple[str, ...]) -> tuple[Array, Array]:
    """Sum x over the cuts and then over `axes`: return (this chip's part of the sum, errors).

    The errors have the shape of x. Those of this chip's part include the errors of the later sums.
    """
    if not cuts:
        if axes:
            return _all_reduce(x, axes)
        return x, jnp.zeros_like(x)
    (names, n, dim_from_last), *later_cuts = cuts
    dim = x.ndim + dim_from_last
    parts = jnp.moveaxis(x.reshape(*x.shape[:dim], n, -1, *x.shape[dim + 1 :]), dim, 0)
    rows_NRS = _pad_to_rows(parts.reshape(n, -1))
    sum_RS, error_NRS = _exchange(rows_NRS, names)
    part, later_errors = _reduce_scatter(
        _without_padding(sum_RS, parts.shape[1:]), later_cuts, axes
    )
    errors = jax.vmap(lambda rows: _without_padding(rows, parts.shape[1:]))(error_NRS)
    errors = errors.at[lax.axis_index(names)].add(later_errors)
    return part, jnp.moveaxis(errors, 0, dim).reshape(x.shape)


def _all_reduce(x: Array, names: tuple[str, ...]) -> tuple[Array, Array]:
    """Sum x over chips: return (the whole sum, errors). Each chip sums a part, all gather them."""
    n = lax.axis_size(names)
    flat = jnp.pad(x.reshape(-1), (0, -x.size % (n * GRADIENTS_PER_SCALE)))
    sum_RS, error_NRS = _exchange(flat.reshape(n, -1, GRADIENTS_PER_SCALE), names)
    values, scale = quantize(sum_RS)
    error_NRS = error_NRS.at[lax.axis_index(names)].add(sum_RS - _dequantize(values, scale))
    gathered = (lax.all_gather(array, names, axis=0, tiled=True) for array in (values, scale))
    whole = _without_padding(_dequantize(*gathered), x.shape)
    return whole, _without_padding(error_NRS, x.shape)


def _exchange(rows_NRS: Array, names: tuple[str, ...]) -> tuple[Array, Array]:
    """Sum the rows for each chip on that chip: return (sum_RS of this chip's rows, error_NRS)."""
    values, scale = quantize(rows_NRS)
    arrived = (
        lax.all_to_all(array, names, split_axis=0, concat_axis=0, tiled=True)
        for array in (values, scale)
    )
    return _dequantize(*arrived).sum(axis=0), rows_NRS - _dequantize(values, scale)


def quantize(x: Array) -> tuple[Array, Array]:
    """Quantize rows of numbers (the last dim): return (int8 values, fp32 scale of each row).

    A row with NaN or inf gets the scale NaN, so that it is NaN again when it is dequantized.
    """
    scale = jnp.abs(x).max(axis=-1, keepdims=True) / INT8_MAX
    # Tested explicitly, because `max` may skip NaN.
    scale = jnp.where(jnp.isfinite(x).all(axis=-1, keepdims=True), scale, jnp.nan)
    return jnp.round(x / jnp.where(scale > 0, scale, 1.0)).astype(jnp.int8), scale


def _dequantize(values: Array, scale: Array) -> Array:
    """Undo `quantize`, up to rounding; the result is in fp32."""
    return values.astype(jnp.float32) * scale


def _pad_to_rows(flat: Array) -> Array:
    """Reshape [N, numbers] to [N, R, S], padded with zeros."""
    padded = jnp.pad(flat, ((0, 0), (0, -flat.shape[1] % GRADIENTS_PER_SCALE)))
    return padded.reshape(len(flat), -1, GRADIENTS_PER_SCALE)


def _without_padding(rows: Array, shape: tuple[int, ...]) -> Array:
    """Reshape padded rows to an array of `shape`, without the padding."""
    return rows.reshape(-1)[: math.prod(shape)].reshape(shape)
