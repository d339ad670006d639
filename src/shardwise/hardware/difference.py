"""Two chips side by side, figure by figure."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.hardware.chip import Chip, get
from shardwise.hardware.figure import FIELDS, Value, unit_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One figure of two chips.

    Args:
        figure: its name, `hbm.bandwidth`.
        unit: its unit.
        a: the value of the first chip, None where unknown.
        b: the value of the second.
        ratio: b / a where both are quantities.
    """

    figure: str
    unit: str
    a: Value | None
    b: Value | None
    ratio: float | None


def diff(a: Chip, b: Chip) -> list[Difference]:
    """Every figure that either chip has and that is not the same on both."""
    dtypes = dict.fromkeys((*a.peak_flops_per_s, *b.peak_flops_per_s))
    rows = []
    for path in (*(f"peak.{dtype}" for dtype in dtypes), *FIELDS):
        x, y = get(a, path), get(b, path)
        if x == y:
            continue
        ratio = y / x if _is_number(x) and _is_number(y) else None  # type: ignore[operator]
        rows.append(Difference(figure=path, unit=unit_of(path) or "", a=x, b=y, ratio=ratio))
    return rows


def _is_number(value: Value | None) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
