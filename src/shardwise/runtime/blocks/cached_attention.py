"""The core of attention in an engine: prompts that leave their keys, tokens that attend a cache.

q_BTNH queries of the chip, k_BTKH v_BTKH its keys and values. A core serves one layer; `written`
is what the layer adds to its cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
from jax import lax

from shardwise.models import Attention
from shardwise.runtime.blocks.attention_core import Sequences
from shardwise.runtime.blocks.positions import Turns, turns
from shardwise.runtime.blocks.products import Block
from shardwise.runtime.serving import kv_cache
from shardwise.runtime.serving.kv_cache import CacheArray
from shardwise.runtime.serving.kv_layout import KvLayout, slots

Array = jax.Array


@dataclass(slots=True, kw_only=True)
class Prompts:
    """Attention among the tokens of whole prompts.

    Args:
        sequences: attention of sequences.
        dtype: of the cache.
    """

    sequences: Sequences
    dtype: Any
    written: dict[str, CacheArray] | None = None

    def positions(self, n_tokens: int) -> Array:
        """Places in the prompt, [1, T]."""
        return self.sequences.positions(n_tokens)

    def turns(self, a: Attention, n_tokens: int, seq: int) -> Turns:
        """Rotary positions of tokens in the prompt."""
        return self.sequences.turns(a, n_tokens, seq)

    def attend(self, block: Block, a: Attention, q: Array, k: Array, v: Array) -> Array:
        """What each token attends; its keys and values are kept as [B,K,T,H]."""
        o_BTNH = self.sequences.attend(block, a, q, k, v)
        with jax.named_scope("attn.prompts"):
            held = {"k": k, "v": v}
            self.written = {
                n: kv_cache.to_cache(x.swapaxes(1, 2), self.dtype) for n, x in held.items()
            }
        return o_BTNH


@dataclass(slots=True, kw_only=True)
class Cached:
    """Attention of one new token of each sequence over the tokens before it.

    Args:
        held: keys and values of this layer, [B,K,S,H].
        lengths_B: tokens that each sequence of the engine has.
        context: the most tokens of a sequence.
        on: how caches lie on chips.
        dtype: of the cache.
    """

    held: dict[str, CacheArray]
    lengths_B: Array
    context: int
    on: KvLayout
    dtype: Any
    written: dict[str, CacheArray] | None = None

    def positions(self, n_tokens: int) -> Array:
        """Places in the sequence of each new token, [B, 1]."""
        return self.lengths_B[:, None]

    def turns(self, a: Attention, n_tokens: int, seq: int) -> Turns:
        """Rotary positions of each new token."""
        return turns(a, self.positions(n_tokens), seq)

    def attend(self, block: Block, a: Attention, q: Array, k: Array, v: Array) -> Array:
        """o_BTNH, by the chips that hold the cache of a sequence and head."""
        on = self.on
        with jax.named_scope("attn.exchange"):
            q_BTNH = self._to_caches(q)
        with jax.named_scope("attn.caches"):
            k_BKH, v_BKH = (on.own_rows(x)[:, 0] for x in (k, v))
            B, _, N, H = q_BTNH.shape
            lengths_B = on.own_rows(self.lengths_B)
            first = jax.tree.leaves(self.held["k"])[0]
            o_BKGH = kv_cache.attend(
                q_BTNH.reshape(B, k_BKH.shape[1], N // k_BKH.shape[1], H),
                self.held["k"],
                self.held["v"],
                k_BKH,
                v_BKH,
                kv_cache.attention_mask(lengths_B, first.shape[2], a, self.context, on),
                lengths_B % slots(a, self.context) % on.parts == on.part(),
                a.score_scale,
                on,
            )
            self.written = {
                n: kv_cache.to_cache(x, self.dtype) for n, x in (("k", k_BKH), ("v", v_BKH))
            }
        with jax.named_scope("attn.exchange"):
            return self._back(o_BKGH.reshape(B, 1, N, -1))

    def _to_caches(self, q_BTNH: Array) -> Array:
        """Queries of all heads that a chip's keys serve, for the sequences that it holds."""
        on = self.on
        if on.batch_axes:
            return lax.all_to_all(q_BTNH, on.batch_axes, split_axis=0, concat_axis=2, tiled=True)
        if on.token_axes:
            return lax.all_gather(q_BTNH, on.token_axes, axis=2, tiled=True)
        return q_BTNH

    def _back(self, o_BTNH: Array) -> Array:
        """Results of the chip's own heads, for all sequences."""
        on = self.on
        if on.batch_axes:
            return lax.all_to_all(o_BTNH, on.batch_axes, split_axis=2, concat_axis=0, tiled=True)
        if on.token_axes:
            return lax.psum_scatter(o_BTNH, on.token_axes, scatter_dimension=2, tiled=True)
        return o_BTNH
