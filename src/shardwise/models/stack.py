"""The order of a model's layers, as sequences of layers that repeat.

A program can scan over the repeats. Gemma 2 2B repeats (local, global) 13 times; DeepSeek-V3 has 3
dense layers, then 58 routed ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardwise.errors import BadShape

# Longest period that `segments` detects, in layers. Published models have at most 8 (Jamba). Each
# layer of a period is compiled separately, so that scanning over a long period saves little.
LONGEST_PERIOD = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A sequence of layers (a period) that repeats.

    Args:
        kinds: for each layer of the period, its index in `ModelConfig.groups`.
        repeats: how often the period occurs.
    """

    kinds: tuple[int, ...]
    repeats: int = 1

    def __post_init__(self) -> None:
        if not self.kinds or self.repeats < 1:
            raise BadShape(f"a segment of {len(self.kinds)} layers {self.repeats} times is empty.")

    @property
    def n_layers(self) -> int:
        """Number of layers of all repeats together."""
        return len(self.kinds) * self.repeats


def one_after_another(counts: Sequence[int]) -> tuple[Segment, ...]:
    """The order in which all layers of kind 0 precede those of kind 1, and so on.

    `counts` has the number of layers of each kind.
    """
    return tuple(Segment(kinds=(i,), repeats=n) for i, n in enumerate(counts))


def unrolled(segments: Iterable[Segment]) -> tuple[int, ...]:
    """The kind of every layer, from first to last."""
    kinds: list[int] = []
    for segment in segments:
        kinds += segment.kinds * segment.repeats
    return tuple(kinds)


def segments(kinds: Sequence[int]) -> tuple[Segment, ...]:
    """Divide a sequence of kinds into segments, from the front, each as long as possible.

    Of segments of equal length the one with the shortest period is taken.

    >>> segments((0, 0, 1, 0, 0, 1, 0))
    (Segment(kinds=(0, 0, 1), repeats=2), Segment(kinds=(0,), repeats=1))
    """
    segments = []
    start = 0
    while start < len(kinds):
        period, repeats = _longest_run(kinds, start)
        segments.append(Segment(kinds=tuple(kinds[start : start + period]), repeats=repeats))
        start += period * repeats
    return tuple(segments)


def _longest_run(kinds: Sequence[int], start: int) -> tuple[int, int]:
    """(layers of the period, repeats) of the longest segment that begins at `start`."""
    best = (1, 1)
    for period in range(1, min(LONGEST_PERIOD, (len(kinds) - start) // 2) + 1):
        end = start + period
        while end < len(kinds) and kinds[end] == kinds[end - period]:
            end += 1
        repeats = (end - start) // period
        if repeats > 1 and period * repeats > best[0] * best[1]:
            best = (period, repeats)
    return best


def order(kinds: Sequence[int]) -> tuple[Segment, ...]:
    """The value of `ModelConfig.order` for layers of these kinds: () if kinds do not alternate."""
    counts = Counter(kinds)
    default = one_after_another([counts[kind] for kind in sorted(counts)])
    if tuple(kinds) == unrolled(default):
        return ()
    return segments(kinds)


def respread(stated: tuple[Segment, ...], counts: Sequence[int]) -> tuple[Segment, ...]:
    """The order of a model's layers after the number of layers per kind has changed.

    If repeating or cutting off the order `stated` gives `counts`, that is the new order. Otherwise
    the layers of each kind keep their relative depth.
    """
    if not stated:
        return ()
    stated_kinds = unrolled(stated)
    n_layers = sum(counts)
    repeated = (stated_kinds * -(-n_layers // len(stated_kinds)))[:n_layers]
    if [repeated.count(kind) for kind in range(len(counts))] == list(counts):
        return order(repeated)
    depths: dict[int, list[int]] = {kind: [] for kind in range(len(counts))}
    for depth, kind in enumerate(stated_kinds):
        depths[kind].append(depth)
    layers = []
    for kind, count in enumerate(counts):
        for i in range(count):
            depth = depths[kind][int((i + 0.5) * len(depths[kind]) / count)]
            layers.append((depth, kind, i))
    return order([kind for _, kind, _ in sorted(layers)])
