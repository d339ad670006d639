"""The parts of a step or of a pass, and the comparison of two of them part by part."""

from __future__ import annotations

from collections.abc import Mapping

from shardwise.arrays import Num


def nonzero(seconds: Mapping[str, Num]) -> dict[str, float]:
    """The parts that take time, seconds."""
    return {part: float(part_s) for part, part_s in seconds.items() if part_s > 0}


def largest_increase(chosen: Mapping[str, float], other: Mapping[str, float]) -> tuple[str, float]:
    """The part that takes most more time in `other` than in `chosen`, and its extra seconds."""
    extra_s = {}
    for part in sorted({*chosen, *other}):
        extra_s[part] = other.get(part, 0.0) - chosen.get(part, 0.0)
    part = max(extra_s, key=lambda name: extra_s[name])
    return part, extra_s[part]
