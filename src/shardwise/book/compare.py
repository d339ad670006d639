"""Compare nested answers: same structure, and each number within a tolerance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Result of a comparison.

    Args:
        agrees: whether all values agree.
        worst_rel: the largest relative difference of a number; infinite if a string, a bool or the
            structure differs.
        where: path of the first value that disagrees, `[1].step_ms`; "" if all agree.
    """

    agrees: bool
    worst_rel: float
    where: str = ""


def compare(answer: Any, expected: Any, tolerance_rel: float) -> Agreement:
    """Compare nested answers: strings and bools exactly, numbers within the tolerance.

    >>> compare([1.001, "none"], [1, "none"], 0.01).agrees
    True
    >>> compare([1.02, "none"], [1, "none"], 0.01).where
    '[0]'
    """
    worst_rel = 0.0
    where = ""
    for path, difference in _differences(answer, expected, ""):
        if not difference <= tolerance_rel and not where:
            where = path or "the answer"
        worst_rel = max(worst_rel, difference)
    return Agreement(agrees=not where, worst_rel=worst_rel, where=where)


def _differences(answer: Any, expected: Any, path: str) -> Iterator[tuple[str, float]]:
    """Yield (path, relative difference) of every value in a nested answer."""
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
        for index, value in enumerate(expected):
            yield from _differences(answer[index], value, f"{path}[{index}]")
    else:
        yield path, _difference(answer, expected)


def _difference(answer: Any, expected: Any) -> float:
    """Relative difference of two numbers; 0 or infinity for anything else."""
    if not (_is_number(answer) and _is_number(expected)):
        equal = type(answer) is type(expected) and answer == expected
        return 0.0 if equal else math.inf
    if answer == expected:
        return 0.0
    if not (expected and math.isfinite(answer) and math.isfinite(expected)):
        return math.inf
    return float(abs(answer - expected) / abs(expected))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
