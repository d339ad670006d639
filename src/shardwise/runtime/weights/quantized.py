"""Quantized arrays: numbers in 8 bits or fewer, with scales.

A scale is shared by all elements along some dims, and chosen by the largest of them: values are
integer multiples of it (int8, int4), or floats of few bits (fp8).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array

MIN_SCALE = 1e-30  # rows of zeros stay zeros


class Scaled(NamedTuple):
    """A quantized array: values times scale, which lacks the dims that share a scale."""

    values: Array
    scale: Array


def is_narrow(dtype: Any) -> bool:
    """Return whether numbers of a dtype need a scale."""
    return jnp.dtype(dtype).itemsize < 2


def max_value(dtype: Any) -> float:
    """The largest number of a dtype: 127 of int8, 448 of fp8."""
    if jnp.issubdtype(dtype, jnp.integer):
        return float(jnp.iinfo(dtype).max)
    return float(jnp.finfo(dtype).max)


def quantize(x: Array, dtype: Any, dims: Sequence[int], scale_dtype: Any = jnp.float32) -> Scaled:
    """Quantize `x` to a narrow dtype, with one scale for all elements along `dims`."""
    exact = x.astype(jnp.float32)
    max_abs = jnp.abs(exact).max(axis=tuple(dims), keepdims=True)
    # The scale is rounded to its dtype first: values are multiples of the rounded one.
    scale = jnp.maximum(max_abs / max_value(dtype), MIN_SCALE).astype(scale_dtype)
    values = exact / scale.astype(jnp.float32)
    if jnp.issubdtype(dtype, jnp.integer):
        values = jnp.clip(jnp.round(values), -max_value(dtype), max_value(dtype))
    return Scaled(values.astype(dtype), scale.squeeze(tuple(dims)))


def product(letters: str, x: Array, w: Scaled, narrow: Any) -> Array:
    """An einsum of activations and quantized weights, in the dtype of the activations.

    Args:
        letters: as `jnp.einsum` takes them; dims of the weight come last in the output.
        x: activations.
        w: weights, with a scale for each output.
        narrow: dtype in which both sides are multiplied, with a scale for each row of the
            activations; None to multiply in the dtype of the activations.
    """
    if narrow is None:
        # The scale is applied after the product, so that weights are read in their narrow dtype.
        y = jnp.einsum(letters, x, w.values.astype(x.dtype))
        return y * w.scale.astype(y.dtype)
    inputs, output = letters.split("->")
    left, right = inputs.split(",")
    contracted = [i for i, letter in enumerate(left) if letter in right and letter not in output]
    rows = quantize(x, narrow, contracted)
    sum_dtype = jnp.float32
    if jnp.issubdtype(narrow, jnp.integer):
        sum_dtype = jnp.int32
    y = jnp.einsum(letters, rows.values, w.values.astype(narrow), preferred_element_type=sum_dtype)
    row_scale = rows.scale.reshape(rows.scale.shape + (1,) * (len(output) - rows.scale.ndim))
    return (y.astype(jnp.float32) * row_scale * w.scale).astype(x.dtype)
