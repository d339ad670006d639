"""Layer groups and layer order of models with several kinds of layers."""

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
    """The groups of equal layers: one per distinct kind, in the order of first appearance.

    `kinds` has one value per layer, from first to last; `build_layer` makes a layer of a kind.
    """
    counts = Counter(kinds)
    return tuple(LayerGroup(layer=build_layer(kind), count=n) for kind, n in counts.items())


def layer_order(kinds: Iterable[Hashable]) -> tuple[Segment, ...]:
    """The value of `ModelConfig.order` for the groups that `layer_groups(kinds, ...)` returns."""
    group_index: dict[Hashable, int] = {}
    return order([group_index.setdefault(kind, len(group_index)) for kind in kinds])
