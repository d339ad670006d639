"""Host memory as the second level of the prefix cache: contents of evicted blocks."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from numpy.typing import NDArray

from shardwise.runtime.serving.forward import PagedForward
from shardwise.runtime.weights.descriptions import Tree
from shardwise.serve.kv_blocks import gather, padded, scatter
from shardwise.simulate.host_tier import Copies

Array = jax.Array
Numbers = NDArray[Any]

SIZE_STEP = 4  # ratio of two numbers of copied blocks for which there are programs


class HostCache:
    """Blocks of an engine's cache in host memory; each process has the shards of its devices.

    Args:
        forward: the engine's forward pass.
        cache: its cache on the devices.
        n_host_blocks: blocks of each layer here.
    """

    def __init__(self, forward: PagedForward, cache: list[Tree], n_host_blocks: int) -> None:
        sizes = (forward.engine.n_pools, forward.n_blocks)
        self._n_blocks = math.prod(sizes)
        shardings = forward.block_shardings()
        self._shardings: list[NamedSharding] = jax.tree.leaves(shardings)
        self._host: list[list[Numbers]] = []  # shards of each array
        for x, sharding in zip(jax.tree.leaves(cache), self._shardings, strict=True):
            shape = sharding.shard_shape(self._shape_of(x, n_host_blocks))
            n_shards = len(sharding.addressable_devices)
            self._host.append([np.empty(shape, x.dtype) for _ in range(n_shards)])
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
        for host, x, sharding in zip(self._host, leaves, self._shardings, strict=True):
            shards = []
            for part, shard in zip(host, x.addressable_shards, strict=True):
                shards.append(jax.device_put(part[rows], shard.device))
            shape = self._shape_of(x, len(rows))
            arrays.append(jax.make_array_from_single_device_arrays(shape, sharding, shards))
        blocks: list[Tree] = jax.tree.unflatten(tree, arrays)
        return blocks

    def _shape_of(self, x: Array, n: int) -> tuple[int, ...]:
        """Shape [n,L,..] of n blocks of an array of the cache."""
        return (n, x.shape[0] // self._n_blocks, *x.shape[1:])
