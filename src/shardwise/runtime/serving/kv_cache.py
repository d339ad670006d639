"""Caches of keys and values: what a layer holds, what is written, what a new token attends.

L layers, B sequences of this chip's cache, n of a pass of prompts, K heads of keys, G query heads
of each, S slots, T tokens, H head width. An array of a cache is [L,B,K,S,H], with scales [L,B,K,S]
where it is kept in few bits.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.models import Attention
from shardwise.runtime.serving.kv_layout import KvLayout, slots
from shardwise.runtime.weights.quantized import Scaled, is_narrow, scaled

Array = jax.Array
Kept = Array | Scaled

TILE = {5: 32, 4: 128}
SCALES = jnp.bfloat16  # of keys and values: 2 bytes for each head's 128 or so


def kept(x: Array, dtype: Any) -> Kept:
    """Keys or values as a cache holds them: a token and head has its own scale."""
    return scaled(x, dtype, (-1,), SCALES) if is_narrow(dtype) else x.astype(dtype)


def write_tokens(
    cache: Kept, new: Kept, lengths_B: Array, a: Attention, context: int, on: KvLayout
) -> Kept:
    """One token [L,B,K,H] for each sequence of this chip, behind those that it has."""

    slot_B = lengths_B % slots(a, context)
    mine_B = (slot_B % on.parts == on.part()) & (lengths_B < context)
    place_B = slot_B // on.parts

    def put(to: Array, x: Array) -> Array:
        # Whole tiles, one sequence after the other: a scatter, or single tokens, would have the
        # compiler turn the whole cache around, and copy it for that.
        n = _tile(to)

        def one(b: Array, to: Array) -> Array:
            start = place_B[b] // n * n
            at: list[Any] = [0, b, 0, start, *(0,) * (to.ndim - 4)]
            old = lax.dynamic_slice(to, at, (*to.shape[:1], 1, *to.shape[2:3], n, *to.shape[4:]))
            new = lax.dynamic_slice_in_dim(x, b, 1, 1)[:, :, :, None]
            here = (lax.broadcasted_iota(jnp.int32, old.shape, 3) == place_B[b] - start) & mine_B[b]
            return lax.dynamic_update_slice(to, jnp.where(here, new, old), at)

        return lax.fori_loop(0, to.shape[1], one, to)

    return jax.tree.map(put, cache, new)


def _tile(x: Array) -> int:
    """Tokens of a tile of a TPU's memory that holds keys (32 in 8 bits), or scales (128)."""
    n = TILE[x.ndim]
    return n if x.shape[3] % n == 0 else 1


def write_prompts(
    cache: Kept,
    new: Kept,
    lengths_n: Array,
    slots_n: Array,
    a: Attention,
    context: int,
    on: KvLayout,
) -> Kept:
    """Whole prompts [L,n,K,T,H] to the places of their sequences; others stay as they are."""

    def put(to: Array, x: Array) -> Array:
        here_n = on.own_slots(slots_n, to.shape[1])
        if on.parts == 1 and x.shape[3] <= to.shape[3]:
            return to.at[:, here_n, :, : x.shape[3]].set(x, mode="drop")
        # The last tokens of each prompt, each in the slot that is its own.
        n_slots = slots(a, context)
        slot_S = jnp.arange(to.shape[3]) * on.parts + on.part()
        last_n1 = lengths_n[:, None] - 1
        token_nS = jnp.clip(last_n1 - (last_n1 - slot_S) % n_slots, 0, x.shape[3] - 1)
        index = token_nS.reshape(1, *token_nS.shape[:1], 1, -1, *(1,) * (x.ndim - 4))
        x = jnp.take_along_axis(x, index, axis=3)
        return to.at[:, here_n].set(x, mode="drop")

    return jax.tree.map(put, cache, new)


def seen(lengths_B: Array, n_held: int, a: Attention, context: int, on: KvLayout) -> Array:
    """seen_BS: slots whose tokens the next one of each sequence attends, itself left out."""
    slot_S = jnp.arange(n_held) * on.parts + on.part()
    lengths_B1 = lengths_B[:, None]
    if a.window is None:
        return slot_S < lengths_B1
    n_slots = slots(a, context)
    if a.chunked:
        return slot_S < lengths_B1 % n_slots
    return (slot_S < lengths_B1) & ((slot_S != lengths_B1 % n_slots) | (lengths_B1 < n_slots))


def attend(
    q_BKGH: Array,
    keys: Kept,
    values: Kept,
    k_BKH: Array,
    v_BKH: Array,
    seen_BS: Array,
    own_B: Array,
    scale: float,
    on: KvLayout,
) -> Array:
    """o_BKGH of one query head each over the slots of a layer's cache [B,K,S,H] and its own token.

    Args:
        seen_BS: slots that count.
        own_B: whether the new token counts on this chip: once among chips that share a sequence.
    """
    wide = jnp.float32
    scores_BKGS = scale * _against(q_BKGH, keys)
    own_BKG = scale * jnp.einsum("bkgh,bkh->bkg", q_BKGH, k_BKH, preferred_element_type=wide)
    lowest = jnp.finfo(wide).min
    scores_BKGS = jnp.where(seen_BS[:, None, None], scores_BKGS, lowest)
    own_BKG = jnp.where(own_B[:, None, None], own_BKG, lowest)
    most_BKG = jnp.maximum(scores_BKGS.max(axis=-1), own_BKG)
    if on.token_axes:
        most_BKG = lax.pmax(most_BKG, on.token_axes)
    p_BKGS, p_BKG = jnp.exp(scores_BKGS - most_BKG[..., None]), jnp.exp(own_BKG - most_BKG)
    total_BKG = p_BKGS.sum(axis=-1) + p_BKG
    if on.token_axes:
        total_BKG = lax.psum(total_BKG, on.token_axes)
    o_BKGH = _mixed(p_BKGS, values, q_BKGH.dtype) + p_BKG[..., None] * v_BKH[:, :, None]
    return (o_BKGH / total_BKG[..., None]).astype(q_BKGH.dtype)


def _against(q_BKGH: Array, keys: Kept) -> Array:
    """Scores in fp32; the scale of a key comes after its product."""
    k_BKSH = keys.values if isinstance(keys, Scaled) else keys
    s_BKGS = jnp.einsum(
        "bkgh,bksh->bkgs", q_BKGH, k_BKSH.astype(q_BKGH.dtype), preferred_element_type=jnp.float32
    )
    if isinstance(keys, Scaled):
        s_BKGS = s_BKGS * keys.scale[:, :, None].astype(jnp.float32)
    return s_BKGS


def _mixed(p_BKGS: Array, values: Kept, dtype: Any) -> Array:
    """Weighted values in fp32; the scale of a value joins its weight."""
    v_BKSH = values.values if isinstance(values, Scaled) else values
    if isinstance(values, Scaled):
        p_BKGS = p_BKGS * values.scale[:, :, None].astype(jnp.float32)
    return jnp.einsum(
        "bkgs,bksh->bkgh",
        p_BKGS.astype(dtype),
        v_BKSH.astype(dtype),
        preferred_element_type=jnp.float32,
    )
