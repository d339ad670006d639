"""Quantized arrays: numbers in 8 bits or fewer, with scales.

All elements along some dims share a scale, chosen so that the largest of them becomes the largest
value of the dtype. An element is its scale times an integer (int8, int4) or times a float of few
bits (fp8).
"""

from __future__ import annotations

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


def sum_dtype(dtype: Any) -> Any:
    """Dtype of sums of products of narrow numbers; None for that of the numbers."""
    if not is_narrow(dtype):
        return None
    return jnp.int32 if jnp.issubdtype(dtype, jnp.integer) else jnp.float32


def product(letters: str, x: Array, w: Scaled, narrow: Any) -> Array:
    """Einsum of activations and quantized weights, in the dtype of the activations.

    Args:
        letters: the subscripts, as `jnp.einsum` takes them, with the weight's dims last in the
            output.
        w: weights, with one scale per output column.
        narrow: dtype to which the activations are quantized, with one scale per row, and in which
            the product is computed; None to multiply in the dtype of the activations.
    """
    if narrow is None:
        # The scale is applied after the product, so that weights are read in their narrow dtype.
        y = jnp.einsum(letters, x, w.values.astype(x.dtype))
        return y * w.scale.astype(y.dtype)
    inputs, output = letters.split("->")
    left, right = inputs.split(",")
    contracted = [i for i, letter in enumerate(left) if letter in right and letter not in output]
    rows = quantize(x, narrow, contracted)
    sums = sum_dtype(narrow)
    y = jnp.einsum(letters, rows.values, w.values.astype(narrow), preferred_element_type=sums)
    row_scale = rows.scale.reshape(rows.scale.shape + (1,) * (len(output) - rows.scale.ndim))
    return (y.astype(jnp.float32) * row_scale * w.scale).astype(x.dtype)
