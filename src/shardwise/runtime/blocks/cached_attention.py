"""Attention of a serving engine: of whole prompts in prefill, and over the KV cache in decode.

q_BTNH are the chip's queries, k_BTKH and v_BTKH the keys and values of the same tokens. Each layer
has its own object of these classes; `attend` sets `cache_update` to what the cache has to store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
from jax import lax

from shardwise.models import Attention
from shardwise.runtime.blocks.attention_core import SequenceAttention
from shardwise.runtime.blocks.positions import RotaryAngles, rotary_angles
from shardwise.runtime.blocks.products import BlockProducts
from shardwise.runtime.serving import kv_cache
from shardwise.runtime.serving.kv_cache import CacheArray
from shardwise.runtime.serving.kv_layout import KvLayout, slots

Array = jax.Array


@dataclass(slots=True, kw_only=True)
class PrefillAttention:
    """Attention among the tokens of whole prompts.

    Args:
        sequences: computes attention over whole sequences.
        dtype: dtype of the cache.
        cache_update: keys "k" and values "v" [B,K,T,H] to write to the cache; set by `attend`.
    """

    sequences: SequenceAttention
    dtype: Any
    cache_update: dict[str, CacheArray] | None = None

    def positions(self, n_tokens: int) -> Array:
        """Positions in the prompt, [1, T]."""
        return self.sequences.positions(n_tokens)

    def rotary_angles(self, a: Attention, n_tokens: int, seq: int) -> RotaryAngles:
        """Rotary angles of the tokens of a prompt."""
        return self.sequences.rotary_angles(a, n_tokens, seq)

    def attend(self, block: BlockProducts, a: Attention, q: Array, k: Array, v: Array) -> Array:
        """Compute o_BTNH of the tokens of each prompt."""
        o_BTNH = self.sequences.attend(block, a, q, k, v)
        with jax.named_scope("attn.prompts"):
            self.cache_update = {
                "k": kv_cache.to_cache(k.swapaxes(1, 2), self.dtype),
                "v": kv_cache.to_cache(v.swapaxes(1, 2), self.dtype),
            }
        return o_BTNH


@dataclass(slots=True, kw_only=True)
class DecodeAttention:
    """Attention of one new token of each sequence over the tokens before it.

    Args:
        cache: keys "k" and values "v" of this layer, [B,K,S,H].
        lengths_B: for each sequence of the engine, the number of tokens in its cache.
        context: maximum number of tokens of a sequence.
        kv_layout: how caches are sharded over chips.
        dtype: dtype of the cache.
        cache_update: key "k" and value "v" [B,K,H] of the new token; set by `attend`.
    """

    cache: dict[str, CacheArray]
    lengths_B: Array
    context: int
    kv_layout: KvLayout
    dtype: Any
    cache_update: dict[str, CacheArray] | None = None

    def positions(self, n_tokens: int) -> Array:
        """Positions of the new tokens in their sequences, [B, 1]."""
        return self.lengths_B[:, None]

    def rotary_angles(self, a: Attention, n_tokens: int, seq: int) -> RotaryAngles:
        """Rotary angles of the new tokens."""
        return rotary_angles(a, self.positions(n_tokens), seq)

    def attend(self, block: BlockProducts, a: Attention, q: Array, k: Array, v: Array) -> Array:
        """Compute o_BTNH with T = 1, on the chips that have the cache of a sequence and head."""
        layout = self.kv_layout
        with jax.named_scope("attn.exchange"):
            q_BTNH = self._send_queries(q)
        with jax.named_scope("attn.caches"):
            k_BKH = layout.own_rows(k)[:, 0]
            v_BKH = layout.own_rows(v)[:, 0]
            B, _, N, H = q_BTNH.shape
            lengths_B = layout.own_rows(self.lengths_B)
            n_local_slots = jax.tree.leaves(self.cache["k"])[0].shape[2]
            o_BKGH = kv_cache.attend(
                q_BTNH.reshape(B, k_BKH.shape[1], N // k_BKH.shape[1], H),
                self.cache["k"],
                self.cache["v"],
                k_BKH,
                v_BKH,
                kv_cache.attention_mask(lengths_B, n_local_slots, a, self.context, layout),
                lengths_B % slots(a, self.context) % layout.n_parts == layout.part(),
                a.score_scale,
                layout,
            )
            self.cache_update = {
                "k": kv_cache.to_cache(k_BKH, self.dtype),
                "v": kv_cache.to_cache(v_BKH, self.dtype),
            }
        with jax.named_scope("attn.exchange"):
            return self._return_outputs(o_BKGH.reshape(B, 1, N, -1))

    def _send_queries(self, q_BTNH: Array) -> Array:
        """Exchange queries: a chip gets those of all heads and sequences that its cache serves."""
        layout = self.kv_layout
        if layout.batch_axes:
            return lax.all_to_all(
                q_BTNH, layout.batch_axes, split_axis=0, concat_axis=2, tiled=True
            )
        if layout.token_axes:
            return lax.all_gather(q_BTNH, layout.token_axes, axis=2, tiled=True)
        return q_BTNH

    def _return_outputs(self, o_BTNH: Array) -> Array:
        """Exchange outputs: a chip gets those of its own heads, for all sequences."""
        layout = self.kv_layout
        if layout.batch_axes:
            return lax.all_to_all(
                o_BTNH, layout.batch_axes, split_axis=2, concat_axis=0, tiled=True
            )
        if layout.token_axes:
            return lax.psum_scatter(o_BTNH, layout.token_axes, scatter_dimension=2, tiled=True)
        return o_BTNH
