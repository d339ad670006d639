"""Blocks of a paged KV cache, which are read from one cache and written to another.

On the way, the blocks of a sequence are one array [n,L,K,O,..] for each array of a stack of layers
(n blocks, L layers, K KV heads, O slots), whatever layout and devices the caches have.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.arrays import ceil_div
from shardwise.errors import BadInput
from shardwise.runtime.serving.forward import PagedForward
from shardwise.runtime.serving.kv_cache import cached_stacks
from shardwise.runtime.weights.descriptions import Tree

Array = jax.Array

SIZE_STEP = 2  # ratio of two numbers of blocks for which there are programs


class BlockTransfer:
    """Reads blocks of sequences from the cache of an engine, and writes others to it.

    Args:
        forward: the engine's forward pass.
    """

    def __init__(self, forward: PagedForward) -> None:
        self._forward = forward
        self._sizes = (forward.engine.n_pools, forward.n_blocks)
        self._shardings = replace(forward, by_layer=False).block_shardings()
        self._read = jax.jit(self._gather, out_shardings=self._shardings)
        formats = forward.cache_formats()
        self._write = jax.jit(self._scatter, donate_argnums=0, out_shardings=formats)

    def shapes(self, n_tokens: int) -> list[Tree]:
        """Shapes and dtypes of the blocks of a sequence."""
        one_block = replace(self._forward, by_layer=False, n_blocks=1)
        n_blocks = int(ceil_div(n_tokens, self._forward.block_tokens))

        def shape_of(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            n_layers = x.shape[0] // self._sizes[0]
            return jax.ShapeDtypeStruct((n_blocks, n_layers, *x.shape[1:]), x.dtype)

        shapes: list[Tree] = jax.tree.map(shape_of, jax.eval_shape(one_block.init_cache))
        return shapes

    def compile(self, cache: list[Tree], table_width: int) -> list[Tree]:
        """Compile the programs for all numbers of blocks; return the unchanged cache.

        Args:
            table_width: number of blocks of the longest sequence.
        """
        n_blocks = 1
        while n_blocks < SIZE_STEP * table_width:
            blocks = self.place(self.read(cache, 0, [0] * n_blocks))
            cache = self.write(cache, 0, [], 0, blocks)
            n_blocks *= SIZE_STEP
        return jax.block_until_ready(cache)

    def read(self, cache: list[Tree], pool: int, table: Sequence[int]) -> list[Tree]:
        """The blocks of a table of a pool, and some more so that there are few programs."""
        rows = pool * self._forward.n_blocks + padded(table, 0, SIZE_STEP)
        blocks: list[Tree] = self._read(cache, rows)
        return blocks

    def place(self, blocks: Any) -> list[Tree]:
        """Move blocks of any cache of this model to the devices of this one, as it lays them out.

        Args:
            blocks: those of `read` or their arrays in a list, on any devices or in host memory.

        Raises:
            BadInput: they are not of a cache of this model and dtype.
        """
        shapes = self.shapes(1)
        expected, structure = jax.tree.flatten(shapes)
        arrays = jax.tree.leaves(blocks)
        if len(arrays) != len(expected):
            raise BadInput(
                f"the KV cache of the prompt has {len(arrays)} arrays, and that of this engine "
                f"{len(expected)}. Serve the same model with the same --kv-dtype."
            )
        stacks = cached_stacks(self._forward.engine.config)
        by_stack = zip(stacks, shapes, strict=True)
        layers = [n for (_, n), of_stack in by_stack for _ in jax.tree.leaves(of_stack)]
        fitted = jax.tree.unflatten(structure, map(self._fitted, arrays, expected, layers))
        placed: list[Tree] = jax.device_put(fitted, self._shardings)
        return placed

    def write(
        self, cache: list[Tree], pool: int, table: Sequence[int], n_tokens: int, blocks: list[Tree]
    ) -> list[Tree]:
        """The cache with the first `n_tokens` tokens of a table replaced by blocks of `place`.

        Args:
            pool: the pool that has the blocks of the table.
        """
        n_pools, n_blocks = self._sizes
        row_n = np.full(jax.tree.leaves(blocks)[0].shape[0], n_pools * n_blocks, np.int32)
        n = int(ceil_div(n_tokens, self._forward.block_tokens))
        row_n[:n] = pool * n_blocks + np.array(table[:n], np.int32)
        written: list[Tree] = self._write(cache, blocks, row_n)
        return written

    def _fitted(self, x: Any, expected: jax.ShapeDtypeStruct, n_layers: int) -> Any:
        """Blocks [n,L,K,O,..] with the slots of this cache's blocks, padded to one of few sizes.

        Args:
            n_layers: layers of the model in the stack; those after them are padding of a pipeline.
        """
        by_token = (expected.shape[2], *expected.shape[4:])
        is_whole = x.shape[1] >= n_layers
        if (x.shape[2], *x.shape[4:]) != by_token or x.dtype != expected.dtype or not is_whole:
            raise BadInput(
                f"the KV cache of the prompt is {x.dtype} [blocks, layers, heads, slots, ..] "
                f"{list(x.shape)}, and that of this engine {expected.dtype} "
                f"{list(expected.shape)}. Serve the same model with the same --kv-dtype."
            )
        numpy: Any = np if isinstance(x, np.ndarray) else jnp
        if x.shape[1] != expected.shape[1]:
            x = _extended(numpy, x[:, :n_layers], 1, expected.shape[1] - n_layers)
        slots = expected.shape[3]
        if x.shape[3] != slots:
            x = numpy.moveaxis(x, 0, 2)  # [L,K,n,O,..]
            x = x.reshape(*x.shape[:2], -1, *x.shape[4:])
            x = _extended(numpy, x, 2, -x.shape[2] % slots)
            x = numpy.moveaxis(x.reshape(*x.shape[:2], -1, slots, *x.shape[3:]), 2, 0)
        return _extended(numpy, x, 0, _next_size(x.shape[0], SIZE_STEP) - x.shape[0])

    def _gather(self, cache: list[Tree], block_n: Array) -> list[Tree]:
        blocks = gather(self._sizes, cache, block_n)
        if not self._forward.by_layer:
            return blocks
        join = functools.partial(jax.tree.map, lambda *xs: jnp.concatenate(xs, axis=1))
        return [join(*layers) for layers in blocks]

    def _scatter(self, cache: list[Any], blocks: list[Any], block_n: Array) -> list[Tree]:
        if self._forward.by_layer:
            stacks = zip(blocks, cache, strict=True)
            blocks = [
                [jax.tree.map(lambda x, i=i: x[:, i : i + 1], stack) for i in range(len(layers))]
                for stack, layers in stacks
            ]
        return scatter(self._sizes, cache, blocks, block_n)


def padded(blocks: Sequence[int], padding: int, step: int) -> Any:
    """Indices of blocks, padded to one of few lengths."""
    return np.array([*blocks, *[padding] * (_next_size(len(blocks), step) - len(blocks))], np.int32)


def gather(sizes: tuple[int, int], cache: list[Tree], block_n: Array) -> list[Tree]:
    """Blocks [n,L,..] of all layers.

    Args:
        sizes: number of pools, and of blocks of each layer in a pool.
        block_n: indices of blocks, those of the first pool first.
    """
    pool_n, in_pool_n = jnp.divmod(block_n, sizes[1])
    blocks: list[Tree]
    blocks = jax.tree.map(lambda x: _by_pool(sizes, x)[pool_n, :, in_pool_n], cache)
    return blocks


def scatter(
    sizes: tuple[int, int], cache: list[Tree], blocks: list[Tree], block_n: Array
) -> list[Tree]:
    """The cache with some blocks [n,L,..] replaced; an index after the last block drops one."""
    pool_n, in_pool_n = jnp.divmod(block_n, sizes[1])

    def scatter_array(x: Array, new: Array) -> Array:
        layers = _by_pool(sizes, x).at[pool_n, :, in_pool_n].set(new, mode="drop")
        return layers.reshape(x.shape)

    written: list[Tree] = jax.tree.map(scatter_array, cache, blocks)
    return written


def _by_pool(sizes: tuple[int, int], x: Array) -> Array:
    """An array of the cache as [pools,L,blocks of a pool,..]."""
    n_pools, n_blocks = sizes
    return x.reshape(n_pools, -1, n_blocks, *x.shape[1:])


def _next_size(n: int, step: int) -> int:
    size = 1
    while size < n:
        size *= step
    return size


def _extended(numpy: Any, x: Any, axis: int, n: int) -> Any:
    """An array with `n` zeros more along an axis."""
    if not n:
        return x
    return numpy.pad(x, [(0, n if i == axis else 0) for i in range(x.ndim)])
