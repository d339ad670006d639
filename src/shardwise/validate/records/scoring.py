"""Rows that are scored, groups for calibration, and statistics of prediction errors."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Sequence
from typing import Protocol, TypeVar


class Graded(Protocol):
    """A row with grades of its reliability."""

    @property
    def tier(self) -> str: ...

    @property
    def quality(self) -> str: ...


G = TypeVar("G", bound=Graded)


def scored(rows: Sequence[G]) -> list[G]:
    """Core rows of quality A and B, or all rows if there are none."""
    return [row for row in rows if row.tier == "core" and row.quality in "AB"] or list(rows)


def error_statistics(errs: Sequence[float]) -> dict[str, float]:
    """Median, mean and 90th percentile of absolute errors, and the bias (the median error)."""
    absolute = sorted(map(abs, errs))
    return {
        "median_abs_err": statistics.median(absolute),
        "mean_abs_err": statistics.mean(absolute),
        "p90_abs_err": absolute[min(len(absolute) - 1, int(0.9 * len(absolute)))],
        "bias": statistics.median(errs),
    }


def is_calibration_group(group: str) -> bool:
    """Whether constants may be fitted on a group, by a hash of its name; others are held back."""
    return int(hashlib.sha256(group.encode()).hexdigest(), 16) % 2 == 0
