"""Layer groups of models whose layers are of several kinds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from shardwise.models.config import Layer, LayerGroup
from shardwise.models.stack import Segment, order

Kind = TypeVar("Kind")


def layer_groups(
    kinds: Iterable[Kind], build_layer: Callable[[Kind], Layer]
) -> tuple[LayerGroup, ...]:
    """Groups of equal layers: one per distinct kind, in order of first appearance."""
    counts = Counter(kinds)
    return tuple(LayerGroup(layer=build_layer(kind), count=n) for kind, n in counts.items())


def layer_order(kinds: Iterable[Hashable]) -> tuple[Segment, ...]:
    """Order of the layers, for `ModelConfig.order`; segments refer to groups of `layer_groups`."""
    group_index: dict[Hashable, int] = {}
    return order([group_index.setdefault(kind, len(group_index)) for kind in kinds])
