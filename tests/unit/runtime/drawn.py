"""The numbers that `init_weights` draws, by one program for arrays of all shapes.

`init_weights` outside a program compiles one for each shape, which takes most of the time of a
test with a tiny model.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.runtime.weights import descriptions
from shardwise.runtime.weights.descriptions import ArrayInfo, Tree


def drawn_weights(infos: Tree, seed: int = 0) -> Tree:
    """`init_weights` in fp32, as NumPy arrays, bit for bit."""
    leaves, tree = jax.tree.flatten(infos, is_leaf=lambda x: isinstance(x, ArrayInfo))
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    longest = max(math.prod(info.shape) for info in leaves)
    # A number depends on its key and on its place in the array, not on the array's shape.
    rows = np.asarray(_normal(longest)(keys))
    arrays = [_array(info, row) for info, row in zip(leaves, rows, strict=True)]
    weights: Tree = jax.tree.unflatten(tree, arrays)
    return weights


@functools.cache
def _normal(size: int) -> Any:
    """A row of standard normal numbers for each key."""
    return jax.jit(jax.vmap(lambda key: jax.random.normal(key, (size,), jnp.float32)))


def _array(info: ArrayInfo, row: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if info.init_value is not None:
        return np.full(info.shape, info.init_value, np.float32)
    scale = np.float32(descriptions._fan_in(info.weight) ** -0.5)
    return row[: math.prod(info.shape)].reshape(info.shape) * scale
