"""KV caches: quantization, writes, and attention of a new token.

Letters of arrays: L layers, B sequences of this chip's cache, n prompts of a prefill, K KV heads, G
query heads per KV head, S slots (a slot stores one token of a sequence), T tokens, H head width. A
cache has arrays [L,B,K,S,H] of keys and of values, with scales [L,B,K,S] if they are quantized.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.models import Attention
from shardwise.runtime.serving.kv_layout import KvLayout, slots
from shardwise.runtime.weights.quantized import Scaled, is_narrow, quantize

Array = jax.Array
CacheArray = Array | Scaled

TILE_TOKENS = {5: 32, 4: 128}  # tokens per TPU tile: arrays of 5 dims (8-bit keys), 4 (scales)
SCALE_DTYPE = jnp.float32  # one scale per token and head, that is per about 128 numbers


def to_cache(x: Array, dtype: Any) -> CacheArray:
    """Convert keys or values [.., H] to the dtype of the cache.

    A dtype of 8 bits or fewer gets one scale per token and head.
    """
    if is_narrow(dtype):
        return quantize(x, dtype, (-1,), SCALE_DTYPE)
    return x.astype(dtype)


def write_tokens(
    cache: CacheArray,
    new: CacheArray,
    lengths_B: Array,
    a: Attention,
    context: int,
    layout: KvLayout,
) -> CacheArray:
    """Append keys or values [L,B,K,H] of one token to each sequence of this chip's cache.

    Args:
        cache: keys or values of all layers.
        new: keys or values of the new token of each sequence.
        lengths_B: number of tokens of each sequence before the new one.
        context: maximum number of tokens of a sequence.
        layout: how chips share the cache.
    """
    slot_B = lengths_B % slots(a, context)
    is_local_B = (slot_B % layout.n_parts == layout.part()) & (lengths_B < context)
    local_slot_B = slot_B // layout.n_parts

    def write(target: Array, x: Array) -> Array:
        # Writes whole tiles, one sequence after the other. If it used a scatter or wrote single
        # tokens, the compiler would transpose and copy the whole cache.
        n = _tile(target)

        def write_sequence(b: Array, target: Array) -> Array:
            start = local_slot_B[b] // n * n
            origin: list[Any] = [0, b, 0, start, *(0,) * (target.ndim - 4)]
            shape = (*target.shape[:1], 1, *target.shape[2:3], n, *target.shape[4:])
            old = lax.dynamic_slice(target, origin, shape)
            token = lax.dynamic_slice_in_dim(x, b, 1, 1)[:, :, :, None]
            offset = lax.broadcasted_iota(jnp.int32, old.shape, 3)
            is_written = (offset == local_slot_B[b] - start) & is_local_B[b]
            return lax.dynamic_update_slice(target, jnp.where(is_written, token, old), origin)

        return lax.fori_loop(0, target.shape[1], write_sequence, target)

    return jax.tree.map(write, cache, new)


def _tile(x: Array) -> int:
    """Number of tokens per tile in a TPU's memory; 1 if tiles do not divide the slots of x."""
    n = TILE_TOKENS[x.ndim]
    if x.shape[3] % n:
        return 1
    return n


def write_prompts(
    cache: CacheArray,
    new: CacheArray,
    lengths_n: Array,
    rows_n: Array,
    a: Attention,
    context: int,
    layout: KvLayout,
) -> CacheArray:
    """Write keys or values [L,n,K,T,H] of whole prompts to this chip's cache.

    Args:
        cache: keys or values of all layers.
        new: keys or values of the prompts.
        lengths_n: number of tokens of each prompt.
        rows_n: index of each prompt's sequence in the engine's cache.
        context: maximum number of tokens of a sequence.
        layout: how chips share the cache.
    """

    def write(target: Array, x: Array) -> Array:
        row_n = layout.own_row_indices(rows_n, target.shape[1])
        if layout.n_parts == 1 and x.shape[3] <= target.shape[3]:
            return target.at[:, row_n, :, : x.shape[3]].set(x, mode="drop")
        # For each slot, the last token of the prompt that belongs into it.
        n_slots = slots(a, context)
        slot_S = jnp.arange(target.shape[3]) * layout.n_parts + layout.part()
        last_n1 = lengths_n[:, None] - 1
        token_nS = jnp.clip(last_n1 - (last_n1 - slot_S) % n_slots, 0, x.shape[3] - 1)
        index = token_nS.reshape(1, *token_nS.shape[:1], 1, -1, *(1,) * (x.ndim - 4))
        x = jnp.take_along_axis(x, index, axis=3)
        return target.at[:, row_n].set(x, mode="drop")

    return jax.tree.map(write, cache, new)


