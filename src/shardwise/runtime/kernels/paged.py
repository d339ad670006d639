"""Attention to the pages of a KV cache on TPUs, by a kernel in Pallas.

Letters of arrays: P pages of a stack of layers, B sequences, T new tokens of each, M pages of a
block table, K KV heads, G query heads per KV head, O tokens per page, H width of keys, V width of
values. Pages are [P,K,O,H], the scales of quantized ones [P,K,O]. With latent attention values are
the first V numbers of the keys.

JAX's own kernels (`pallas.ops.tpu`) take neither scales per token nor a single 8-bit head per chip,
and do not return the log-sum-exps by which chips that share a sequence combine their outputs.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from shardwise.arrays import ceil_div
from shardwise.models import Attention
from shardwise.runtime.kernels.attention_mask import attention_mask
from shardwise.runtime.weights.quantized import Scaled

Array = jax.Array

LOWEST = -1e30  # a finite score with exponential 0
LANES = 128  # of a tile
BUFFER_BYTES = 4 << 20  # of the pages in VMEM
STEP_TOKENS = 512  # at most, of a step over the keys
QUERY_BYTES = 9 << 19  # of a step over the queries in VMEM: 512 rows of latents in 16 bits
QUERY_ROWS = 512  # at most, (token, head) pairs of a KV head in a step over the queries
DTYPES = (jnp.int8, jnp.bfloat16, jnp.float32)


def supports(pages: Array) -> bool:
    """Whether the kernels take a chip's pages."""
    is_tiled = pages.shape[2] % LANES == 0 and pages.shape[3] % (LANES // 2) == 0
    return is_tiled and pages.dtype in DTYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """Static sizes of the attention kernel.

    Args:
        a: mask, window, scale and softcap.
        n_tokens: new tokens per step over the queries.
        group: query heads per KV head.
        n_pages: pages per step over the keys.
        block_tokens: tokens of a page and of its parts on other chips.
        value_width: V.
        shares_values: whether values are part of the keys.
        is_scaled: whether pages have scales.
    """

    a: Attention
    n_tokens: int
    group: int
    n_pages: int
    block_tokens: int
    value_width: int
    shares_values: bool
    is_scaled: bool


def attend(
    q_BTNH: Array,
    keys: Array | Scaled,
    values: Array | Scaled | None,
    past_B: Array,
    new_B: Array,
    page_BM: Array,
    part: Array,
    a: Attention,
    *,
    block_tokens: int,
    value_width: int,
    interpret: bool = False,
) -> tuple[Array, Array]:
    """Attention of new tokens to the pages of their sequences: return (o_BTNV, lse_BTN) in fp32.

    Args:
        q_BTNH: queries of the new tokens.
        keys: pages with the keys, also of the new tokens.
        values: pages with the values; None if they are part of the keys.
        past_B: number of tokens of each sequence before the new ones.
        new_B: number of new tokens.
        page_BM: index of each page of a sequence.
        part: index of this chip's part of the tokens of each block.
        a: mask, window, scale and softcap.
        block_tokens: tokens of a block, of which the chip's page has a part.
        value_width: V.
    """
    B, T, N, H = q_BTNH.shape
    arrays = jax.tree.leaves((keys, values))
    _, K, O, _ = arrays[0].shape
    G = N // K
    n_tokens = 1 if T == 1 else _query_tokens(T, G, K * 4 * (H + 2 * value_width + 4 * LANES))
    padded_T = int(ceil_div(T, n_tokens) * n_tokens)
    rows = int(ceil_div(n_tokens * G, 16) * 16)
    q_BKRH = jnp.pad(q_BTNH, ((0, 0), (0, padded_T - T), (0, 0), (0, 0)))
    q_BKRH = q_BKRH.reshape(B, padded_T, K, G, H).swapaxes(1, 2).reshape(B, K, padded_T * G, H)
    if T == 1:
        q_BKRH = jnp.pad(q_BKRH, ((0, 0), (0, 0), (0, rows - G), (0, 0)))
    page_bytes = sum(math.prod(x.shape[1:]) * x.dtype.itemsize for x in arrays)
    fitting = min(STEP_TOKENS // O, BUFFER_BYTES // (2 * page_bytes), page_BM.shape[1])
    shape = _Shape(
        a=a,
        n_tokens=n_tokens,
        group=G,
        n_pages=max(1, fitting),
        block_tokens=block_tokens,
        value_width=value_width,
        shares_values=values is None,
        is_scaled=isinstance(keys, Scaled),
    )
    n_steps = padded_T // n_tokens
    by_rows = lambda b, t, *_: (b, 0, t, 0)
    out_rows = n_steps * rows
    o_BKRV, lse_BKRL = pl.pallas_call(
        functools.partial(_attend_kernel, shape=shape, n_arrays=len(arrays)),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(B, n_steps),
            in_specs=[
                pl.BlockSpec((1, K, rows, H), by_rows),
                *[pl.BlockSpec(memory_space=pl.ANY)] * len(arrays),
            ],
            out_specs=[
                pl.BlockSpec((1, K, rows, value_width), by_rows),
                pl.BlockSpec((1, K, rows, LANES), by_rows),
            ],
            scratch_shapes=[
                *(pltpu.VMEM((2, shape.n_pages, *x.shape[1:]), x.dtype) for x in arrays),
                pltpu.VMEM((K, rows, LANES), jnp.float32),
                pltpu.VMEM((K, rows, LANES), jnp.float32),
                pltpu.VMEM((K, rows, value_width), jnp.float32),
                pltpu.SemaphoreType.DMA((2,)),
            ],
        ),
        out_shape=[
            jax.ShapeDtypeStruct((B, K, out_rows, value_width), q_BTNH.dtype),
            jax.ShapeDtypeStruct((B, K, out_rows, LANES), jnp.float32),
        ],
        cost_estimate=_cost(q_BTNH, shape, page_BM.shape[1], page_bytes, O, n_steps),
        name="paged_attention",
        interpret=interpret,
    )(
        past_B.astype(jnp.int32),
        new_B.astype(jnp.int32),
        page_BM.astype(jnp.int32),
        part.reshape(1).astype(jnp.int32),
        q_BKRH,
        *arrays,
    )

    def by_token(x_BKRX: Array) -> Array:
        x_BKRX = x_BKRX[:, :, : padded_T * G]
        x_BKTGX = x_BKRX.reshape(B, K, padded_T, G, -1)
        return x_BKTGX.swapaxes(1, 2).reshape(B, padded_T, N, -1)[:, :T]

    return by_token(o_BKRV), by_token(lse_BKRL[..., :1])[..., 0]


def _query_tokens(n_tokens: int, group: int, row_bytes: int) -> int:
    """New tokens per step over the queries: their rows fill whole tiles.

    Args:
        n_tokens: new tokens of a sequence.
        group: query heads per KV head.
        row_bytes: bytes in VMEM of one query head of each KV head.
    """
    rows = min(QUERY_ROWS, QUERY_BYTES // row_bytes)
    multiple = 16 // math.gcd(16, group)
    fitting = max(1, rows // (group * multiple))
    return multiple * min(fitting, int(ceil_div(n_tokens, multiple)))


def _cost(
    q_BTNH: Array, shape: _Shape, n_blocks: int, page_bytes: int, page_tokens: int, n_steps: int
) -> pl.CostEstimate:
    """FLOPs and bytes of sequences that fill their block tables."""
    B, T, N, H = q_BTNH.shape
    context = n_blocks * shape.block_tokens
    window = shape.a.window or context
    n_keys = min(window, context - (T - 1) / 2)  # of a query
    read: float = min(context, window + shape.n_tokens - 1)  # tokens, of a step over queries
    if T > 1:
        read = min(read, context - T + (T + shape.n_tokens) / 2)
    share = page_tokens / shape.block_tokens
    scores = B * T * N * n_keys * share
    page_reads = B * n_steps * read * share / page_tokens
    other_bytes = q_BTNH.dtype.itemsize * B * T * N * (H + shape.value_width)
    return pl.CostEstimate(
        flops=int(2 * scores * (H + shape.value_width)),
        transcendentals=int(scores),
        bytes_accessed=int(page_reads * page_bytes + other_bytes),
    )


def _attend_kernel(
    past_ref: Any,
    new_ref: Any,
    page_ref: Any,
    part_ref: Any,
    q_ref: Any,
    *refs: Any,
    shape: _Shape,
    n_arrays: int,
) -> None:
    """Attention of some tokens of one sequence, over the keys in steps (FlashAttention)."""
    pages, (o_ref, lse_ref) = refs[:n_arrays], refs[n_arrays : n_arrays + 2]
    buffers = refs[n_arrays + 2 : 2 * n_arrays + 2]
    highest_ref, total_ref, sum_ref, semaphores = refs[2 * n_arrays + 2 :]
    b = pl.program_id(0)
    first = past_ref[b] + pl.program_id(1) * shape.n_tokens
    end = jnp.minimum(first + shape.n_tokens, past_ref[b] + new_ref[b])
    step_tokens = shape.n_pages * shape.block_tokens
    first_step = jnp.zeros((), jnp.int32)
    if shape.a.window is not None:
        first_step = jnp.maximum(first - shape.a.window + 1, 0) // step_tokens
    # Without new tokens there is nothing to read.
    end_step = jnp.where(first < end, (end + step_tokens - 1) // step_tokens, first_step)
    highest_ref[...] = jnp.full(highest_ref.shape, LOWEST, jnp.float32)
    total_ref[...] = jnp.zeros(total_ref.shape, jnp.float32)
    sum_ref[...] = jnp.zeros(sum_ref.shape, jnp.float32)

    def copies(step: Array) -> list[Any]:
        slot = step % 2
        found = []
        for j in range(shape.n_pages):
            block = jnp.minimum(step * shape.n_pages + j, page_ref.shape[1] - 1)
            page = page_ref[b, block]
            for array, buffer in zip(pages, buffers, strict=True):
                copy = pltpu.make_async_copy(
                    array.at[page], buffer.at[slot, j], semaphores.at[slot]
                )
                found.append(copy)
        return found

    def fetch(step: Array) -> None:
        @pl.when(step < end_step)
        def start_all() -> None:
            for copy in copies(step):
                copy.start()

    def step(i: Array, _: None) -> None:
        fetch(i + 1)
        for copy in copies(i):
            copy.wait()
        for head in range(q_ref.shape[1]):
            loaded = [[buffer[i % 2, j, head] if buffer.ndim == 5 else buffer[i % 2, j, head][None]
                       for j in range(shape.n_pages)] for buffer in buffers]  # fmt: skip
            _add_keys(shape, q_ref[0, head], loaded, first, i, part_ref[0],
                      highest_ref.at[head], total_ref.at[head], sum_ref.at[head])  # fmt: skip

    fetch(first_step)
    lax.fori_loop(first_step, end_step, step, None)
    total = jnp.maximum(total_ref[...], jnp.finfo(jnp.float32).tiny)
    o_ref[0] = (sum_ref[...] / total[..., :1]).astype(o_ref.dtype)
    lse_ref[0] = highest_ref[...] + jnp.log(total)


def _add_keys(
    shape: _Shape,
    q_RH: Array,
    loaded: list[list[Array]],
    first: Array,
    step: Array,
    part: Array,
    highest_ref: Any,
    total_ref: Any,
    sum_ref: Any,
) -> None:
    """Merge the softmax over some pages of one head with what was computed before."""
    keys, *rest = loaded
    key_scales = rest.pop(0) if shape.is_scaled else None
    values = [k_OH[:, : shape.value_width] for k_OH in keys] if shape.shares_values else rest.pop(0)
    value_scales = key_scales if shape.shares_values else (rest.pop(0) if rest else None)
    O = keys[0].shape[0]
    query = first + lax.broadcasted_iota(jnp.int32, (q_RH.shape[0], O), 0) // shape.group
    offset = part * O + lax.broadcasted_iota(jnp.int32, (q_RH.shape[0], O), 1)
    scores = []
    for j, k_OH in enumerate(keys):
        s_RO = _product(q_RH, k_OH, 1) * shape.a.score_scale
        if key_scales is not None:
            s_RO = s_RO * key_scales[j].astype(jnp.float32)
        if shape.a.softcap is not None:
            s_RO = shape.a.softcap * jnp.tanh(s_RO / shape.a.softcap)
        key = (step * shape.n_pages + j) * shape.block_tokens + offset
        scores.append(jnp.where(attention_mask(shape.a, query, key), s_RO, LOWEST))
    highest = highest_ref[:, :1]
    for s_RO in scores:
        highest = jnp.maximum(highest, s_RO.max(axis=1, keepdims=True))
    decay = jnp.exp(highest_ref[:, :1] - highest)
    total = total_ref[:, :1] * decay
    added = sum_ref[...] * decay
    for j, s_RO in enumerate(scores):
        p_RO = jnp.exp(s_RO - highest)
        total = total + p_RO.sum(axis=1, keepdims=True)
        if value_scales is not None:
            p_RO = p_RO * value_scales[j].astype(jnp.float32)
        added = added + _product(p_RO.astype(q_RH.dtype), values[j], 0)
    highest_ref[...] = jnp.broadcast_to(highest, highest_ref.shape)
    total_ref[...] = jnp.broadcast_to(total, total_ref.shape)
    sum_ref[...] = added


def _product(x: Array, page: Array, dim: int) -> Array:
    """Product of x with a page of keys (`dim` 1) or values (0), in fp32."""
    if page.dtype != x.dtype:
        page = page.astype(jnp.float32).astype(x.dtype)
    dims = (((1,), (dim,)), ((), ()))
    return lax.dot_general(x, page, dims, preferred_element_type=jnp.float32)
