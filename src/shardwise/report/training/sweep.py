"""A sweep as a table for the screen, or as Markdown, CSV or JSON lines to paste and to load."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardwise import units
from shardwise.plan.training.sweep import Row, Sweep
from shardwise.report.style import Block, labelled, quiet, strong, table
from shardwise.report.words import mesh_text, percent

FORMATS = ("md", "csv", "jsonl")
WORDS = {"n_microbatches": "microbatches"}  # as the options are called
DASH = "–"


def blocks(found: Sweep) -> Iterator[Block]:
    """The best row in words, then all rows."""
    yield strong(headline(found))
    problems = list(dict.fromkeys(row.problem for row in found.rows if row.problem))
    heads = [*_swept(found), ">step", ">!tokens/s/chip", ">MFU", ">HBM", "bound", "mesh"]
    rows = [_cells(row) for row in found.rows]
    for row, cells in zip(found.rows, rows, strict=True):
        if row.problem:
            cells[-1] = f"none ({problems.index(row.problem) + 1})"
    yield table(heads, rows)
    yield labelled((f"({i})", problem) for i, problem in enumerate(problems, 1))
    yield quiet("type  -o md, csv or jsonl writes it with the roofline  ·  shardwise plan has all")


def headline(found: Sweep) -> str:
    """Which combination has most tokens per second and chip."""
    rows = [row for row in found.rows if row.step_s]
    lost = len(found.rows) - len(rows)
    none = f" {lost:,} of {len(found.rows):,} have no plan." if lost else ""
    if not rows:
        return f"No plan for any of {len(found.rows):,} combinations."
    best = max(rows, key=lambda row: row.tokens_per_s_per_chip or 0.0)
    which = ", ".join(f"{WORDS.get(k, k)} {word(v)}" for k, v in best.swept.items())
    step = units.show_seconds(best.step_s.expected if best.step_s else 0.0)
    return (
        f"Most tokens per second and chip: {which or 'the one plan'} "
        f"({best.tokens_per_s_per_chip:,.0f}, step {step}, {mesh_text(best.mesh or {})}).{none}"
    )


def text(found: Sweep, how: str) -> str:
    """All rows as Markdown, CSV or JSON lines; csv and jsonl in SI units."""
    return _markdown(found) if how == "md" else as_rows(found.to_dicts(), how)


def as_rows(rows: Sequence[Mapping[str, Any]], how: str) -> str:
    """Flat rows as `csv` or `jsonl`."""
    if how == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _markdown(found: Sweep) -> str:
    heads = [
        *_swept(found),
        ">step",
        ">roofline",
        ">tokens/s/chip",
        ">MFU",
        ">HBM",
        "bound",
        "mesh",
    ]
    rows = []
    for row in found.rows:
        cells, n = _cells(row), len(row.swept)
        lower = units.show_seconds(row.step_s.lower) if row.step_s else DASH
        rows.append([*cells[: n + 1], lower, *cells[n + 1 :]])
    return markdown(heads, rows)


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table to paste; `>` before a head aligns its column to the right."""
    lines = [
        _line([head.lstrip(">") for head in heads]),
        "".join("|---:" if head.startswith(">") else "|---" for head in heads) + "|",
        *(_line(row) for row in rows),
    ]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _swept(found: Sweep) -> list[str]:
    return heads_of(found.rows[0].swept)


def heads_of(swept: Mapping[str, Any]) -> list[str]:
    """Heads of the options that vary; numbers stand to the right."""
    return [f"{'' if isinstance(v, str) else '>'}{WORDS.get(k, k)}" for k, v in swept.items()]


def word(value: Any) -> str:
    """A value of an option: `1,024`."""
    return f"{value:,}" if isinstance(value, int) else str(value)


def _cells(row: Row) -> list[str]:
    options = [word(value) for value in row.swept.values()]
    if row.step_s is None:
        return [*options, *[DASH] * 5, row.problem or ""]
    return [
        *options,
        units.show_seconds(row.step_s.expected),
        f"{row.tokens_per_s_per_chip:,.0f}",
        percent(row.mfu or 0.0),
        units.show_gib(row.memory_bytes or 0.0),
        row.bound or "",
        mesh_text(row.mesh or {}),
    ]