def attention_mask(
    lengths_B: Array, n_local_slots: int, a: Attention, context: int, layout: KvLayout
) -> Array:
    """mask_BS: slots of this chip's cache to which the next token of each sequence attends."""
    slot_S = jnp.arange(n_local_slots) * layout.n_parts + layout.part()
    lengths_B1 = lengths_B[:, None]
    if a.window is None:
        return slot_S < lengths_B1
    n_slots = slots(a, context)
    if a.chunked:
        return slot_S < lengths_B1 % n_slots
    return (slot_S < lengths_B1) & ((slot_S != lengths_B1 % n_slots) | (lengths_B1 < n_slots))


def attend(
    q_BKGH: Array,
    keys: CacheArray,
    values: CacheArray,
    k_BKH: Array,
    v_BKH: Array,
    mask_BS: Array,
    includes_new_B: Array,
    scale: float,
    layout: KvLayout,
) -> Array:
    """Compute o_BKGH: attention of one new token over a layer's cache [B,K,S,H] and itself.

    Args:
        q_BKGH: queries of the new tokens.
        keys: keys of the cache.
        values: values of the cache.
        k_BKH: key of the new token.
        v_BKH: value of the new token.
        mask_BS: slots to which the new token attends.
        includes_new_B: whether this chip adds the key and value of the new token, which one of the
            chips that share a sequence does.
        scale: factor of the scores before the softmax.
        layout: how chips share the cache.
    """
    scores_BKGS = scale * _scores(q_BKGH, keys)
    new_BKG = scale * jnp.einsum("bkgh,bkh->bkg", q_BKGH, k_BKH, preferred_element_type=jnp.float32)
    lowest = jnp.finfo(jnp.float32).min
    scores_BKGS = jnp.where(mask_BS[:, None, None], scores_BKGS, lowest)
    new_BKG = jnp.where(includes_new_B[:, None, None], new_BKG, lowest)
    max_BKG = jnp.maximum(scores_BKGS.max(axis=-1), new_BKG)
    if layout.token_axes:
        max_BKG = lax.pmax(max_BKG, layout.token_axes)
    p_BKGS = jnp.exp(scores_BKGS - max_BKG[..., None])
    p_BKG = jnp.exp(new_BKG - max_BKG)
    total_BKG = p_BKGS.sum(axis=-1) + p_BKG
    if layout.token_axes:
        total_BKG = lax.psum(total_BKG, layout.token_axes)
    o_BKGH = _weighted_values(p_BKGS, values, q_BKGH.dtype) + p_BKG[..., None] * v_BKH[:, :, None]
    return (o_BKGH / total_BKG[..., None]).astype(q_BKGH.dtype)


def _scores(q_BKGH: Array, keys: CacheArray) -> Array:
    """Scores s_BKGS in fp32; the scales of quantized keys are applied after the product."""
    k_BKSH = keys.values if isinstance(keys, Scaled) else keys
    s_BKGS = jnp.einsum(
        "bkgh,bksh->bkgs", q_BKGH, k_BKSH.astype(q_BKGH.dtype), preferred_element_type=jnp.float32
    )
    if isinstance(keys, Scaled):
        s_BKGS = s_BKGS * keys.scale[:, :, None].astype(jnp.float32)
    return s_BKGS


def _weighted_values(p_BKGS: Array, values: CacheArray, dtype: Any) -> Array:
    """Sums of values weighted by p_BKGS, in fp32; the weights include the scales of values."""
    v_BKSH = values.values if isinstance(values, Scaled) else values
    if isinstance(values, Scaled):
        p_BKGS = p_BKGS * values.scale[:, :, None].astype(jnp.float32)
    return jnp.einsum(
        "bkgs,bksh->bkgh",
        p_BKGS.astype(dtype),
        v_BKSH.astype(dtype),
        preferred_element_type=jnp.float32,
    )
