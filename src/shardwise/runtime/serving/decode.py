"""One token for each sequence of an engine: the decode step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax

from shardwise.models import Layer
from shardwise.runtime.blocks.attention_core import SequenceAttention
from shardwise.runtime.blocks.cached_attention import DecodeAttention
from shardwise.runtime.blocks.head import head
from shardwise.runtime.blocks.model import embed
from shardwise.runtime.dtypes import dtype
from shardwise.runtime.serving import kv_cache as caches
from shardwise.runtime.serving.engine_state import Serving, greedy, paired
from shardwise.runtime.weights.descriptions import Tree

Array = jax.Array


@dataclass(frozen=True, kw_only=True)
class DecodeStep:
    """Every sequence's last token in, its next one out; keys and values of what came in are kept.

    Args:
        serving: the engine.
    """

    serving: Serving

    def shapes(self) -> tuple[Tree, Tree, Tree]:
        """(weights, cache, last tokens) without their numbers."""
        serving = self.serving
        cache = serving.cache_shapes()
        return serving.weight_shapes(), cache, cache["lengths"]

    def function(self) -> Callable[[Tree, Tree, Array], tuple[Tree, Array, Array]]:
        """`(weights, cache, tokens_B) -> (cache, next tokens_B, logits_BV)` over the whole mesh."""
        s = self.serving
        return jax.shard_map(
            self.local,
            mesh=s.table.mesh.jax_mesh,
            in_specs=(s.weight_specs(), s.cache_specs(), s.row_spec),
            out_specs=(s.cache_specs(), s.row_spec, s.logits_spec),
            check_vma=False,
        )

    def local(self, weights: Tree, cache: Tree, tokens_B: Array) -> tuple[Tree, Array, Array]:
        """What one chip does."""
        s, lengths_B = self.serving, cache["lengths"]
        stack, outer = s.stack(1), paired(weights["outer"])

        def core(layer: Layer, held: Tree) -> DecodeAttention:
            return DecodeAttention(
                cache=held,
                lengths_B=lengths_B,
                context=s.job.context,
                kv_layout=s.kv,
                dtype=dtype(s.job.kv),
            )

        x_BTD = embed(stack, SequenceAttention(table=s.table), tokens_B[:, None], outer, {})
        x_BTD, added = s.through(stack, x_BTD, weights, cache["layers"], core)
        logits_BV = head(stack, x_BTD, outer, {})[:, 0]
        with jax.named_scope("cache.write"):
            mine_B = s.kv.own_rows(lengths_B)
            layers = [
                {
                    name: caches.write_tokens(held[name], new[name], mine_B, a, s.job.context, s.kv)
                    for name in held
                }
                for a, held, new in zip(s.attentions, cache["layers"], added, strict=True)
            ]
        cache = {"layers": layers, "lengths": lengths_B + 1}
        return cache, greedy(s.table, logits_BV), logits_BV
