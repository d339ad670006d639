"""A saved comparison for the page: the JSON of `shardwise compare`, as bars, tables and words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from shardwise.compare.pairs import MEMORY_PARTS
from shardwise.compare.result import PairComparison, StepComparison
from shardwise.errors import BadFile
from shardwise.report import compare as report
from shardwise.report.compare_causes import phrase
from shardwise.units import show_gib, show_seconds

MEMORY = (*MEMORY_PARTS, "memory")


def is_comparison(document: dict[str, Any]) -> bool:
    """Whether a JSON document is what `shardwise compare --json` prints."""
    return "rows" in document and "figures" in document and "causes" in document


def comparison_view(document: dict[str, Any], name: str) -> dict[str, Any]:
    """What the page shows of a comparison: bars of time and memory, tables, and causes.

    Raises:
        BadFile: the document is no comparison of this version.
    """
    kind: type[PairComparison | StepComparison] = StepComparison
    if "settings" in document:
        kind = PairComparison
    try:
        value = msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise BadFile(f"{name}: {error}. Compare again: shardwise compare ... --json") from None
    if not value.rows:
        raise BadFile(f"{name}: its table has no rows.")
    return _pair(value) if isinstance(value, PairComparison) else _step(value)


def _step(value: StepComparison) -> dict[str, Any]:
    columns = ["planned", "compiled", "measured"]
    times = {row.group: (row.planned_s, row.compiled_s, row.measured_s) for row in value.rows}
    figures = {figure.quantity: figure for figure in value.figures}
    memory = {
        name: (figure.planned, figure.compiled, figure.measured)
        for name, figure in figures.items()
        if name in MEMORY
    }
    tables = [_table("seconds by group", report.step_table(value))]
    if figures:
        tables.append(_table("memory and other quantities", report.figure_table(value.figures)))
    return {
        "title": f"{value.name} on {value.hardware}",
        "headline": report.step_headline(value),
        "names": [],
        "bars": _bars(columns, times, memory),
        "tables": tables,
        "causes": [phrase(cause) for cause in value.causes],
    }


def _pair(value: PairComparison) -> dict[str, Any]:
    times = {row.group: (row.first, row.second) for row in value.rows}
    memory = {row.group: (row.first, row.second) for row in value.figures if row.group in MEMORY}
    tables = []
    if value.settings:
        tables.append(_table("settings that differ", report.setting_table(value)))
    tables.append(_table("seconds by group", report.pair_table("time", value.rows)))
    if value.figures:
        figures = report.pair_table("", value.figures)
        tables.append(_table("memory and other quantities", figures))
    return {
        "title": f"two {value.kind}",
        "headline": report.pair_headline(value),
        "names": [f"A: {value.first}", f"B: {value.second}"],
        "bars": _bars(["A", "B"], times, memory),
        "tables": tables,
        "causes": [phrase(cause) for cause in value.causes],
    }


def _bars(
    columns: list[str], *charts: Mapping[str, Sequence[float | None]]
) -> list[dict[str, Any]]:
    """Charts of time and of memory, of the quantities and columns that there are."""
    shown: Sequence[tuple[str, Callable[[float], str]]] = (
        ("Time by group", show_seconds),
        ("Memory of a chip", show_gib),
    )
    bars = []
    for (title, text), rows in zip(shown, charts, strict=True):
        given = [i for i in range(len(columns)) if any(row[i] is not None for row in rows.values())]
        if not given:
            continue
        bars.append(
            {
                "title": title,
                "columns": [columns[i] for i in given],
                "rows": [
                    {
                        "name": name,
                        "values": [row[i] for i in given],
                        "texts": ["–" if row[i] is None else text(row[i] or 0.0) for i in given],
                    }
                    for name, row in rows.items()
                ],
            }
        )
    return bars


def _table(caption: str, cells: report.Cells) -> dict[str, Any]:
    """A table of the terminal, without its marks of alignment and indents."""
    head, rows = cells
    return {
        "caption": caption,
        "head": [name.removeprefix(">") for name in head],
        "rows": [[cell.strip() for cell in row] for row in rows],
    }
