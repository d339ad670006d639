"""Selection of rows to score, statistics of errors, and the division into two halves of groups."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Sequence
from typing import TypeVar

from shardwise.validate.records.runs import Graded

Row = TypeVar("Row", bound=Graded)


def scored(rows: Sequence[Row]) -> list[Row]:
    """Return the core rows of quality A and B, or all rows if there are none."""
    return [row for row in rows if row.tier == "core" and row.quality in "AB"] or list(rows)


def error_statistics(row_errors: Sequence[float]) -> dict[str, float]:
    """Return median, mean and 90th percentile of absolute errors, and the bias (median error)."""
    absolute = sorted(map(abs, row_errors))
    return {
        "median_abs_err": statistics.median(absolute),
        "mean_abs_err": statistics.mean(absolute),
        "p90_abs_err": absolute[min(len(absolute) - 1, int(0.9 * len(absolute)))],
        "bias": statistics.median(row_errors),
    }


def is_calibration_group(group: str) -> bool:
    """Whether constants may be fitted on the rows of a group, which a hash of its name decides.

    The other half of the groups is held back to test the fitted constants.
    """
    return int(hashlib.sha256(group.encode()).hexdigest(), 16) % 2 == 0
