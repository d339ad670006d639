"""Tables that training and serving share, for the screen and as Markdown, CSV or JSON lines."""

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
DASH = "–"  # the cell of a value that does not exist
SCREEN_WIDTH = 80  # characters
COLUMN_GAP = 2  # characters
N_LETTERS = 26


def option_headers(swept: Mapping[str, Any], labels: Mapping[str, str]) -> list[str]:
    """Column headers of the swept options; columns of numbers are aligned to the right.

    Args:
        swept: the options of one row of the sweep, and their values.
        labels: headers of the options that are not shown by their own names.
    """
    headers = []
    for name, value in swept.items():
        header = labels.get(name, name)
        if not isinstance(value, str):
            header = f">{header}"
        headers.append(header)
    return headers


def option_text(value: Any) -> str:
    """The value of an option as text; integers have thousands separators: `1,024`."""
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def distinct_problems(rows: Iterable[Any]) -> list[str]:
    """The different reasons why rows have no plan, in order of first appearance."""
    return list(dict.fromkeys(row.problem for row in rows if row.problem))


def problem_number(problems: Sequence[str], problem: str) -> str:
    """The cell of a row without a plan, which refers to a footnote: `none (1)`."""
    return f"none ({problems.index(problem) + 1})"


def footnotes(problems: Sequence[str]) -> Block:
    """The problems with their numbers, to be printed below a table of `problem_number` cells."""
    return labelled((f"({number})", problem) for number, problem in enumerate(problems, 1))


def fit_to_screen(headers: list[str], rows: Sequence[list[str]]) -> dict[str, str]:
    """Replace the texts of the last column by letters, in place, if the table is too wide.

    Returns:
        Text -> its letter; empty if the table is not too wide.
    """
    letters: dict[str, str] = {}
    if table_width(headers, rows) <= SCREEN_WIDTH:
        return letters
    headers[-1] = ""
    for cells in rows:
        if cells[-1]:
            cells[-1] = letters.setdefault(cells[-1], _letter(len(letters)))
    return letters


def table_width(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Width in characters of a table in which no cell is wrapped."""
    width = 0
    for header, *cells in zip(headers, *rows, strict=True):
        width += max(map(len, [*header.lstrip(">!").splitlines(), *cells])) + COLUMN_GAP
    return width - COLUMN_GAP


def _letter(index: int) -> str:
    """The name with a given index in A, B ... Z, AA, AB ..."""
    quotient, remainder = divmod(index, N_LETTERS)
    last = chr(ord("A") + remainder)
    if quotient == 0:
        return last
    return _letter(quotient - 1) + last


def rows_text(rows: Sequence[Mapping[str, Any]], file_format: str) -> str:
    """Rows as `csv` or `jsonl`; all rows have the same columns."""
    if file_format == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows)
    output = io.StringIO()
    writer = csv.DictWriter(output, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return output.getvalue()


def markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of the headers and rows of a screen (`style.table`)."""
    names = []
    rules = []
    for header in headers:
        names.append(header.lstrip(">!").replace("\n", ""))
        rules.append("---:" if ">" in header else "---")
    lines = [_markdown_line(names), f"|{'|'.join(rules)}|", *map(_markdown_line, rows)]
    return "\n".join(lines) + "\n"


def _markdown_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def placement(axes: Mapping[str, str]) -> Block:
    """A table of mesh axes and the links or chips of the machine that each one spans."""
    rows = []
    for axis, where in axes.items():
        rows.append([f"  {axis}", where])
    return table(["axis", "where"], rows)


def sharding_rules(rules: Mapping[str, Sequence[str]]) -> Block:
    """A table of array dims and the mesh axes over which each one is sharded."""
    rows = []
    for dim, axes in rules.items():
        rows.append([f"  {dim}", ", ".join(axes)])
    return table(["dim", "mesh axes"], rows)


def memory_rows(memory: MemoryBytes) -> Iterator[list[str]]:
    """A row for each part of a chip's memory: its name, its size, and its share of HBM as a bar."""
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
    """A row for each part of a step: its name, its seconds, and its share of the total as a bar."""
    for name, seconds in parts.items():
        yield [f"  {name}", units.show_seconds(seconds), bar(seconds, total_s)]


def operation_cells(operation: Operation) -> list[str]:
    """A row of the operations table: name, phase, count, work, bytes and time.

    Work is FLOPs or a collective; bytes are HBM traffic, or the network traffic of a collective.
    """
    work = ""
    n_bytes = operation.hbm_bytes
    if operation.collective:
        work = f"{operation.collective} {operation.role}"
        n_bytes = operation.network_bytes
    elif operation.flops:
        work = units.show_count(operation.flops)
    return [
        operation.name,
        operation.phase,
        f"{operation.count}",
        work,
        units.show_bytes(n_bytes),
        units.show_seconds(operation.time_s),
    ]
