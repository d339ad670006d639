"""The prefill step: it writes the keys and values of whole prompts to the cache of an engine."""

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
from shardwise.runtime.serving.engine_state import EngineState, greedy, without_accumulators
from shardwise.runtime.serving.kv_cache import write_prompts
from shardwise.runtime.weights.descriptions import Tree

Array = jax.Array


@dataclass(frozen=True, kw_only=True)
class PrefillStep:
    """A step that processes whole prompts and returns the first token of each answer.

    It writes the keys and values of the prompts to the cache. Prompts are a dict: `tokens` [prompt,
    token], padded at the end to `seq` tokens; `lengths` [prompt], their numbers of tokens; `rows`
    [prompt], the index of each prompt's sequence in the cache of its engine.

    Args:
        engine: weights, caches and layout of the engine.
        n: number of prompts that one engine processes at once.
        seq: number of tokens to which prompts are padded.
    """

    engine: EngineState
    n: int
    seq: int

    def shapes(self) -> tuple[Tree, Tree, Tree]:
        """Shapes and shardings of (weights, cache, prompts)."""
        engine = self.engine
        n_prompts = self.n * engine.n_engines
        sharding = NamedSharding(engine.table.mesh.jax_mesh, engine.row_spec)
        per_prompt = jax.ShapeDtypeStruct((n_prompts,), jnp.int32, sharding=sharding)
        tokens = jax.ShapeDtypeStruct((n_prompts, self.seq), jnp.int32, sharding=sharding)
        prompts = {"tokens": tokens, "lengths": per_prompt, "rows": per_prompt}
        return engine.weight_shapes(), engine.cache_shapes(), prompts

    def function(self) -> Callable[[Tree, Tree, Tree], tuple[Tree, Array, Array]]:
        """The function `(weights, cache, prompts) -> (cache, first tokens, logits)`.

        The logits [prompt, V] are those of the last token of each prompt.
        """
        engine = self.engine
        prompt_specs = dict.fromkeys(("tokens", "lengths", "rows"), engine.row_spec)
        return jax.shard_map(
            self.local,
            mesh=engine.table.mesh.jax_mesh,
            in_specs=(engine.weight_specs(), engine.cache_specs(), prompt_specs),
            out_specs=(engine.cache_specs(), engine.row_spec, engine.logits_spec),
            check_vma=False,
        )

    def local(self, weights: Tree, cache: Tree, prompts: Tree) -> tuple[Tree, Array, Array]:
        """Run the step on the shards of one chip, inside `shard_map`."""
        engine = self.engine
        context = engine.job.context
        lengths_n = prompts["lengths"]
        rows_n = prompts["rows"]
        settings = engine.settings(self.seq)
        outer = without_accumulators(weights["outer"])
        kv_dtype = dtype(engine.job.kv)

        def core(layer: Layer, layer_cache: Tree) -> PrefillAttention:
            return PrefillAttention(sequences=SequenceAttention(table=engine.table), dtype=kv_dtype)

        x_BTD = embed(settings, SequenceAttention(table=engine.table), prompts["tokens"], outer, {})
        no_caches: list[Tree] = [{} for _ in engine.attentions]
        x_BTD, new_keys_values = engine.run_layers(settings, x_BTD, weights, no_caches, core)
        last_B1D = jnp.take_along_axis(x_BTD, (lengths_n - 1)[:, None, None], axis=1)
        logits_BV = head(settings, last_B1D, outer, {})[:, 0]
        layers = []
        with jax.named_scope("cache.write"):
            caches = zip(engine.attentions, cache["layers"], new_keys_values, strict=True)
            for a, layer_cache, new in caches:
                written = {}
                for name, array in layer_cache.items():
                    written[name] = write_prompts(
                        array, new[name], lengths_n, rows_n, a, context, engine.kv
                    )
                layers.append(written)
        cache = {"layers": layers, "lengths": cache["lengths"].at[rows_n].set(lengths_n)}
        return cache, greedy(engine.table, logits_BV), logits_BV
