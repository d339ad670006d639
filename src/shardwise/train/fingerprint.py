"""Checksums of arrays that do not depend on their sharding, to verify restored checkpoints."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardwise.runtime.training import host_offload

Array = jax.Array

_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}  # bytes per element -> dtype


@jax.jit
def _fingerprints(leaves: list[Array]) -> Array:
    return jnp.stack([_fingerprint(x) for x in leaves])


def _fingerprint(x: Array) -> Array:
    """Sum, modulo 2^32, of a hash of each element's bits and index.

    A sum does not depend on the order of its terms, so every sharding gives the same number.
    """
    x = host_offload.on_chip(x)
    bits = lax.bitcast_convert_type(x, _UNSIGNED[x.dtype.itemsize]).astype(jnp.uint32)
    index = jnp.zeros(x.shape, jnp.uint32)
    for dim, size in enumerate(x.shape):
        index = index * jnp.uint32(size % 2**32) + lax.broadcasted_iota(jnp.uint32, x.shape, dim)
    mixed = (bits ^ (index * jnp.uint32(0x9E3779B1))) * jnp.uint32(0x85EBCA6B)
    return jnp.sum((mixed ^ (mixed >> 15)) * jnp.uint32(0xC2B2AE35), dtype=jnp.uint32)


def fingerprints(tree: Any) -> dict[str, int]:
    """Map the path of each array in the tree to its 32-bit fingerprint."""
    arrays = {
        jax.tree_util.keystr(path, simple=True, separator="/"): x
        for path, x in jax.tree.leaves_with_path(tree)
    }
    # Arrays in host memory are copied to the chip one at a time: HBM may not hold all of them.
    groups: list[list[str]] = [[]]
    for name, array in arrays.items():
        if array.sharding.memory_kind == host_offload.KIND:
            groups.append([name])
        else:
            groups[0].append(name)
    numbers: dict[str, Any] = {}
    for names in groups:
        values = np.asarray(_fingerprints([arrays[name] for name in names]))
        numbers |= zip(names, values, strict=True)
    return {name: int(numbers[name]) for name in arrays}
