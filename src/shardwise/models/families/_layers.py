"""Layers of a few kinds into groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

from shardwise.models.config import Layer, LayerGroup

Kind = TypeVar("Kind")


def grouped(kinds: Iterable[Kind], layer: Callable[[Kind], Layer]) -> tuple[LayerGroup, ...]:
    """One group per distinct kind, in order of first appearance, with its layer and count."""
    return tuple(LayerGroup(layer=layer(k), count=n) for k, n in Counter(kinds).items())
