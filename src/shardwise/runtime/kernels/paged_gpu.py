"""Attention to the pages of a KV cache on GPUs, by a Triton kernel in Pallas.

Letters of arrays: P pages of a stack of layers, B sequences, T new tokens of each, M pages of a
block table, K KV heads, G query heads per KV head, R (token, query head) pairs of a KV head, O
tokens per page, S keys of a step, H width of keys, V width of values, C splits of a sequence. Pages
are [P,K,O,H], the scales of quantized ones [P,K,O]. With latent attention values are the first V
numbers of the keys.

JAX's own kernel (`pallas.ops.gpu.paged_attention`) has the heads of a page far apart in memory, one
new token per sequence, no windows, and does not return log-sum-exps. Splits are those of
Flash-Decoding (Dao et al., 2023): few sequences would leave most of the GPU idle.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from shardwise.arrays import ceil_div
from shardwise.models import Attention
from shardwise.runtime.kernels.attention_mask import attention_mask
from shardwise.runtime.kernels.compute_capability import ADA, is_at_least
from shardwise.runtime.kernels.kernel_cost import KernelCost
from shardwise.runtime.weights.quantized import Scaled

Array = jax.Array

LOWEST = -1e30  # a finite score with exponential 0
STEP_TOKENS = 64  # keys of a step, at least a page
LEAST_WIDTH = 16
LEAST_ROWS, MOST_ROWS = 16, 64  # of the queries of a program; Triton's products have 16 at least
PROGRAMS = 512  # wanted, for the multiprocessors of a large GPU
WARPS, MOST_WARPS, STAGES = 2, 4, 3  # the most for more than the least rows
# Latents are wide: fewer rows and keys fit, whose numbers more warps share.
LATENT_ROWS, LATENT_STEP_TOKENS, LATENT_WARPS, LATENT_STAGES = 32, 32, 8, 2
MOST_WIDTH, MOST_VALUES = 256, 512  # of heads, and of values that are part of the keys


def supports(q_BTNH: Array, pages: Array, value_width: int | None = None) -> bool:
    """Whether the kernel takes these queries and a chip's pages.

    Args:
        value_width: V, if values are part of the keys.
    """
    is_stored = pages.dtype in (q_BTNH.dtype, jnp.int8)
    if pages.dtype == jnp.float8_e4m3fn:
        is_stored = is_at_least(ADA)  # Triton has its conversion since then
    widest = MOST_WIDTH if value_width is None else MOST_VALUES
    parts = _parts(pages.shape[3], value_width)
    sizes_are_powers = all(n & (n - 1) == 0 for n in (pages.shape[2], *parts))
    sizes_are_powers &= all(LEAST_WIDTH <= width <= widest for width in parts)
    is_16_bit = q_BTNH.dtype in (jnp.bfloat16, jnp.float16)
    return bool(is_stored and sizes_are_powers and is_16_bit)


def _parts(width: int, value_width: int | None) -> tuple[int, ...]:
    """Widths of the parts in which keys are read: powers of 2, as Triton's arrays have."""
    if value_width in (None, width):
        return (width,)
    return (value_width, width - value_width)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """Static sizes of the kernel.

    Args:
        a: mask, window, scale and softcap.
        rows: rows R of a program.
        group: query heads per KV head.
        n_pages: pages of a step.
        n_splits: programs that share the keys of a sequence.
        block_tokens: tokens of a page and of its parts on other chips.
        is_scaled: whether pages have scales.
        parts: widths of the parts of keys.
        shares_values: whether values are the first part of the keys.
    """

    a: Attention
    rows: int
    group: int
    n_pages: int
    n_splits: int
    block_tokens: int
    is_scaled: bool
    parts: tuple[int, ...]
    shares_values: bool


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
    """Attention of new tokens to the pages of their sequences: return (o_BTNV, lse_BTN).

    The output is in the dtype of the queries, the log-sum-exps are in fp32.

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
    is_latent = values is None
    is_scaled = isinstance(keys, Scaled)
    arrays = jax.tree.leaves((keys, values))
    _, K, O, _ = arrays[0].shape
    G = N // K
    most_rows = LATENT_ROWS if is_latent else MOST_ROWS
    rows = min(most_rows, max(LEAST_ROWS, 1 << (T * G - 1).bit_length()))
    n_tiles = int(ceil_div(T * G, rows))
    q_BKRH = q_BTNH.reshape(B, T, K, G, H).swapaxes(1, 2).reshape(B, K, T * G, H)
    n_pages = max(1, (LATENT_STEP_TOKENS if is_latent else STEP_TOKENS) // O)
    page_BM = jnp.pad(page_BM, ((0, 0), (0, -page_BM.shape[1] % n_pages)))
    n_steps = page_BM.shape[1] // n_pages
    shape = _Shape(
        a=a,
        rows=rows,
        group=G,
        n_pages=n_pages,
        n_splits=max(1, min(n_steps, PROGRAMS // (B * K * n_tiles))),
        block_tokens=block_tokens,
        is_scaled=is_scaled,
        parts=_parts(H, value_width if is_latent else None),
        shares_values=is_latent,
    )
    warps = WARPS if rows == LEAST_ROWS else MOST_WARPS
    # A page of one head is a row, so that programs of a head read by row index alone.
    pages = [x.reshape(x.shape[0] * K, *x.shape[2:]) for x in arrays]
    outputs = (B, K, shape.n_splits, T * G)
    dtype = q_BTNH.dtype if shape.n_splits == 1 else jnp.float32
    o_BKCRH, lse_BKCR = pl.pallas_call(
        functools.partial(_attend_kernel, shape=shape, n_arrays=len(pages)),
        grid=(B, K, n_tiles * shape.n_splits),
        out_shape=[
            jax.ShapeDtypeStruct((*outputs, value_width), dtype),
            jax.ShapeDtypeStruct(outputs, jnp.float32),
        ],
        compiler_params=plgpu.CompilerParams(
            num_warps=LATENT_WARPS if is_latent else warps,
            num_stages=LATENT_STAGES if is_latent else STAGES,
        ),
        name=f"paged_attention{_cost(q_BTNH, arrays, page_BM.shape[1], a, value_width)}",
        interpret=interpret,
    )(
        past_B.astype(jnp.int32),
        new_B.astype(jnp.int32),
        page_BM.astype(jnp.int32),
        part.astype(jnp.int32).reshape(1),
        q_BKRH,
        *pages,
    )
    o_BKRH, lse_BKR = _joined(o_BKCRH, lse_BKCR)
    o_BKRH = o_BKRH.astype(q_BTNH.dtype)
    o_BTNH = o_BKRH.reshape(B, K, T, G, -1).swapaxes(1, 2).reshape(B, T, N, -1)
    return o_BTNH, lse_BKR.reshape(B, K, T, G).swapaxes(1, 2).reshape(B, T, N)


def _cost(
    q_BTNH: Array, arrays: Sequence[Array], n_pages: int, a: Attention, value_width: int
) -> KernelCost:
    """FLOPs and bytes of sequences that fill their block tables.

    Programs of one head follow each other, and find its keys in the L2 cache after the first.
    """
    B, T, N, H = q_BTNH.shape
    _, K, O, _ = arrays[0].shape
    context = n_pages * O
    window = a.window or context
    n_keys = min(window, context - (T - 1) / 2)  # of a query
    token_bytes = sum(x.dtype.itemsize * math.prod(x.shape[3:]) for x in arrays) * K
    read_bytes = B * min(context, window + T - 1) * token_bytes
    return KernelCost(
        flops=int(2 * B * T * N * n_keys * (H + value_width)),
        hbm_bytes=read_bytes + q_BTNH.dtype.itemsize * B * T * N * (H + value_width),
    )


def _joined(o_BKCRH: Array, lse_BKCR: Array) -> tuple[Array, Array]:
    """Join the outputs of the splits of a sequence."""
    if lse_BKCR.shape[2] == 1:
        return o_BKCRH[:, :, 0], lse_BKCR[:, :, 0]
    lse_BKR = jax.nn.logsumexp(lse_BKCR, axis=2)
    share_BKCR = jnp.exp(lse_BKCR - lse_BKR[:, :, None])
    return (o_BKCRH * share_BKCR[..., None]).sum(axis=2), lse_BKR


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
    """Attention of some rows of one sequence and KV head to one split of its keys, in steps."""
    a, rows = shape.a, shape.rows
    pages, (o_ref, lse_ref) = refs[:n_arrays], refs[n_arrays:]
    b, head = pl.program_id(0), pl.program_id(1)
    tile, split = pl.program_id(2) // shape.n_splits, pl.program_id(2) % shape.n_splits
    past, new = past_ref[b], new_ref[b]
    step_tokens = shape.n_pages * shape.block_tokens
    row = pl.ds(tile * rows, rows)
    starts = [sum(shape.parts[:i]) for i in range(len(shape.parts))]
    columns = [pl.ds(start, width) for start, width in zip(starts, shape.parts, strict=True)]
    # The last tile may have fewer rows.
    is_row_R = tile * rows + jnp.arange(rows) < q_ref.shape[2]
    queries = [
        plgpu.load(
            q_ref.at[b, head, row, part],
            mask=jnp.broadcast_to(is_row_R[:, None], (rows, width)),
            other=0,
        )
        for part, width in zip(columns, shape.parts, strict=True)
    ]
    dtype = queries[0].dtype
    query_R = past + (tile * rows + jnp.arange(rows)) // shape.group
    first = past + tile * rows // shape.group
    end = jnp.minimum(past + ((tile + 1) * rows - 1) // shape.group + 1, past + new)
    first_step = jnp.zeros((), jnp.int32)
    if a.window is not None:
        first_step = jnp.maximum(first - a.window + 1, 0) // step_tokens
    # Without new tokens there is nothing to read.
    n_steps = jnp.where(first < end, pl.cdiv(end, step_tokens) - first_step, 0)
    per_split = pl.cdiv(n_steps, shape.n_splits)
    start = first_step + jnp.minimum(split * per_split, n_steps)
    stop = first_step + jnp.minimum((split + 1) * per_split, n_steps)
    n_heads = pl.num_programs(1)
    slots = pages[0].shape[1]
    offset_O = part_ref[0] * slots + jnp.arange(slots)

    def step(i: Array, partial: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        highest_R, total_R, o_RH = partial
        token_S = jnp.arange(shape.n_pages * slots)
        index_S = page_ref[b, i * shape.n_pages + token_S // slots] * n_heads + head
        slot_S = token_S % slots
        keys = [_read(pages[0], index_S, slot_S, part) for part in columns]
        values = keys[0]
        if not shape.shares_values:
            values = _read(pages[2 if shape.is_scaled else 1], index_S, slot_S, columns[0])
        scores = [_product(q, k, 1) for q, k in zip(queries, keys, strict=True)]
        s_RS = a.score_scale * functools.reduce(jnp.add, scores)
        if shape.is_scaled:
            s_RS = s_RS * pages[1][index_S, slot_S].astype(jnp.float32)[None]
        if a.softcap is not None:
            s_RS = a.softcap * jnp.tanh(s_RS / a.softcap)
        block_n = i * shape.n_pages + jnp.arange(shape.n_pages)
        key_S = (block_n[:, None] * shape.block_tokens + offset_O[None]).reshape(-1)
        mask_RS = attention_mask(a, query_R[:, None], key_S[None])
        s_RS = jnp.where(mask_RS, s_RS, LOWEST)
        new_highest_R = jnp.maximum(highest_R, s_RS.max(axis=1))
        decay_R = jnp.exp(highest_R - new_highest_R)
        p_RS = jnp.exp(s_RS - new_highest_R[:, None])
        total_R = total_R * decay_R + p_RS.sum(axis=1)
        if shape.is_scaled:
            scale_S = pages[-1][index_S, slot_S]  # of the values, or of the keys that hold them
            p_RS = p_RS * scale_S.astype(jnp.float32)[None]
        o_RH = o_RH * decay_R[:, None] + _product(p_RS.astype(dtype), values, 0)
        return new_highest_R, total_R, o_RH

    partial = (
        jnp.full((rows,), LOWEST, jnp.float32),
        jnp.zeros((rows,), jnp.float32),
        jnp.zeros((rows, shape.parts[0]), jnp.float32),
    )
    highest_R, total_R, o_RH = lax.fori_loop(start, stop, step, partial)
    total_R = jnp.maximum(total_R, jnp.finfo(jnp.float32).tiny)
    plgpu.store(
        o_ref.at[b, head, split, row, :],
        (o_RH / total_R[:, None]).astype(o_ref.dtype),
        mask=jnp.broadcast_to(is_row_R[:, None], o_RH.shape),
    )
    lse_R = highest_R + jnp.log(total_R)
    plgpu.store(lse_ref.at[b, head, split, row], lse_R, mask=is_row_R)


def _read(x: Any, index_S: Array, slot_S: Array, part: Any) -> Array:
    """Some numbers of keys or values in slots of rows.

    Slots are read one by one: Triton loads whole pages, reshaped, a sixth slower.
    """
    numbers: Array = x[index_S, slot_S, part]
    return numbers


def _product(x: Array, page_SH: Array, dim: int) -> Array:
    """Product of x with keys (`dim` 1) or values (0), in fp32."""
    page_SH = page_SH.astype(x.dtype)
    return plgpu.dot(x, page_SH.T if dim == 1 else page_SH)
