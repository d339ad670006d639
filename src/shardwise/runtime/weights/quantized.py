"""Numbers in 8 bits or fewer with a scale: weights, activations on their way into a product, keys.

A scale belongs to all elements along some dims, and stands for the largest of them: values are
whole steps of it (int8, int4), or floats of few bits (fp8).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array

LEAST = 1e-30  # of a scale: rows of zeros stay zeros


class Scaled(NamedTuple):
    """values times scale; the scale has the dims of the values without those that it covers."""

    values: Array
    scale: Array


def is_narrow(dtype: Any) -> bool:
    """Whether numbers of a dtype are kept with a scale."""
    return jnp.dtype(dtype).itemsize < 2


def largest(dtype: Any) -> float:
    """The largest number of a dtype: 127 of int8, 448 of fp8."""
    limits = jnp.iinfo(dtype) if jnp.issubdtype(dtype, jnp.integer) else jnp.finfo(dtype)
    return float(limits.max)


def scaled(x: Array, dtype: Any, over: Sequence[int], scale_dtype: Any = jnp.float32) -> Scaled:
    """`x` in a narrow dtype, one scale for all elements along the dims `over`."""
    wide = x.astype(jnp.float32)
    most = jnp.abs(wide).max(axis=tuple(over), keepdims=True)
    # Rounded to its own dtype first: values are steps of the scale that is kept.
    scale = jnp.maximum(most / largest(dtype), LEAST).astype(scale_dtype)
    steps = wide / scale.astype(jnp.float32)
    if jnp.issubdtype(dtype, jnp.integer):
        steps = jnp.clip(jnp.round(steps), -largest(dtype), largest(dtype))
    return Scaled(steps.astype(dtype), scale.squeeze(tuple(over)))


def product(letters: str, x: Array, w: Scaled, narrow: Any) -> Array:
    """An einsum of activations and scaled weights, in the dtype of the activations.

    Args:
        letters: as `jnp.einsum` takes them; what the output keeps of the weight comes last in it.
        narrow: dtype in which both sides are multiplied, each row of the activations scaled for
            itself; None to multiply in the dtype of the activations.
    """
    if narrow is None:
        # The scale comes after the product, so that weights are read in their own dtype.
        y = jnp.einsum(letters, x, w.values.astype(x.dtype))
        return y * w.scale.astype(y.dtype)
    inputs, output = letters.split("->")
    left, right = inputs.split(",")
    summed = [i for i, letter in enumerate(left) if letter in right and letter not in output]
    rows = scaled(x, narrow, summed)
    sums = jnp.int32 if jnp.issubdtype(narrow, jnp.integer) else jnp.float32
    y = jnp.einsum(letters, rows.values, w.values.astype(narrow), preferred_element_type=sums)
    kept = rows.scale.reshape(rows.scale.shape + (1,) * (len(output) - rows.scale.ndim))
    return (y.astype(jnp.float32) * kept * w.scale).astype(x.dtype)
