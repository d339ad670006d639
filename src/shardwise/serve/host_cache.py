"""Host memory as the second level of the prefix cache: contents of evicted blocks."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from numpy.typing import NDArray

from shardwise.runtime.weights.descriptions import Tree
from shardwise.serve.kv_blocks import gather, padded, scatter
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
        self._gather = jax.jit(functools.partial(gather, sizes), out_shardings=shardings)
        self._scatter = jax.jit(
            functools.partial(scatter, sizes),
            donate_argnums=0,
            out_shardings=jax.tree.map(lambda x: x.format, cache),
        )

    def copy(self, cache: list[Tree], copies: Copies) -> list[Tree]:
        """Run the copies that precede a pass; return the cache after them."""
        if copies.to_host:
            blocks, host_blocks = zip(*copies.to_host, strict=True)
            read = self._gather(cache, padded(blocks, 0, SIZE_STEP))
            for host, x in zip(self._host, jax.tree.leaves(read), strict=True):
                for target, shard in zip(host, x.addressable_shards, strict=True):
                    target[list(host_blocks)] = np.asarray(shard.data)[: len(host_blocks)]
        if copies.to_device:
            host_blocks, blocks = zip(*copies.to_device, strict=True)
            rows = padded(host_blocks, host_blocks[0], SIZE_STEP)
            copied = self._on_devices(cache, rows)
            # The index after the last block is dropped.
            cache = self._scatter(cache, copied, padded(blocks, self._n_blocks, SIZE_STEP))
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
