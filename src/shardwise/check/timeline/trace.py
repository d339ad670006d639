"""Export of a timeline as a trace for Perfetto or chrome://tracing, laid out like a profile.

The trace has one row for the core and one for each other engine that the program uses. Bars of the
core are operations and waits; bars of the other engines are transfers. Times are in microseconds.
Each bar has its planned operation and pass, and a transfer also its label, form and bytes.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from shardwise.check.timeline.result import Bar, Timeline
from shardwise.check.timeline.steps import CORE

ROWS = {
    CORE: "core",
    "sparsecore": "SparseCore",
    "hbm": "DMA to and from HBM",
    "host in": "DMA from the host",
    "host out": "DMA to the host",
    "node": "links in the node",
    "scale-out": "links between nodes",
    "dcn": "DCN",
}
MICROSECONDS = 1e6  # per second


def chrome_trace(timeline: Timeline, title: str = "", core: str = "TensorCore") -> dict[str, Any]:
    """The timeline as a document in the trace event format.

    Args:
        title: title of the program: model, hardware, how operations were timed.
        core: display name of the core's row.
    """
    engines = {bar.engine: None for bar in timeline.bars}
    ordered = [engine for engine in {**dict.fromkeys(ROWS), **engines} if engine in engines]
    names = [core if engine == CORE else ROWS.get(engine, f"ICI {engine}") for engine in ordered]
    bars = [_bar_event(bar, ordered.index(bar.engine)) for bar in timeline.bars]
    totals = {"step_s": timeline.step_s, "compute_s": timeline.compute_s}
    return trace_document(title or "compiled program", names, bars, totals)


def trace_document(
    title: str, rows: Sequence[str], bars: Iterable[dict[str, Any]], totals: dict[str, float]
) -> dict[str, Any]:
    """A document in the trace event format, with named rows of bars.

    Args:
        rows: names of the rows, from the top.
        bars: of `bar_event`.
        totals: numbers of the whole.
    """
    events: list[dict[str, Any]] = [_name_event("process_name", 0, title)]
    for row, name in enumerate(rows):
        events.append(_name_event("thread_name", row, name))
        events.append(
            {
                "ph": "M",
                "name": "thread_sort_index",
                "pid": 0,
                "tid": row,
                "args": {"sort_index": row},
            }
        )
    return {"displayTimeUnit": "ms", "otherData": totals, "traceEvents": [*events, *bars]}


def write_trace(path: Path, timeline: Timeline, title: str = "", core: str = "TensorCore") -> None:
    """Write the trace to a file; compressed if the path ends in `.gz`, which Perfetto can open."""
    write_document(path, chrome_trace(timeline, title, core))


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Write a document of traces; compressed if the path ends in `.gz`."""
    data = json.dumps(document, separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def _name_event(name: str, row: int, value: str) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": 0, "tid": row, "args": {"name": value}}


def _bar_event(bar: Bar, row: int) -> dict[str, Any]:
    about = {"op": bar.name, "phase": bar.operation[1], **dict(bar.details)}
    return bar_event(_bar_title(bar), bar.kind, row, bar.start_s, bar.seconds, about)


def bar_event(
    title: str, kind: str, row: int, start_s: float, seconds: float, about: dict[str, Any]
) -> dict[str, Any]:
    """A bar of a row; `about` is what a click on it shows."""
    return {
        "ph": "X",
        "name": title,
        "cat": kind,
        "pid": 0,
        "tid": row,
        "ts": start_s * MICROSECONDS,
        "dur": seconds * MICROSECONDS,
        "args": about,
    }


def _bar_title(bar: Bar) -> str:
    """Title of a bar: `attn.q`, `fsdp all_gather: attn.q`, `wait for fsdp: attn.q`."""
    details = dict(bar.details)
    scope = bar.operation[0] or bar.name
    if bar.kind == "trips":
        return bar.name
    if bar.kind == "compute":
        return scope
    if bar.kind == "wait":
        return f"wait for {details['label']}: {scope}"
    return f"{details['label']} {bar.kind}: {scope}"
