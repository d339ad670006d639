"""Writing new tokens to the pages of a KV cache on TPUs, in place, by a kernel in Pallas.

Letters of arrays: P pages of a stack of layers, I pages to write, K KV heads, O tokens per page, H
head width. Pages are [P,K,O,H], the scales of quantized ones [P,K,O].
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

Array = jax.Array

SUBLANES = 32  # of a tile of 8-bit numbers, the tallest
BUFFER_BYTES = 4 << 20  # of the pages in VMEM


def write(
    pages: Sequence[Array],
    new: Sequence[Array],
    page_I: Array,
    first_I: Array,
    end_I: Array,
    *,
    interpret: bool = False,
) -> list[Array]:
    """Write tokens first..end - 1 of some pages in place.

    Args:
        pages: arrays [P,K,O,H] or [P,K,O].
        new: for each array the tokens [I,K,O,H] or [I,K,O] of I pages, of which only those to be
            written count; [I,K,1,..] for the same token everywhere.
        page_I: indices of these pages; no page occurs twice.
        first_I: first token to write.
        end_I: the token after the last one; a page with `first_I >= end_I` is left alone.
    """
    n_items = page_I.shape[0]
    n_slots = pages[0].shape[2]
    is_single = new[0].shape[2] == 1
    shapes = [
        _piece(x, SUBLANES if is_single and n_slots % SUBLANES == 0 else n_slots) for x in pages
    ]
    item_bytes = sum(
        jnp.dtype(x.dtype).itemsize * math.prod(s) for x, s in zip(pages, shapes, strict=True)
    )
    group = int(max(1, min(n_items, BUFFER_BYTES // item_bytes)))
    padding = -n_items % group
    scalars = [jnp.pad(x.astype(jnp.int32), (0, padding)) for x in (page_I, first_I, end_I)]
    new = [jnp.pad(x, ((0, padding), *((0, 0),) * (x.ndim - 1))) for x in new]
    n = len(pages)
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    new_specs = [
        pl.BlockSpec((group, *x.shape[1:]), lambda i, *_, ndim=x.ndim: (i, *(0,) * (ndim - 1)))
        for x in new
    ]
    moved_bytes = 2 * n_items * item_bytes + sum(x.size * x.dtype.itemsize for x in new)
    return list(
        pl.pallas_call(
            functools.partial(_write_kernel, n=n, group=group),
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=3,
                grid=((n_items + padding) // group,),
                in_specs=[*new_specs, *[anywhere] * n],
                out_specs=[anywhere] * n,
                scratch_shapes=[
                    *(pltpu.VMEM((group, *s), x.dtype) for x, s in zip(pages, shapes, strict=True)),
                    pltpu.SemaphoreType.DMA((2,)),
                ],
            ),
            out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in pages],
            input_output_aliases={3 + n + i: i for i in range(n)},
            cost_estimate=pl.CostEstimate(flops=0, transcendentals=0, bytes_accessed=moved_bytes),
            name="paged_write",
            interpret=interpret,
        )(*scalars, *new, *pages)
    )


def _piece(pages: Array, n_slots: int) -> tuple[int, ...]:
    """Shape of what is read and written of a page: `n_slots` tokens, or all their scales."""
    if pages.ndim == 3:
        return pages.shape[1:]
    return (pages.shape[1], n_slots, pages.shape[3])


def _write_kernel(
    page_ref: Any, first_ref: Any, end_ref: Any, *refs: Any, n: int, group: int
) -> None:
    """Read the pieces of a group of pages, change their tokens, and write them back."""
    new, pages, buffers = refs[:n], refs[2 * n : 3 * n], refs[3 * n : 4 * n]
    semaphores = refs[4 * n]
    start = pl.program_id(0) * group

    def piece(array: int, i: Array) -> tuple[Any, Array]:
        """The piece of a page in HBM, and its first token."""
        page = pages[array].at[page_ref[start + i]]
        n_slots = buffers[array].shape[2]
        if n_slots == pages[array].shape[2]:
            return page, jnp.zeros((), jnp.int32)
        first = pl.multiple_of(first_ref[start + i] // n_slots * n_slots, n_slots)
        return page.at[:, pl.ds(first, n_slots)], first

    def load(array: int, i: Array) -> Any:
        return pltpu.make_async_copy(piece(array, i)[0], buffers[array].at[i], semaphores.at[0])

    def store(array: int, i: Array) -> Any:
        return pltpu.make_async_copy(buffers[array].at[i], piece(array, i)[0], semaphores.at[1])

    def change(array: int, i: Array) -> None:
        buffer = buffers[array]
        old = _wide(buffer[i])
        token = piece(array, i)[1] + lax.broadcasted_iota(jnp.int32, old.shape, 1)
        is_new = (token >= first_ref[start + i]) & (token < end_ref[start + i])
        buffer[i] = jnp.where(is_new, _wide(new[array][i]), old).astype(buffer.dtype)
        store(array, i).start()

    def each(do: Callable[[int, Array], Any]) -> None:
        def one(i: Array, _: None) -> None:
            @pl.when(first_ref[start + i] < end_ref[start + i])
            def do_all() -> None:
                for array in range(n):
                    do(array, i)

        lax.fori_loop(0, group, one, None)

    each(lambda array, i: load(array, i).start())
    each(lambda array, i: load(array, i).wait())
    each(change)
    each(lambda array, i: store(array, i).wait())


def _wide(x: Array) -> Array:
    """The same numbers in 32 bits."""
    return x.astype(jnp.int32 if x.dtype == jnp.int8 else jnp.float32)
