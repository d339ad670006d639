"""Quantized arrays: numbers in 8 bits or fewer, with scales.

In a `Scaled` array all elements along some dims share a scale, chosen so that the largest of them
becomes the largest value of the dtype. An element is its scale times an integer (int8, int4) or
times a float of few bits (fp8).

In a `Grouped` array a group of neighbours, 32 or 128 of them, share a scale and a minimum, so that
an outlier costs the precision of its group alone. An element is its minimum plus its scale times an
unsigned integer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array

MIN_SCALE = 1e-30  # avoids a division by 0 for rows of zeros


class Scaled(NamedTuple):
    """A quantized array: `values` times `scale`; the scale lacks the dims that share it."""

    values: Array
    scale: Array


class Grouped(NamedTuple):
    """A quantized array: `values` times `scale` plus `minimum`.

    Scales and minima have the rank of the values. Where a dim of theirs is shorter, a group has
    several elements along this dim, and each dim is a whole number of groups.
    """

    values: Array
    scale: Array
    minimum: Array


GROUP_SCALE_DTYPE = jnp.float16  # as in GGUF, whose groups fit exactly
UNSIGNED = {"int8": jnp.uint8, "int4": jnp.uint4}


def is_narrow(dtype: Any) -> bool:
    """Whether a dtype has fewer than 16 bits, so that its numbers need a scale."""
    return jnp.dtype(dtype).itemsize < 2


def max_value(dtype: Any) -> float:
    """The largest number of a dtype: 127 for int8, 448 for fp8."""
    if jnp.issubdtype(dtype, jnp.integer):
        return float(jnp.iinfo(dtype).max)
    return float(jnp.finfo(dtype).max)


def quantize(x: Array, dtype: Any, dims: Sequence[int], scale_dtype: Any = jnp.float32) -> Scaled:
    """Quantize `x` to a narrow dtype, with one scale for all elements along `dims`."""
    exact = x.astype(jnp.float32)
    max_abs = jnp.abs(exact).max(axis=tuple(dims), keepdims=True)
    # The scale is rounded to its dtype first, because values are multiples of the rounded scale.
    scale = jnp.maximum(max_abs / max_value(dtype), MIN_SCALE).astype(scale_dtype)
    values = exact / scale.astype(jnp.float32)
    if jnp.issubdtype(dtype, jnp.integer):
        values = jnp.clip(jnp.round(values), -max_value(dtype), max_value(dtype))
    return Scaled(values.astype(dtype), scale.squeeze(tuple(dims)))


def group_extents(shape: Sequence[int], dims: Sequence[int], size: int) -> tuple[int, ...]:
    """Elements of a group along each dim: at most `size` together, and a whole number of groups.

    Args:
        shape: shape of the array, or of its shard on a chip, which then has whole groups.
        dims: the dims along which elements form groups, counted from the last (-1).
        size: the most elements of a group.

    >>> group_extents((576, 1536), (-2,), 32), group_extents((8, 64, 576), (-3, -2), 128)
    ((32, 1), (2, 64, 1))
    """
    extents = [1] * len(shape)
    for dim in sorted(dims, reverse=True):
        extents[dim] = math.gcd(size, shape[dim])
        if extents[dim] < shape[dim]:
            break
        size //= extents[dim]
    return tuple(extents)


def quantize_groups(x: Array, dtype: Any, extents: Sequence[int]) -> Grouped:
    """Quantize `x` to int8 or int4 in groups, with the extents that `group_extents` returns."""
    values_dtype = UNSIGNED[jnp.dtype(dtype).name]
    largest = float(jnp.iinfo(values_dtype).max)
    exact = _split(x.astype(jnp.float32), extents)
    within = tuple(range(1, exact.ndim, 2))
    # Minimum and scale are rounded first, because values are multiples of the rounded scale.
    minimum = exact.min(axis=within, keepdims=True).astype(GROUP_SCALE_DTYPE)
    above = exact - minimum.astype(jnp.float32)
    scale = (above.max(axis=within, keepdims=True) / largest).astype(GROUP_SCALE_DTYPE)
    step = jnp.where(scale > 0, scale.astype(jnp.float32), 1)
    values = jnp.clip(jnp.round(above / step), 0, largest).astype(values_dtype)
    return Grouped(values.reshape(x.shape), scale.squeeze(within), minimum.squeeze(within))


def dequantized(w: Grouped, dtype: Any) -> Array:
    """The numbers of an array in another dtype, computed in fp32."""
    extents = [size // n for size, n in zip(w.values.shape, w.scale.shape, strict=True)]
    within = tuple(range(1, 2 * w.values.ndim, 2))
    scale = jnp.expand_dims(w.scale.astype(jnp.float32), within)
    minimum = jnp.expand_dims(w.minimum.astype(jnp.float32), within)
    exact = _split(w.values.astype(jnp.float32), extents) * scale + minimum
    return exact.reshape(w.values.shape).astype(dtype)


def _split(x: Array, extents: Sequence[int]) -> Array:
    """Divide every dim into groups and the elements of a group: [groups, elements, ..]."""
    shape: list[int] = []
    for size, extent in zip(x.shape, extents, strict=True):
        shape += [size // extent, extent]
    return x.reshape(shape)


def sum_dtype(dtype: Any) -> Any:
    """Dtype of sums of products of narrow numbers; None for that of the numbers."""
    if not is_narrow(dtype):
        return None
    return jnp.int32 if jnp.issubdtype(dtype, jnp.integer) else jnp.float32


def product(letters: str, x: Array | Scaled, w: Scaled, dtype: Any, narrow: Any) -> Array:
    """Einsum of activations and quantized weights.

    Args:
        letters: the subscripts, as `jnp.einsum` takes them, with the weight's dims last in the
            output.
        x: activations; `Scaled`, with one scale per row, if they are quantized already.
        w: weights, with one scale per output column.
        dtype: dtype of the result.
        narrow: dtype to which the activations are quantized, and in which the product is computed;
            None to multiply in their own.
    """
    if narrow is None and not isinstance(x, Scaled):
        # The scale is applied after the product, so that weights are read in their narrow dtype.
        y = jnp.einsum(letters, x, w.values.astype(x.dtype)).astype(dtype)
        return y * w.scale.astype(dtype)
    inputs, output = letters.split("->")
    left, right = inputs.split(",")
    contracted = [i for i, letter in enumerate(left) if letter in right and letter not in output]
    rows = x if isinstance(x, Scaled) else quantize(x, narrow, contracted)
    sums = sum_dtype(narrow)
    y = jnp.einsum(letters, rows.values, w.values.astype(narrow), preferred_element_type=sums)
    row_scale = rows.scale.reshape(rows.scale.shape + (1,) * (len(output) - rows.scale.ndim))
    return (y.astype(jnp.float32) * row_scale * w.scale).astype(dtype)
