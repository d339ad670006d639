"""A saved comparison for the page: the JSON of `shardwise compare`, with its sentences."""

from __future__ import annotations

from typing import Any

import msgspec

from shardwise.compare.result import PairComparison, StepComparison
from shardwise.errors import BadFile
from shardwise.report.compare import pair_headline, step_headline
from shardwise.report.compare_causes import phrase


def is_comparison(document: dict[str, Any]) -> bool:
    """Whether a JSON document is what `shardwise compare --json` prints."""
    return "rows" in document and "figures" in document and "causes" in document


def comparison_view(document: dict[str, Any], name: str) -> dict[str, Any]:
    """What the page shows of a comparison: seconds by group, and the causes of differences.

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
    rows = [
        {
            "group": row.group,
            "seconds": [row.planned_s, row.compiled_s, row.measured_s],
            "note": phrase(row.cause) if row.cause and row.group != "step" else "",
        }
        for row in value.rows
    ]
    return {
        "title": f"{value.name} on {value.hardware}",
        "headline": step_headline(value),
        "columns": ["planned", "compiled", "measured"],
        "rows": rows,
        "notes": [],
        "causes": [phrase(cause) for cause in value.causes],
    }


def _pair(value: PairComparison) -> dict[str, Any]:
    rows = [
        {"group": row.group, "seconds": [row.first, row.second], "note": ""} for row in value.rows
    ]
    settings = [f"{s.name}: A {s.first or '–'}, B {s.second or '–'}" for s in value.settings]
    return {
        "title": f"two {value.kind}",
        "headline": pair_headline(value),
        "columns": ["A", "B"],
        "rows": rows,
        "notes": [f"A: {value.first}", f"B: {value.second}", *settings],
        "causes": [phrase(cause) for cause in value.causes],
    }
