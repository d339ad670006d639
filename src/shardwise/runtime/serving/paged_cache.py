"""A paged KV cache: keys and values of all sequences in blocks, which block tables assign.

Letters of arrays: P blocks of one layer, L layers, B sequences, T new tokens of each, M blocks of a
block table, S slots that are read at a time (a slot stores one token), K KV heads, G query heads
per KV head, H head width. The layers of a stack have one array of keys and one of values,
[L*P,O,K,H] with O slots per block, so that a layer reads and writes it by block index alone.

Source: vLLM's PagedAttention, arXiv 2309.06180, section 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.models import Attention
from shardwise.runtime.blocks.elementwise import softcap
from shardwise.runtime.kernels.attention_mask import attention_mask
from shardwise.runtime.serving.kv_cache import CacheArray
from shardwise.runtime.serving.kv_layout import KvLayout
from shardwise.runtime.weights.quantized import Scaled

Array = jax.Array

SLOTS_PER_STEP = 128  # keys that a step of the loop over a sequence's blocks reads
LOWEST = -1e30  # a finite score with exponential 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTokens:
    """The tokens of a forward pass, and where their sequences are in the cache.

    Args:
        past_B: number of tokens of each sequence that are in the cache already.
        new_B: number of new tokens of each sequence; the rest of T is padding. 0 for an empty row.
        tables_BM: block table of each sequence.
        n_tokens: T.
        block_tokens: tokens per block, on all chips that share a sequence.
        kv_layout: how chips share the cache.
    """

    past_B: Array
    new_B: Array
    tables_BM: Array
    n_tokens: int
    block_tokens: int
    kv_layout: KvLayout

    @property
    def positions_BT(self) -> Array:
        """Positions of the new tokens in their sequences."""
        return self.past_B[:, None] + jnp.arange(self.n_tokens)

    @property
    def local_slots(self) -> int:
        """Slots per block in the cache of one chip."""
        return self.block_tokens // self.kv_layout.n_parts

    def slots(self, first_block: Array, n_slots: int) -> Array:
        """Index of each new token in this chip's [L*P*O] slots; `n_slots` if it is not written.

        Args:
            first_block: index of the layer's first block in its stack.
            n_slots: number of slots of the stack.
        """
        positions_BT = self.positions_BT
        block_BT = jnp.take_along_axis(
            self.tables_BM, positions_BT // self.block_tokens, axis=1, mode="clip"
        )
        offset_BT = positions_BT % self.block_tokens
        local_BT = offset_BT - self.kv_layout.part() * self.local_slots
        is_written = jnp.arange(self.n_tokens) < self.new_B[:, None]
        is_written &= (local_BT >= 0) & (local_BT < self.local_slots)
        slot_BT = (first_block + block_BT) * self.local_slots + local_BT
        return jnp.where(is_written, slot_BT, n_slots)


def write(cache: CacheArray, new: CacheArray, tokens: NewTokens, first_block: Array) -> CacheArray:
    """Write keys or values [B,T,K,H] of new tokens into the cache of a stack."""

    def write_array(target: Array, x: Array) -> Array:
        flat = target.reshape(-1, *target.shape[2:])
        index_BT = tokens.slots(first_block, flat.shape[0])
        flat = flat.at[index_BT].set(x, mode="drop", unique_indices=True)
        return flat.reshape(target.shape)

    return jax.tree.map(write_array, cache, new)


def attend(
    q_BTNH: Array,
    keys: CacheArray,
    values: CacheArray,
    tokens: NewTokens,
    first_block: Array,
    a: Attention,
    *,
    sinks_N: Array | None = None,
    slopes_N: Array | None = None,
) -> Array:
    """Compute o_BTNH of new tokens over their sequences, whose keys and values are in the cache.

    A loop reads some blocks of each sequence at a time, up to the end of the longest sequence, and
    merges their softmax with what it has (FlashAttention, arXiv 2205.14135, section 3.1).

    Args:
        q_BTNH: queries of the new tokens.
        keys: keys of a stack, with those of the new tokens.
        values: values of a stack.
        first_block: index of the layer's first block in its stack.
        a: mask, window, scale and softcap.
        sinks_N: attention sinks, see `kernels.attention.attend`.
        slopes_N: ALiBi slopes.
    """
    B, T, N, _ = q_BTNH.shape
    K = jax.tree.leaves(keys)[0].shape[2]
    q_BTKGH = q_BTNH.reshape(B, T, K, N // K, -1)
    n_blocks = min(tokens.tables_BM.shape[1], max(1, SLOTS_PER_STEP // tokens.block_tokens))
    tables_BM = _padded(tokens.tables_BM, n_blocks)
    layout = tokens.kv_layout
    positions_BT = tokens.positions_BT

    def step(i: Array, partial: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        highest_BKGT, total_BKGT, o_BKGTH = partial
        block_n = i * n_blocks + jnp.arange(n_blocks)
        offset_O = layout.part() * tokens.local_slots + jnp.arange(tokens.local_slots)
        position_S = (block_n[:, None] * tokens.block_tokens + offset_O).reshape(-1)
        block_Bn = first_block + lax.dynamic_slice_in_dim(tables_BM, i * n_blocks, n_blocks, 1)
        k_BSKH = _read(keys, block_Bn)
        v_BSKH = _read(values, block_Bn)
        s_BKGTS = a.score_scale * _scores(q_BTKGH, k_BSKH)
        if slopes_N is not None:
            bias_BT1S = position_S - positions_BT[..., None]
            s_BKGTS += a.score_scale * (
                slopes_N.reshape(K, -1, 1, 1) * bias_BT1S[:, None, None].astype(jnp.float32)
            )
        s_BKGTS = softcap(s_BKGTS, a.softcap)
        mask_BTS = attention_mask(a, positions_BT[..., None], position_S)
        s_BKGTS = jnp.where(mask_BTS[:, None, None], s_BKGTS, LOWEST)
        new_highest = jnp.maximum(highest_BKGT, s_BKGTS.max(axis=-1))
        decay_BKGT = jnp.exp(highest_BKGT - new_highest)
        p_BKGTS = jnp.exp(s_BKGTS - new_highest[..., None])
        total_BKGT = total_BKGT * decay_BKGT + p_BKGTS.sum(axis=-1)
        o_BKGTH = o_BKGTH * decay_BKGT[..., None] + _weighted(p_BKGTS, v_BSKH, q_BTNH.dtype)
        return new_highest, total_BKGT, o_BKGTH

    shape = (B, K, N // K, T)
    d_value = jax.tree.leaves(values)[0].shape[-1]
    start = (
        jnp.full(shape, LOWEST, jnp.float32),
        jnp.zeros(shape, jnp.float32),
        jnp.zeros((*shape, d_value), jnp.float32),
    )
    n_slots = n_blocks * tokens.block_tokens
    n_steps = (jnp.max(tokens.past_B + tokens.new_B) + n_slots - 1) // n_slots
    partial = lax.fori_loop(0, n_steps, step, start)
    o_BKGTH = _merge(partial, layout, sinks_N)
    return o_BKGTH.transpose(0, 3, 1, 2, 4).reshape(B, T, N, d_value).astype(q_BTNH.dtype)


def _merge(partial: tuple[Array, Array, Array], layout: KvLayout, sinks_N: Array | None) -> Array:
    """Finish the softmax of o_BKGTH, over all chips that share the tokens of a sequence."""
    highest_BKGT, total_BKGT, o_BKGTH = partial
    final = highest_BKGT
    if layout.token_axes:
        final = lax.pmax(final, layout.token_axes)
    if sinks_N is not None:
        sinks = sinks_N.astype(jnp.float32).reshape(final.shape[1], -1, 1)
        final = jnp.maximum(final, sinks)
    decay_BKGT = jnp.exp(highest_BKGT - final)
    total_BKGT = total_BKGT * decay_BKGT
    o_BKGTH = o_BKGTH * decay_BKGT[..., None]
    if layout.token_axes:
        total_BKGT, o_BKGTH = lax.psum((total_BKGT, o_BKGTH), layout.token_axes)
    if sinks_N is not None:
        total_BKGT = total_BKGT + jnp.exp(sinks - final)
    return o_BKGTH / jnp.maximum(total_BKGT, jnp.finfo(jnp.float32).tiny)[..., None]


def _padded(tables_BM: Array, multiple: int) -> Array:
    """Block tables with their length padded to a multiple; nothing reads the added blocks."""
    return jnp.pad(tables_BM, ((0, 0), (0, -tables_BM.shape[1] % multiple)))


def _read(cache: CacheArray, block_Bn: Array) -> CacheArray:
    """Keys or values [B,S,K,H] in some blocks of each sequence."""

    def read(x: Array) -> Array:
        pages = x[block_Bn]
        return pages.reshape(pages.shape[0], -1, *pages.shape[3:])

    return jax.tree.map(read, cache)


def _scores(q_BTKGH: Array, keys: CacheArray) -> Array:
    """Scores s_BKGTS in fp32; the scales of quantized keys are applied after the product."""
    k_BSKH = keys.values if isinstance(keys, Scaled) else keys
    s_BKGTS = jnp.einsum(
        "btkgh,bskh->bkgts",
        q_BTKGH,
        k_BSKH.astype(q_BTKGH.dtype),
        preferred_element_type=jnp.float32,
    )
    if isinstance(keys, Scaled):
        s_BKGTS = s_BKGTS * _by_head(keys.scale)
    return s_BKGTS


def _weighted(p_BKGTS: Array, values: CacheArray, dtype: Any) -> Array:
    """Sums o_BKGTH of values weighted by p_BKGTS, in fp32."""
    v_BSKH = values.values if isinstance(values, Scaled) else values
    if isinstance(values, Scaled):
        p_BKGTS = p_BKGTS * _by_head(values.scale)
    return jnp.einsum(
        "bkgts,bskh->bkgth",
        p_BKGTS.astype(dtype),
        v_BSKH.astype(dtype),
        preferred_element_type=jnp.float32,
    )


def _by_head(scale_BSK: Array) -> Array:
    """Scales [B,K,1,1,S] to multiply scores by."""
    return scale_BSK.swapaxes(1, 2)[:, :, None, None].astype(jnp.float32)
