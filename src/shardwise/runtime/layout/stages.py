"""Assignment of a model's layers to the stages of a pipeline.

Gemma alternates local and global layers: its layers repeat a period of two. Such a model is split
into whole periods, and "layer" in this module means one period.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from shardwise.arrays import ceil_div
from shardwise.models import ModelConfig, stack
from shardwise.strategy.layout import Layout
from shardwise.strategy.schedules import find
from shardwise.strategy.stages import stages


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLayers:
    """Layers of every chunk of every stage; all chunks have the same number of positions.

    Stacked arrays have the layers in this order: stage by stage, chunk by chunk.

    Args:
        order: array [stage, chunk, position] of layer indices; -1 for an empty position.
    """

    order: np.ndarray[Any, np.dtype[np.int32]]

    @property
    def n_positions(self) -> int:
        """Length of the layer dim of stacked arrays, empty positions included."""
        return self.order.size

    @property
    def is_filled(self) -> np.ndarray[Any, Any]:
        """Boolean array [stage, chunk, position]: whether the position has a layer."""
        return self.order >= 0

    def to_stage_order(self, stacked: Any) -> Any:
        """Reorder arrays stacked in model order to the order of the stages.

        Empty positions get the arrays of layer 0.
        """
        layers = np.maximum(self.order, 0).ravel()
        return jax.tree.map(lambda x: x[layers], stacked)

    def to_model_order(self, stacked: Any) -> Any:
        """Reorder arrays stacked in the order of the stages to model order."""
        layers = self.order.ravel()
        by_layer = np.argsort(np.where(layers < 0, layers.size, layers), kind="stable")
        positions = by_layer[: self.is_filled.sum()]
        return jax.tree.map(lambda x: x[positions], stacked)

    def split_chunks(self, stage_arrays: Any) -> Any:
        """Split dim 0 of one stage's stacked arrays into two dims, [chunk, position]."""
        shape = self.order.shape[1:]
        return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), stage_arrays)

    def merge_chunks(self, stage_arrays: Any) -> Any:
        """Undo `split_chunks`."""
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), stage_arrays)


def stage_layers(config: ModelConfig, layout: Layout) -> StageLayers:
    """Assign the layers of a model to stages and chunks, under the schedule of a layout."""
    (segment,) = stack(config)
    n_layers = segment.repeats
    schedule = find(layout.schedule)
    n_stages = layout.sizes["pipe"]
    n_chunks = int(stages(n_layers, layout).chunks)
    n_parts = int(schedule.parts(n_stages, n_chunks))
    n_padded = int(ceil_div(n_layers, n_parts)) * n_parts
    order = np.array(schedule.layers(n_padded, n_stages, n_chunks))
    return StageLayers(order=np.where(order < n_layers, order, -1).astype(np.int32))
