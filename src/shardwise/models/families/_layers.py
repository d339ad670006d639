"""Layers of a few kinds into groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from shardwise.models.config import Layer, LayerGroup
from shardwise.models.stack import Segment, order

Kind = TypeVar("Kind")


def grouped(kinds: Iterable[Kind], layer: Callable[[Kind], Layer]) -> tuple[LayerGroup, ...]:
    """One group per distinct kind, in order of first appearance, with its layer and count."""
    return tuple(LayerGroup(layer=layer(k), count=n) for k, n in Counter(kinds).items())


def in_order(kinds: Iterable[Hashable]) -> tuple[Segment, ...]:
    """How the groups of `grouped` follow each other."""
    known: dict[Hashable, int] = {}
    return order([known.setdefault(kind, len(known)) for kind in kinds])
