"""Prompts into the cache of an engine: the prefill step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from shardwise.models import Layer
from shardwise.runtime.blocks.attention_core import SequenceAttention
from shardwise.runtime.blocks.cached_attention import PrefillAttention
from shardwise.runtime.blocks.head import head
from shardwise.runtime.blocks.model import embed
from shardwise.runtime.dtypes import dtype
from shardwise.runtime.serving import kv_cache as caches
from shardwise.runtime.serving.engine_state import Serving, greedy, paired
from shardwise.runtime.weights.descriptions import Tree

Array = jax.Array


@dataclass(frozen=True, kw_only=True)
class PrefillStep:
    """Whole prompts in, the first token of each answer out; their keys and values are kept.

    Prompts are a dict: `tokens` [prompt, token], filled up at their ends to one length; `lengths`
    and `slots` [prompt], the place of each in the cache of its engine.

    Args:
        serving: the engine.
        n: prompts that one engine reads at once.
        seq: tokens of the longest.
    """

    serving: Serving
    n: int
    seq: int

    def shapes(self) -> tuple[Tree, Tree, Tree]:
        """(weights, cache, prompts) without their numbers."""
        serving, rows = self.serving, self.n * self.serving.engines
        one = NamedSharding(serving.table.mesh.jax_mesh, serving.row_spec)
        each = jax.ShapeDtypeStruct((rows,), jnp.int32, sharding=one)
        tokens = jax.ShapeDtypeStruct((rows, self.seq), jnp.int32, sharding=one)
        prompts = {"tokens": tokens, "lengths": each, "slots": each}
        return serving.weight_shapes(), serving.cache_shapes(), prompts

    def function(self) -> Callable[[Tree, Tree, Tree], tuple[Tree, Array, Array]]:
        """`(weights, cache, prompts) -> (cache, first tokens, logits of the last tokens)`."""
        s = self.serving
        rows = dict.fromkeys(("tokens", "lengths", "slots"), s.row_spec)
        return jax.shard_map(
            self.local,
            mesh=s.table.mesh.jax_mesh,
            in_specs=(s.weight_specs(), s.cache_specs(), rows),
            out_specs=(s.cache_specs(), s.row_spec, s.logits_spec),
            check_vma=False,
        )

    def local(self, weights: Tree, cache: Tree, prompts: Tree) -> tuple[Tree, Array, Array]:
        """What one chip does."""
        s, lengths_n, slots_n = self.serving, prompts["lengths"], prompts["slots"]
        stack, outer = s.stack(self.seq), paired(weights["outer"])
        kv = dtype(s.job.kv)

        def core(layer: Layer, held: Tree) -> PrefillAttention:
            return PrefillAttention(sequences=SequenceAttention(table=s.table), dtype=kv)

        x_BTD = embed(stack, SequenceAttention(table=s.table), prompts["tokens"], outer, {})
        x_BTD, added = s.through(stack, x_BTD, weights, [{} for _ in s.attentions], core)
        last_B1D = jnp.take_along_axis(x_BTD, (lengths_n - 1)[:, None, None], axis=1)
        logits_BV = head(stack, last_B1D, outer, {})[:, 0]
        with jax.named_scope("cache.write"):
            layers = [
                {
                    name: caches.write_prompts(
                        held[name], new[name], lengths_n, slots_n, a, s.job.context, s.kv
                    )
                    for name in held
                }
                for a, held, new in zip(s.attentions, cache["layers"], added, strict=True)
            ]
        cache = {"layers": layers, "lengths": cache["lengths"].at[slots_n].set(lengths_n)}
        return cache, greedy(s.table, logits_BV), logits_BV
