"""Tables of sweeps, operations and memory, and tables as Markdown, CSV or JSON lines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from shardwise import units
from shardwise.plan.schema.common import MemoryBytes, Operation
from shardwise.report.style import Block, bar, labelled, table

FORMATS = ("md", "csv", "jsonl")
DASH = "–"


def option_heads(swept: Mapping[str, Any], labels: Mapping[str, str]) -> list[str]:
    """Heads of the options that vary; columns of numbers are aligned to the right."""
    heads = []
    for name, value in swept.items():
        label = labels.get(name, name)
        heads.append(label if isinstance(value, str) else f">{label}")
    return heads


def option_text(value: Any) -> str:
    """A value of an option: `1,024`."""
    return f"{value:,}" if isinstance(value, int) else str(value)


def distinct_problems(rows: Iterable[Any]) -> list[str]:
    """The problems of rows without a plan, in order of appearance."""
    return list(dict.fromkeys(row.problem for row in rows if row.problem))


def problem_number(problems: Sequence[str], problem: str) -> str:
    """`none (1)`: a cell that refers to the footnote of `footnotes`."""
    return f"none ({problems.index(problem) + 1})"


def footnotes(problems: Sequence[str]) -> Block:
    """The problems by number, below their table."""
    return labelled((f"({number})", problem) for number, problem in enumerate(problems, 1))


def rows_text(rows: Sequence[Mapping[str, Any]], file_format: str) -> str:
    """Flat rows as `csv` or `jsonl`."""
    if file_format == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; `>` before a head aligns its column to the right."""
    rules = ["---:" if head.startswith(">") else "---" for head in heads]
    lines = [
        _markdown_line([head.lstrip(">") for head in heads]),
        f"|{'|'.join(rules)}|",
        *map(_markdown_line, rows),
    ]
    return "\n".join(lines) + "\n"


def _markdown_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def placement(axes: Mapping[str, str]) -> Block:
    """Where each mesh axis is placed on the machine."""
    return table(["axis", "where"], [[f"  {axis}", where] for axis, where in axes.items()])


def sharding_rules(rules: Mapping[str, Sequence[str]]) -> Block:
    """The mesh axes over which each array dim is sharded."""
    rows = [[f"  {dim}", ", ".join(axes)] for dim, axes in rules.items()]
    return table(["dim", "mesh axes"], rows)


def memory_rows(memory: MemoryBytes) -> Iterator[list[str]]:
    """Bytes per chip by part, with bars of the capacity."""
    parts = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "activations": memory.activations,
        "kv_cache": memory.kv_cache,
        "other": memory.other,
        "total": memory.total,
        "reserved": memory.margin,
        "capacity": memory.capacity,
    }
    for name, n_bytes in parts.items():
        if n_bytes:
            yield [f"  {name}", units.show_gib(n_bytes), bar(n_bytes, memory.capacity)]


def time_rows(parts: Mapping[str, float], total_s: float) -> Iterator[list[str]]:
    """Seconds by part, with bars of the total."""
    for name, seconds in parts.items():
        yield [f"  {name}", units.show_seconds(seconds), bar(seconds, total_s)]


def operation_cells(operation: Operation) -> list[str]:
    """A row of the operations table: bytes are of HBM, or of the network for a collective."""
    if operation.collective:
        work = f"{operation.collective} {operation.role}"
        n_bytes = operation.network_bytes
    else:
        work = units.show_count(operation.flops) if operation.flops else ""
        n_bytes = operation.hbm_bytes
    return [
        operation.name,
        operation.phase,
        f"{operation.count}",
        work,
        units.show_bytes(n_bytes),
        units.show_seconds(operation.time_s),
    ]
