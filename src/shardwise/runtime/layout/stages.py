"""Where the layers of a model lie on the stages of a pipeline.

A model whose layers repeat a period (Gemma's local and global ones) is dealt out by whole periods:
"layer" here is one period.
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
    """Equal chunks of layers on every stage; stacked arrays are in this order, stage by stage.

    Args:
        order: [stage, chunk, place] -> layer of the model, -1 for a place that stays empty.
    """

    order: np.ndarray[Any, np.dtype[np.int32]]

    @property
    def n_places(self) -> int:
        """Layers that stacked arrays have room for."""
        return self.order.size

    @property
    def used(self) -> np.ndarray[Any, Any]:
        """[stage, chunk, place] -> whether a layer lies there."""
        return self.order >= 0

    def arranged(self, stacked: Any) -> Any:
        """Arrays stacked in the order of the model, as stages hold them."""
        return jax.tree.map(lambda x: x[np.maximum(self.order, 0).ravel()], stacked)

    def in_order(self, stacked: Any) -> Any:
        """Arrays as stages hold them, stacked in the order of the model."""
        flat = self.order.ravel()
        places = np.argsort(np.where(flat < 0, flat.size, flat), kind="stable")[: self.used.sum()]
        return jax.tree.map(lambda x: x[places], stacked)

    def chunked(self, local: Any) -> Any:
        """One stage's arrays, dim 0 as [chunk, place]."""
        shape = self.order.shape[1:]
        return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), local)

    def joined(self, local: Any) -> Any:
        """The reverse of `chunked`."""
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), local)


def stage_layers(config: ModelConfig, layout: Layout) -> StageLayers:
    """The layers of every chunk of every stage under the schedule of a layout."""
    (segment,) = stack(config)
    n_layers = segment.repeats
    schedule, p = find(layout.schedule), layout.sizes["pipe"]
    chunks = int(stages(n_layers, layout).chunks)
    parts = int(schedule.parts(p, chunks))
    padded = int(ceil_div(n_layers, parts)) * parts
    found = np.array([[[*chunk] for chunk in row] for row in schedule.layers(padded, p, chunks)])
    return StageLayers(order=np.where(found < n_layers, found, -1).astype(np.int32))
