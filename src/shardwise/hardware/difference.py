"""Figures that differ between two chips."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.hardware.chip import Chip, get
from shardwise.hardware.figure import FIELDS, Value, unit_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A figure that differs between two chips.

    Args:
        figure: name of the figure, `hbm.bandwidth`.
        unit: unit of the values.
        a: value of the first chip; None if unknown.
        b: value of the second chip; None if unknown.
        ratio: b / a if both are numbers, else None.
    """

    figure: str
    unit: str
    a: Value | None
    b: Value | None
    ratio: float | None


def diff(a: Chip, b: Chip) -> list[Difference]:
    """List every figure that differs between two chips or that only one of them has."""
    dtypes = dict.fromkeys((*a.peak_flops_per_s, *b.peak_flops_per_s))
    rows = []
    for path in (*(f"peak.{dtype}" for dtype in dtypes), *FIELDS):
        value_a = get(a, path)
        value_b = get(b, path)
        if value_a == value_b:
            continue
        row = Difference(
            figure=path,
            unit=unit_of(path) or "",
            a=value_a,
            b=value_b,
            ratio=_ratio(value_a, value_b),
        )
        rows.append(row)
    return rows


def _ratio(value_a: Value | None, value_b: Value | None) -> float | None:
    if isinstance(value_a, bool) or isinstance(value_b, bool):
        return None
    if isinstance(value_a, int | float) and isinstance(value_b, int | float):
        return value_b / value_a
    return None
