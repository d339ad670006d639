"""Arithmetic of time intervals: a time divided among operations, whose parts sum to it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Span(Generic[Key]):
    """An interval of time with an owner.

    Args:
        level: where spans overlap, the time belongs to those of the lowest level.
    """

    start: float
    end: float
    level: int
    key: Key


def partition(spans: Iterable[Span[Key]], start: float, end: float, rest: Key) -> dict[Key, float]:
    """Divide the time from `start` to `end` among the owners of spans.

    An instant belongs to the spans of the lowest level that cover it, in equal parts; to `rest` if
    none covers it. The parts sum to `end - start`.
    """
    clipped = [
        Span(max(span.start, start), min(span.end, end), span.level, span.key) for span in spans
    ]
    clipped = [span for span in clipped if span.start < span.end]
    # Spans that end at a time end before those that start at it.
    changes = [(span.start, 1, index) for index, span in enumerate(clipped)]
    changes += [(span.end, 0, index) for index, span in enumerate(clipped)]
    changes.sort()
    parts: dict[Key, float] = {}
    active: dict[int, set[int]] = {}
    time = start
    for change, is_start, index in changes:
        if change > time:
            _divide(change - time, active, clipped, parts, rest)
            time = change
        indices = active.setdefault(clipped[index].level, set())
        if is_start:
            indices.add(index)
        else:
            indices.remove(index)
    if end > time:
        parts[rest] = parts.get(rest, 0.0) + end - time
    return parts


def _divide(
    duration: float,
    active: dict[int, set[int]],
    spans: Sequence[Span[Key]],
    parts: dict[Key, float],
    rest: Key,
) -> None:
    """Add a duration to the parts of the spans of the lowest level that are active."""
    levels = [level for level, indices in active.items() if indices]
    if not levels:
        parts[rest] = parts.get(rest, 0.0) + duration
        return
    owners = active[min(levels)]
    for index in owners:
        key = spans[index].key
        parts[key] = parts.get(key, 0.0) + duration / len(owners)


def covered(intervals: Iterable[tuple[float, float]], start: float, end: float) -> float:
    """The time from `start` to `end` that at least one interval covers."""
    total = 0.0
    reached = start
    for first, last in sorted(intervals):
        last = min(last, end)
        if last > reached:
            total += last - max(first, reached)
            reached = last
    return total
