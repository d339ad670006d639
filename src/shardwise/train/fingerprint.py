"""A number for the bits of each array, equal on any mesh: what was saved is what was loaded."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardwise.runtime.training import host_offload

Array = jax.Array

_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


@jax.jit
def _sums(leaves: list[Array]) -> Array:
    return jnp.stack([_sum(x) for x in leaves])


def _sum(x: Array) -> Array:
    """Every element's bits, mixed with its place, added up in 32 bits: in any order the same."""
    x = host_offload.on_chip(x)
    bits = lax.bitcast_convert_type(x, _UNSIGNED[x.dtype.itemsize]).astype(jnp.uint32)
    place = jnp.zeros(x.shape, jnp.uint32)
    for dim, size in enumerate(x.shape):
        place = place * jnp.uint32(size % 2**32) + lax.broadcasted_iota(jnp.uint32, x.shape, dim)
    mixed = (bits ^ (place * jnp.uint32(0x9E3779B1))) * jnp.uint32(0x85EBCA6B)
    return jnp.sum((mixed ^ (mixed >> 15)) * jnp.uint32(0xC2B2AE35), dtype=jnp.uint32)


def fingerprints(tree: Any) -> dict[str, int]:
    """Path of each array -> the number of its bits."""
    found = {
        jax.tree_util.keystr(path, simple=True, separator="/"): x
        for path, x in jax.tree.leaves_with_path(tree)
    }
    # Those in host memory come to the chip one at a time: all of them may have no room there.
    away = [name for name, x in found.items() if x.sharding.memory_kind == host_offload.KIND]
    sums: dict[str, Any] = {}
    for names in ([name for name in found if name not in away], *([name] for name in away)):
        sums |= zip(names, np.asarray(_sums([found[name] for name in names])), strict=True)
    return {name: int(sums[name]) for name in found}
