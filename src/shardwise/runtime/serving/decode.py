"""The decode step: it generates one token for each sequence of an engine."""

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
from shardwise.runtime.serving.engine_state import EngineState, greedy, without_accumulators
from shardwise.runtime.serving.kv_cache import write_tokens
from shardwise.runtime.weights.descriptions import Tree

Array = jax.Array


@dataclass(frozen=True, kw_only=True)
class DecodeStep:
    """A step that generates one token for each sequence of an engine.

    It computes the keys and values of each sequence's last token, writes them to the cache, and
    returns the next token.

    Args:
        engine: weights, caches and layout of the engine.
    """

    engine: EngineState

    def shapes(self) -> tuple[Tree, Tree, Tree]:
        """Shapes and shardings of (weights, cache, last tokens)."""
        cache = self.engine.cache_shapes()
        return self.engine.weight_shapes(), cache, cache["lengths"]

    def function(self) -> Callable[[Tree, Tree, Array], tuple[Tree, Array, Array]]:
        """The function `(weights, cache, last tokens_B) -> (cache, next tokens_B, logits_BV)`."""
        engine = self.engine
        return jax.shard_map(
            self.local,
            mesh=engine.table.mesh.jax_mesh,
            in_specs=(engine.weight_specs(), engine.cache_specs(), engine.row_spec),
            out_specs=(engine.cache_specs(), engine.row_spec, engine.logits_spec),
            check_vma=False,
        )

    def local(self, weights: Tree, cache: Tree, tokens_B: Array) -> tuple[Tree, Array, Array]:
        """Run the step on the shards of one chip, inside `shard_map`."""
        engine = self.engine
        context = engine.job.context
        lengths_B = cache["lengths"]
        settings = engine.settings(1)
        outer = without_accumulators(weights["outer"])

        def core(layer: Layer, layer_cache: Tree) -> DecodeAttention:
            return DecodeAttention(
                cache=layer_cache,
                lengths_B=lengths_B,
                context=context,
                kv_layout=engine.kv,
                dtype=dtype(engine.job.kv),
            )

        x_BTD = embed(settings, SequenceAttention(table=engine.table), tokens_B[:, None], outer, {})
        x_BTD, new_keys_values = engine.run_layers(settings, x_BTD, weights, cache["layers"], core)
        logits_BV = head(settings, x_BTD, outer, {})[:, 0]
        layers = []
        with jax.named_scope("cache.write"):
            local_lengths_B = engine.kv.own_rows(lengths_B)
            caches = zip(engine.attentions, cache["layers"], new_keys_values, strict=True)
            for a, layer_cache, new in caches:
                written = {}
                for name, array in layer_cache.items():
                    written[name] = write_tokens(
                        array, new[name], local_lengths_B, a, context, engine.kv
                    )
                layers.append(written)
        cache = {"layers": layers, "lengths": lengths_B + 1}
        return cache, greedy(engine.table, logits_BV), logits_BV
