"""Host memory as the second level of the prefix cache: contents of evicted blocks."""

from __future__ import annotations

import functools

import jax
import numpy as np

from shardwise.runtime.weights.descriptions import Tree
from shardwise.serve.kv_blocks import gather, padded, scatter
from shardwise.simulate.host_tier import Copies

SIZE_STEP = 4  # ratio of two numbers of copied blocks for which there are programs


class HostCache:
    """Blocks of an engine's cache in host memory.

    Args:
        cache: the cache on the devices, of `PagedForward.init_cache`.
        n_blocks: blocks of each layer in it.
        n_host_blocks: blocks of each layer here.
    """

    def __init__(self, cache: list[Tree], n_blocks: int, n_host_blocks: int) -> None:
        self._n_blocks = n_blocks
        self._host = jax.tree.map(
            lambda x: np.empty((n_host_blocks, x.shape[0] // n_blocks, *x.shape[1:]), x.dtype),
            cache,
        )
        self._gather = jax.jit(functools.partial(gather, n_blocks))
        self._scatter = jax.jit(functools.partial(scatter, n_blocks), donate_argnums=0)

    def copy(self, cache: list[Tree], copies: Copies) -> list[Tree]:
        """Run the copies that precede a pass; return the cache after them."""
        if copies.to_host:
            blocks, host_blocks = zip(*copies.to_host, strict=True)
            read = jax.device_get(self._gather(cache, padded(blocks, 0, SIZE_STEP)))
            for target, x in zip(jax.tree.leaves(self._host), jax.tree.leaves(read), strict=True):
                target[list(host_blocks)] = x[: len(host_blocks)]
        if copies.to_device:
            host_blocks, blocks = zip(*copies.to_device, strict=True)
            rows = padded(host_blocks, host_blocks[0], SIZE_STEP)
            x = jax.tree.map(lambda host: host[rows], self._host)
            # The index after the last block is dropped.
            cache = self._scatter(cache, x, padded(blocks, self._n_blocks, SIZE_STEP))
        return cache
