"""Phrases that several reports share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardwise import units
from shardwise.strategy.mesh import INSIDE_OUT


def mesh_text(mesh: Mapping[str, int]) -> str:
    """`tensor 4 × context 2 × fsdp 32`, the axes that lie closest together first."""
    return " × ".join(f"{r} {mesh[r]:,}" for r in INSIDE_OUT if mesh.get(r, 1) > 1) or "one chip"


def listed(words: Sequence[str]) -> str:
    """`data`, `data and fsdp`, `data, fsdp and pipe`."""
    *first, last = words or [""]
    return f"{', '.join(first)} and {last}" if first else last


def span(low: str, high: str) -> str:
    """`486 ms`, `854 ms` -> `486–854 ms`; units that differ both stay.

    >>> span("486 ms", "854 ms"), span("487 ms", "1.32 s")
    ('486–854 ms', '487 ms–1.32 s')
    """
    if low == high:
        return low
    number, _, unit = low.partition(" ")
    return f"{number if high.endswith(' ' + unit) else low}–{high}"


def seconds_span(low: float, high: float) -> str:
    """Two times as a range."""
    return span(units.show_seconds(low), units.show_seconds(high))


def percent(share: float) -> str:
    """`88 %`, `0.4 %`."""
    return f"{units.significant(100 * share, 2)} %"


def signed_percent(share: float) -> str:
    """`+3.1 %`, `-0.4 %`."""
    return f"{share:+.1%}".replace("%", " %")


def chips(n: int) -> str:
    """`1 chip`, `8,960 chips`."""
    return f"{n:,} chip{'' if n == 1 else 's'}"
