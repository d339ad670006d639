"""Times by part of a step or pass, and the part that is slower in another strategy."""

from __future__ import annotations

from collections.abc import Mapping

from shardwise.arrays import Num


def nonzero(seconds: Mapping[str, Num]) -> dict[str, float]:
    """The parts that take any time, with their seconds."""
    return {part: float(part_s) for part, part_s in seconds.items() if part_s > 0}


def largest_increase(chosen: Mapping[str, float], other: Mapping[str, float]) -> tuple[str, float]:
    """The part whose time grows most from `chosen` to `other`, and by how many seconds."""
    extra_s = {}
    for part in sorted({*chosen, *other}):
        extra_s[part] = other.get(part, 0.0) - chosen.get(part, 0.0)
    part = max(extra_s, key=lambda name: extra_s[name])
    return part, extra_s[part]
