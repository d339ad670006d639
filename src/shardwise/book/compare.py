"""An answer beside the expected one: same structure, each number within the tolerance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Whether an answer agrees.

    Args:
        agrees: every part does.
        worst_rel: the largest relative difference of a number, infinite where a text, a truth
            value or the structure differs.
        where: the first part that disagrees, `[1].step_ms`, empty when all agree.
    """

    agrees: bool
    worst_rel: float
    where: str = ""


def compare(answer: Any, expected: Any, tolerance_rel: float) -> Agreement:
    """Compare nested answers. Texts and truth values must be the same; numbers near enough.

    >>> compare([1.001, "none"], [1, "none"], 0.01).agrees
    True
    >>> compare([1.02, "none"], [1, "none"], 0.01).where
    '[0]'
    """
    worst, where = 0.0, ""
    for path, difference in _differences(answer, expected, ""):
        if not difference <= tolerance_rel and not where:
            where = path or "the answer"
        worst = max(worst, difference)
    return Agreement(agrees=not where, worst_rel=worst, where=where)


def _differences(answer: Any, expected: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(expected, Mapping):
        if not isinstance(answer, Mapping) or set(answer) != set(expected):
            yield path, math.inf
            return
        for key, value in expected.items():
            yield from _differences(answer[key], value, f"{path}.{key}")
    elif isinstance(expected, list | tuple):
        if not isinstance(answer, list | tuple) or len(answer) != len(expected):
            yield path, math.inf
            return
        for i, (a, e) in enumerate(zip(answer, expected, strict=True)):
            yield from _differences(a, e, f"{path}[{i}]")
    else:
        yield path, _difference(answer, expected)


def _difference(answer: Any, expected: Any) -> float:
    """Relative difference of two numbers; 0 or infinity for anything else."""
    both = (answer, expected)
    if any(isinstance(v, bool) or not isinstance(v, int | float) for v in both):
        return 0.0 if type(answer) is type(expected) and answer == expected else math.inf
    if answer == expected:
        return 0.0
    if not all(map(math.isfinite, both)):
        return math.inf
    return float(abs(answer - expected) / abs(expected)) if expected else math.inf
