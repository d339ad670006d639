"""Layer groups and layer order of models with several kinds of layers, and models of one kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

from shardwise.models.config import Layer, LayerGroup
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
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


def rope_layers(keys: Keys, n_layers: int) -> list[bool]:
    """Whether each layer has rotary positions: those with 1 in `no_rope_layers`.

    If the file has no such list, every layer except each `no_rope_layer_interval`-th has them.
    """
    period = keys.integer("no_rope_layer_interval", default=4)
    rope_flags = keys.items("no_rope_layers", int)
    if not rope_flags:
        return [(i + 1) % period != 0 for i in range(n_layers)]
    if len(rope_flags) != n_layers:
        keys.add_problem(f"no_rope_layers names {len(rope_flags)} layers of {n_layers}.")
        return [True] * n_layers
    return [bool(rope_flag) for rope_flag in rope_flags]


def uniform_model(
    keys: Keys, name: str, family: str, layer: Layer, *, tied: bool = False, **fields: Any
) -> ModelConfig:
    """Build a model whose layers are all equal, with the names of keys that most families have.

    Args:
        keys: Keys of the model: width, vocabulary, number of layers, tied embeddings.
        name: Name of the model.
        family: Its family.
        layer: Each of its layers.
        tied: Whether embeddings are tied if the file does not state it.
        fields: Further fields of `ModelConfig`.
    """
    return ModelConfig(
        name=name,
        family=family,
        d_model=keys.integer("hidden_size"),
        vocab=keys.integer("vocab_size"),
        groups=(LayerGroup(layer=layer, count=keys.layer_count("num_hidden_layers")),),
        tied_embeddings=keys.flag("tie_word_embeddings", tied),
        **fields,
    )
