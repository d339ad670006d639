"""The weights of a model in a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwise.models import ModelConfig
from shardwise.serve.model_files.gguf.file import GgufFile
from shardwise.serve.model_files.gguf.tensors import GgufTensors, open_tensors

if TYPE_CHECKING:
    from shardwise.runtime.layout.sharding import Table
    from shardwise.runtime.serving.engine_state import EngineState
    from shardwise.runtime.weights.descriptions import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufWeights:
    """Weights in a GGUF file."""

    file: GgufFile
    config: ModelConfig

    def tensors(self) -> GgufTensors:
        """The tensors, as `open_tensors` returns them."""
        return open_tensors(self.file, self.config)

    def load(self, table: Table, dtype: Any) -> Tree:
        """Load all weights, sharded by the table."""
        from shardwise.runtime.weights.published_weights import sharded_weights

        return sharded_weights(self.tensors(), self.config, table, dtype)

    def load_for(self, engine: EngineState) -> Tree:
        """Load all weights as an engine has them; blocks that are its groups are kept."""
        from shardwise.serve.model_files.gguf.blocks import StoredBlocks
        from shardwise.serve.model_files.loading import load_for

        tensors = self.tensors()
        return load_for(engine, tensors, StoredBlocks(tensors=tensors, engine=engine).groups)
