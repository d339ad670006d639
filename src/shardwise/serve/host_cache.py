"""Host memory as the second level of the prefix cache: contents of evicted blocks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from numpy.typing import NDArray

from shardwise.runtime.weights.descriptions import Tree
from shardwise.simulate.host_tier import Copies

Array = jax.Array
Numbers = NDArray[Any]

SIZE_STEP = 4  # ratio of two numbers of copied blocks for which there are programs


class HostCache:
    """Blocks of an engine's cache in host memory; each process has the shards of its devices.

    Args:
        cache: the cache on the devices, of `PagedForward.init_cache`.
        n_pools: number of pools of the engine.
        n_blocks: blocks of each layer in a pool.
        n_host_blocks: blocks of each layer here.
    """

    def __init__(self, cache: list[Tree], n_pools: int, n_blocks: int, n_host_blocks: int) -> None:
        sizes = (n_pools, n_blocks)
        self._n_blocks = n_pools * n_blocks
        self._host: list[list[Numbers]] = []  # shards of each array
        for x in jax.tree.leaves(cache):
            n_layers = x.shape[0] // self._n_blocks
            shards = [shard.data.shape[1:] for shard in x.addressable_shards]
            shapes = [(n_host_blocks, n_layers, *shape) for shape in shards]
            self._host.append([np.empty(shape, x.dtype) for shape in shapes])
        shardings = jax.tree.map(_block_sharding, cache)
        self._gather = jax.jit(functools.partial(_gather, sizes), out_shardings=shardings)
        self._scatter = jax.jit(
            functools.partial(_scatter, sizes),
            donate_argnums=0,
            out_shardings=jax.tree.map(lambda x: x.sharding, cache),
        )

    def copy(self, cache: list[Tree], copies: Copies) -> list[Tree]:
        """Run the copies that precede a pass; return the cache after them."""
        if copies.to_host:
            blocks, host_blocks = zip(*copies.to_host, strict=True)
            read = self._gather(cache, _padded(blocks, 0))
            for host, x in zip(self._host, jax.tree.leaves(read), strict=True):
                for target, shard in zip(host, x.addressable_shards, strict=True):
                    target[list(host_blocks)] = np.asarray(shard.data)[: len(host_blocks)]
        if copies.to_device:
            host_blocks, blocks = zip(*copies.to_device, strict=True)
            rows = _padded(host_blocks, host_blocks[0])
            copied = self._on_devices(cache, rows)
            # The index after the last block is dropped.
            cache = self._scatter(cache, copied, _padded(blocks, self._n_blocks))
        return cache

    def _on_devices(self, cache: list[Tree], rows: Any) -> list[Tree]:
        """Host blocks as arrays with the shardings of the cache."""
        leaves, tree = jax.tree.flatten(cache)
        arrays = []
        for host, x in zip(self._host, leaves, strict=True):
            shape = (len(rows), x.shape[0] // self._n_blocks, *x.shape[1:])
            shards = []
            for part, shard in zip(host, x.addressable_shards, strict=True):
                shards.append(jax.device_put(part[rows], shard.device))
            arrays.append(
                jax.make_array_from_single_device_arrays(shape, _block_sharding(x), shards)
            )
        blocks: list[Tree] = jax.tree.unflatten(tree, arrays)
        return blocks


def _block_sharding(x: Array) -> Sharding:
    """The sharding of blocks [n,L,..] of an array of the cache."""
    if not isinstance(x.sharding, NamedSharding):  # on one device
        return x.sharding
    return NamedSharding(x.sharding.mesh, PartitionSpec(None, None, *x.sharding.spec[1:]))


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
