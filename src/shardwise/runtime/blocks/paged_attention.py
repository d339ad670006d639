"""Attention of new tokens over sequences in a paged KV cache.

q_BTNH are the chip's queries, k_BTKH and v_BTKH the keys and values of the same tokens. Chips of
`context` compute different tokens (`token_shards`): they gather queries, keys and values, attend to
the keys that they have, and sum the outputs. So do chips of `tensor` that share the keys of a head,
unless all keys of the sequences are fewer numbers than the queries and outputs: then each gathers
the keys, and attends with its own heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.models import Attention
from shardwise.runtime.blocks.positions import RotaryAngles, alibi_slopes, rotary_angles
from shardwise.runtime.blocks.products import BlockProducts
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.serving import kv_cache, paged_cache
from shardwise.runtime.serving.gathered_keys import gathers_keys, whole_sequences
from shardwise.runtime.serving.kv_cache import CacheArray
from shardwise.runtime.serving.paged_cache import NewTokens
from shardwise.runtime.serving.token_shards import of_all, of_chip

Array = jax.Array


@dataclass(slots=True, kw_only=True)
class PagedAttention:
    """Attention of one layer; `attend` writes the new keys and values to `cache` first.

    Args:
        table: sharding rules on the mesh.
        tokens: the new tokens, and where their sequences are in the cache.
        cache: keys "k" and values "v" of the layer's stack; latents "k" alone.
        first_block: index of the layer's first block in its stack.
        dtype: dtype of the cache.
    """

    table: Table
    tokens: NewTokens
    cache: dict[str, CacheArray]
    first_block: Array
    dtype: Any

    def positions(self, n_tokens: int) -> Array:
        """Positions of the chip's new tokens in their sequences, [B, T]."""
        return of_chip(self.tokens.kv_layout, self.tokens.positions_BT)

    def rotary_angles(self, a: Attention, n_tokens: int, seq: int) -> RotaryAngles:
        """Rotary angles of the new tokens, which are not computed again for each head."""
        return lax.optimization_barrier(rotary_angles(a, self.positions(n_tokens), seq))

    def attend(self, block: BlockProducts, a: Attention, q: Array, k: Array, v: Array) -> Array:
        """Compute o_BTNH, on the chips that have the cache of a head."""
        self._write({"k": k, "v": v})
        sinks_N = block.weight("sinks") if a.sinks else None
        slopes_N = self._slopes(a) if a.alibi else None
        return self._attend(a, q, sinks_N, slopes_N)

    def attend_latents(self, a: Attention, q_BTNC: Array, ckv_BTC: Array) -> Array:
        """Compute o_BTNC over cached latents, which are one KV head for all queries."""
        self._write({"k": ckv_BTC[:, :, None]})
        return self._attend(a, q_BTNC)

    def _write(self, new: dict[str, Array]) -> None:
        """Write keys and values of the new tokens."""
        with jax.named_scope("cache.write"):
            narrow = {
                name: jax.tree.map(self._of_all, kv_cache.to_cache(x, self.dtype))
                for name, x in new.items()
            }
            self.cache = paged_cache.write(
                self.cache, narrow, self.tokens, self.first_block, self.table.mesh.platform
            )

    def _attend(
        self, a: Attention, q: Array, sinks_N: Array | None = None, slopes_N: Array | None = None
    ) -> Array:
        """Attention of the chip's queries over the cache."""
        with jax.named_scope("attn.exchange"):
            q_BTNH = self._of_all(q)
            cache, tokens, first_block = self.cache, self.tokens, self.first_block
            if gathers_keys(q_BTNH, cache, tokens):
                cache, tokens = whole_sequences(cache, tokens, first_block)
                first_block = jnp.zeros_like(first_block)
            else:
                q_BTNH = self._of_group(q_BTNH, 2)
                sinks_N = None if sinks_N is None else self._of_group(sinks_N)
                slopes_N = None if slopes_N is None else self._of_group(slopes_N)
        with jax.named_scope("attn.caches"):
            return paged_cache.attend(
                q_BTNH,
                cache,
                tokens,
                first_block,
                a,
                self.table.mesh.platform,
                sinks_N=sinks_N,
                slopes_N=slopes_N,
            )

    def _of_all(self, x: Array) -> Array:
        """Numbers of this chip's tokens, for all tokens of the pass."""
        tokens = self.tokens
        return of_all(tokens.kv_layout, x, tokens.past_B.shape[0], tokens.n_tokens)

    def _of_group(self, x: Array, dim: int = 0) -> Array:
        """An array of this chip's query heads, for all heads that its part of the cache serves."""
        axes = self.tokens.kv_layout.query_axes
        if not axes:
            return x
        return lax.all_gather(x, axes, axis=dim, tiled=True)

    def _slopes(self, a: Attention) -> Array:
        """ALiBi slopes of this chip's heads."""
        roles = self.table.roles("activations", ("N",)).get("N", ())
        return self.table.slice(jnp.asarray(alibi_slopes(a.n_heads), jnp.float32), roles, 0)
