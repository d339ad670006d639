"""A timeline as a trace for Perfetto or chrome://tracing: what the profile will look like.

One row for the core, one for each other engine that the program uses. Bars of the core are its
operations and what it waits for; bars of the others are transfers. Times are microseconds. Each
bar carries its planned operation, pass, and, of transfers, who pays, the form and the bytes.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from shardwise.check.timeline.line import Span, Timeline
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
SECONDS = 1e6  # microseconds


def chrome_trace(timeline: Timeline, title: str = "", core: str = "TensorCore") -> dict[str, Any]:
    """The timeline as a document in the trace event format.

    Args:
        title: of the program: model, hardware, how operations were timed.
        core: what the engine that runs the schedule is called.
    """
    used = dict.fromkeys([*ROWS, *(s.engine for s in timeline.spans)])
    drawn = {s.engine for s in timeline.spans}
    rows = {engine: i for i, engine in enumerate(e for e in used if e in drawn)}
    events: list[dict[str, Any]] = [_meta("process_name", 0, title or "compiled program")]
    for engine, row in rows.items():
        events.append(_meta("thread_name", row, core if engine == CORE else _row(engine)))
        events.append(
            {
                "ph": "M",
                "name": "thread_sort_index",
                "pid": 0,
                "tid": row,
                "args": {"sort_index": row},
            }
        )
    events += [_event(span, rows[span.engine]) for span in timeline.spans]
    return {
        "displayTimeUnit": "ms",
        "otherData": {"step_s": timeline.step_s, "compute_s": timeline.compute_s},
        "traceEvents": events,
    }


def write_trace(path: Path, timeline: Timeline, title: str = "", core: str = "TensorCore") -> None:
    """Write the trace; compressed when the path ends in `.gz`, which Perfetto opens as it is."""
    text = json.dumps(chrome_trace(timeline, title, core), separators=(",", ":"))
    data = text.encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def _row(engine: str) -> str:
    return ROWS.get(engine, f"ICI {engine}")


def _meta(name: str, row: int, value: str) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": 0, "tid": row, "args": {"name": value}}


def _event(span: Span, row: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": _name(span),
        "cat": span.what,
        "pid": 0,
        "tid": row,
        "ts": span.start_s * SECONDS,
        "dur": span.seconds * SECONDS,
        "args": {"op": span.name, "phase": span.group[1], **dict(span.detail)},
    }


def _name(span: Span) -> str:
    """`attn.q`, `fsdp all_gather attn.q`, `wait for fsdp: attn.q`: as a profile groups them."""
    detail = dict(span.detail)
    scope = span.group[0] or span.name
    if span.what in ("compute", "trips"):
        return span.name if span.what == "trips" else scope
    if span.what == "wait":
        return f"wait for {detail['label']}: {scope}"
    return f"{detail['label']} {span.what}: {scope}"
