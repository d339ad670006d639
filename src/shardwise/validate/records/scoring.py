"""Which records count, which constants may be chosen on, and the spread of prediction errors."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Sequence
from typing import Protocol, TypeVar


class Graded(Protocol):
    """A row of which it is known how far to trust it."""

    @property
    def tier(self) -> str: ...

    @property
    def quality(self) -> str: ...


G = TypeVar("G", bound=Graded)


def scored(rows: Sequence[G]) -> list[G]:
    """Core rows of quality A and B; all rows where there is none of these."""
    return [r for r in rows if r.tier == "core" and r.quality in "AB"] or list(rows)


def spread_of(errs: Sequence[float]) -> dict[str, float]:
    """The figures of `Errors` that follow from errors alone."""
    absolute = sorted(map(abs, errs))
    return {
        "median_abs_err": statistics.median(absolute),
        "mean_abs_err": statistics.mean(absolute),
        "p90_abs_err": absolute[min(len(absolute) - 1, int(0.9 * len(absolute)))],
        "bias": statistics.median(errs),
    }


def chosen_on(group: str) -> bool:
    """Whether constants may be chosen on a group: by its name alone."""
    return int(hashlib.sha256(group.encode()).hexdigest(), 16) % 2 == 0
