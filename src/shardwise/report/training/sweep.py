"""A sweep of training plans as a table for the screen, or as Markdown, CSV or JSON lines."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.plan.training.sweep import Row, Sweep
from shardwise.report.style import Block, quiet, strong, table
from shardwise.report.tables import (
    DASH,
    distinct_problems,
    footnotes,
    markdown,
    option_headers,
    option_text,
    problem_number,
)
from shardwise.report.words import duration, mesh_text, percent

# Option of the Python API -> its header in the tables.
OPTION_LABELS = {"n_microbatches": "microbatches"}


def blocks(sweep: Sweep) -> Iterator[Block]:
    """The best row in words, then all rows."""
    yield strong(headline(sweep))
    problems = distinct_problems(sweep.rows)
    headers = _option_headers(sweep)
    headers += [">step", ">!tokens/s/chip", ">MFU", ">HBM", "bound", "mesh"]
    rows = []
    for row in sweep.rows:
        cells = _cells(row)
        if row.problem:
            cells[-1] = problem_number(problems, row.problem)
        rows.append(cells)
    yield table(headers, rows)
    yield footnotes(problems)
    yield quiet("type  -o md, csv or jsonl adds rooflines  ·  shardwise plan shows details")


def headline(sweep: Sweep) -> str:
    """The combination with the highest throughput per chip."""
    n_rows = len(sweep.rows)
    planned = [row for row in sweep.rows if row.step_s]
    if not planned:
        return f"No plan for any of {n_rows:,} combinations."
    best = max(planned, key=lambda row: row.tokens_per_s_per_chip or 0.0)
    options = []
    for name, value in best.swept.items():
        options.append(f"{OPTION_LABELS.get(name, name)} {option_text(value)}")
    combination = ", ".join(options) or "the only plan"
    step_s = best.step_s.expected if best.step_s else 0.0
    sentence = (
        f"Highest throughput: {combination} "
        f"({best.tokens_per_s_per_chip:,.0f} tokens/s/chip, step {duration(step_s)}, "
        f"{mesh_text(best.mesh or {})})."
    )
    if len(planned) < n_rows:
        sentence += f" {n_rows - len(planned):,} of {n_rows:,} have no plan."
    return sentence


def as_markdown(sweep: Sweep) -> str:
    """All rows as a Markdown table."""
    headers = _option_headers(sweep)
    headers += [">step", ">roofline", ">tokens/s/chip", ">MFU", ">HBM", "bound", "mesh"]
    rows = []
    for row in sweep.rows:
        cells = _cells(row)
        roofline = DASH
        if row.step_s:
            roofline = duration(row.step_s.lower)
        cells.insert(len(row.swept) + 1, roofline)
        rows.append(cells)
    return markdown(headers, rows)


def _option_headers(sweep: Sweep) -> list[str]:
    return option_headers(sweep.rows[0].swept, OPTION_LABELS)


def _cells(row: Row) -> list[str]:
    """The option values of a row and its results; dashes and the problem if it has no plan."""
    options = [option_text(value) for value in row.swept.values()]
    if row.step_s is None:
        return [*options, *[DASH] * 5, row.problem or ""]
    return [
        *options,
        duration(row.step_s.expected),
        f"{row.tokens_per_s_per_chip:,.0f}",
        percent(row.mfu or 0.0),
        units.show_gib(row.memory_bytes or 0.0),
        row.bound or "",
        mesh_text(row.mesh or {}),
    ]
