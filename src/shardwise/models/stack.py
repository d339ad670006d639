"""The order of layers, as runs of a period: what a scan over layers needs.

Gemma 2 is 13 times (local, global), DeepSeek-V3 3 dense layers and then 58 routed ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwise.errors import BadShape

if TYPE_CHECKING:
    from shardwise.models.model import ModelConfig

# Longest period that is looked for. Published models have at most 8 (Jamba); each layer of a
# period is compiled on its own, so that a longer one gains little.
LONGEST_PERIOD = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """`repeats` times the layers of `kinds`, each an index into the groups of its model."""

    kinds: tuple[int, ...]
    repeats: int = 1

    def __post_init__(self) -> None:
        if not self.kinds or self.repeats < 1:
            raise BadShape(f"a segment of {len(self.kinds)} layers {self.repeats} times is empty.")

    @property
    def n_layers(self) -> int:
        """Layers in it."""
        return len(self.kinds) * self.repeats


def stack(config: ModelConfig) -> tuple[Segment, ...]:
    """The layers of a model from first to last; its groups one after the other where not stated.

    >>> from shardwise.models import load
    >>> stack(load("gemma2-2b"))
    (Segment(kinds=(0, 1), repeats=13),)
    """
    return config.order or one_after_another([group.count for group in config.groups])


def one_after_another(counts: Sequence[int]) -> tuple[Segment, ...]:
    """All layers of the first kind, then all of the second, and so on."""
    return tuple(Segment(kinds=(i,), repeats=n) for i, n in enumerate(counts))


def unrolled(segments: Iterable[Segment]) -> tuple[int, ...]:
    """The kind of every layer, from first to last."""
    return tuple(kind for s in segments for kind in s.kinds * s.repeats)


def segments(kinds: Sequence[int]) -> tuple[Segment, ...]:
    """The kinds of all layers as runs of a period, from the front the longest run each time.

    Of runs equally long the shortest period is taken; layers that repeat nothing stand alone.

    >>> segments((0, 0, 1, 0, 0, 1, 0))
    (Segment(kinds=(0, 0, 1), repeats=2), Segment(kinds=(0,), repeats=1))
    """
    found, at = [], 0
    while at < len(kinds):
        period, repeats = _longest_run(kinds, at)
        found.append(Segment(kinds=tuple(kinds[at : at + period]), repeats=repeats))
        at += period * repeats
    return tuple(found)


def _longest_run(kinds: Sequence[int], at: int) -> tuple[int, int]:
    best = (1, 1)
    for period in range(1, min(LONGEST_PERIOD, (len(kinds) - at) // 2) + 1):
        end = at + period
        while end < len(kinds) and kinds[end] == kinds[end - period]:
            end += 1
        repeats = (end - at) // period
        if repeats > 1 and period * repeats > best[0] * best[1]:
            best = (period, repeats)
    return best


def order(kinds: Sequence[int]) -> tuple[Segment, ...]:
    """What a model states of its order: nothing where its groups stand one after the other."""
    found = segments(kinds)
    counts = Counter(kinds)
    default = one_after_another([counts[kind] for kind in sorted(counts)])
    return () if unrolled(found) == unrolled(default) else found


def respread(stated: tuple[Segment, ...], counts: Sequence[int]) -> tuple[Segment, ...]:
    """The order with other counts of each kind.

    The same layers continued from the front, or cut, where that gives the counts; otherwise each
    kind's layers lie where they lay, as parts of the stack.
    """
    if not stated:
        return ()
    old, n_layers = unrolled(stated), sum(counts)
    continued = (old * -(-n_layers // len(old)))[:n_layers]
    if [continued.count(kind) for kind in range(len(counts))] == list(counts):
        return order(continued)
    places: dict[int, list[int]] = {kind: [] for kind in range(len(counts))}
    for place, kind in enumerate(old):
        places[kind].append(place)
    spread = [
        (places[kind][int((i + 0.5) * len(places[kind]) / n)], kind, i)
        for kind, n in enumerate(counts)
        for i in range(n)
    ]
    return order([kind for _, kind, _ in sorted(spread)])
