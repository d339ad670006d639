"""Host memory as the second level of the prefix cache: contents of evicted blocks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.runtime.weights.descriptions import Tree
from shardwise.simulate.host_tier import Copies

Array = jax.Array

SIZE_STEP = 4  # ratio of two numbers of copied blocks for which there are programs


class HostCache:
    """Blocks of an engine's cache in host memory.

    Args:
        cache: the cache on the devices, of `PagedForward.init_cache`.
        n_pools: number of pools of the engine.
        n_blocks: blocks of each layer in a pool.
        n_host_blocks: blocks of each layer here.
    """

    def __init__(self, cache: list[Tree], n_pools: int, n_blocks: int, n_host_blocks: int) -> None:
        sizes = (n_pools, n_blocks)
        self._n_blocks = n_pools * n_blocks
        self._host = jax.tree.map(
            lambda x: np.empty(
                (n_host_blocks, x.shape[0] // self._n_blocks, *x.shape[1:]), x.dtype
            ),
            cache,
        )
        shardings = jax.tree.map(lambda x: x.sharding, cache)
        self._gather = jax.jit(functools.partial(_gather, sizes))
        self._scatter = jax.jit(
            functools.partial(_scatter, sizes), donate_argnums=0, out_shardings=shardings
        )

    def copy(self, cache: list[Tree], copies: Copies) -> list[Tree]:
        """Run the copies that precede a pass; return the cache after them."""
        if copies.to_host:
            blocks, host_blocks = zip(*copies.to_host, strict=True)
            read = jax.device_get(self._gather(cache, _padded(blocks, 0)))
            for target, x in zip(jax.tree.leaves(self._host), jax.tree.leaves(read), strict=True):
                target[list(host_blocks)] = x[: len(host_blocks)]
        if copies.to_device:
            host_blocks, blocks = zip(*copies.to_device, strict=True)
            rows = _padded(host_blocks, host_blocks[0])
            x = jax.tree.map(lambda host: host[rows], self._host)
            # The index after the last block is dropped.
            cache = self._scatter(cache, x, _padded(blocks, self._n_blocks))
        return cache


def _padded(blocks: Sequence[int], padding: int) -> Any:
    """Indices of blocks, padded to one of few lengths."""
    size = 1
    while size < len(blocks):
        size *= SIZE_STEP
    return np.array([*blocks, *[padding] * (size - len(blocks))], np.int32)


def _by_pool(sizes: tuple[int, int], x: Array) -> Array:
    """An array of the cache as [pools,L,blocks of a pool,..]."""
    n_pools, n_blocks = sizes
    return x.reshape(n_pools, -1, n_blocks, *x.shape[1:])


def _gather(sizes: tuple[int, int], cache: list[Tree], block_n: Array) -> list[Tree]:
    """Blocks [n,L,..] of all layers."""
    pool_n, in_pool_n = jnp.divmod(block_n, sizes[1])
    blocks: list[Tree]
    blocks = jax.tree.map(lambda x: _by_pool(sizes, x)[pool_n, :, in_pool_n], cache)
    return blocks


def _scatter(
    sizes: tuple[int, int], cache: list[Tree], blocks: list[Tree], block_n: Array
) -> list[Tree]:
    """The cache with some blocks [n,L,..] replaced."""
    pool_n, in_pool_n = jnp.divmod(block_n, sizes[1])

    def scatter(x: Array, new: Array) -> Array:
        layers = _by_pool(sizes, x).at[pool_n, :, in_pool_n].set(new, mode="drop")
        return layers.reshape(x.shape)

    written: list[Tree] = jax.tree.map(scatter, cache, blocks)
    return written
