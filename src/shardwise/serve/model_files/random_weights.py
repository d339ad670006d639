"""A model with random weights, where only the time of its programs matters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwise.models import ModelConfig
from shardwise.runtime.tokenizer import ByteTokenizer
from shardwise.serve.model_files.served_model import ServedModel

if TYPE_CHECKING:
    from shardwise.runtime.layout.sharding import Table
    from shardwise.runtime.serving.engine_state import EngineState
    from shardwise.runtime.weights.descriptions import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomWeights:
    """Weights of no trained model."""

    config: ModelConfig

    def load(self, table: Table, dtype: Any) -> Tree:
        """Make all weights."""
        import jax

        from shardwise.runtime.weights.descriptions import describe, init_weights

        return init_weights(describe(self.config), jax.random.key(0), dtype)

    def load_for(self, engine: EngineState) -> Tree:
        """Make all weights as an engine has them, each chip its own shards."""
        import jax
        import jax.numpy as jnp

        from shardwise.runtime.weights.descriptions import init_weights

        def make(key: jax.Array) -> Tree:
            return engine.quantize_weights(init_weights(engine.infos, key, jnp.float32))

        shardings = jax.tree.map(lambda shape: shape.sharding, engine.weight_shapes())
        weights: Tree = jax.jit(make, out_shardings=shardings)(jax.random.key(0))
        return weights


def random_model(name: str, config: ModelConfig, max_context: int) -> ServedModel:
    """A model with random weights, whose tokens are bytes."""
    return ServedModel(
        name=name,
        source=Path(),
        config=config,
        weights=RandomWeights(config=config),
        tokenizer=ByteTokenizer(),
        max_context=max_context,
        stop_tokens=frozenset(),
    )
