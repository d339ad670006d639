"""A sweep of training plans as a table for the screen, or as Markdown, CSV or JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from shardwise import units
from shardwise.plan.training.sweep import Row, Sweep
from shardwise.report.style import Block, labelled, quiet, strong, table
from shardwise.report.tables import (
    DASH,
    SCREEN_WIDTH,
    distinct_problems,
    fit_to_screen,
    footnotes,
    markdown,
    option_headers,
    option_text,
    problem_number,
    table_width,
)
from shardwise.report.words import duration, mesh_text, percent
from shardwise.vocabulary import NO_SCHEDULE

# Option of the Python API -> its header in the tables.
OPTION_LABELS = {"n_microbatches": "microbatches", "mtp_layers": "mtp"}

Columns = dict[str, Callable[[Row], str]]  # header -> the cell of a row that has a plan

RESULTS: Columns = {
    ">!step": lambda row: duration(row.step_s.expected if row.step_s else 0.0),
    ">!tok/s\n/chip": lambda row: f"{row.tokens_per_s_per_chip:,.0f}",
    ">!MFU": lambda row: percent(row.mfu or 0.0),
    ">!HBM": lambda row: units.show_gib(row.memory_bytes or 0.0),
}
# Parts of a strategy that a sweep finds: a column where rows differ, else one line for all rows.
FOUND: Columns = {
    "!bound": lambda row: row.bound or "",
    ">!ZeRO": lambda row: f"{row.zero}",
    "!remat": lambda row: row.remat or "",
    "!schedule": lambda row: row.schedule or "",
    ">!microbatches": lambda row: option_text(row.n_microbatches),
    "mesh": lambda row: mesh_text(row.mesh or {}),
}
# Column -> the option of the sweep that it would repeat.
OPTION_OF_COLUMN = {
    ">!ZeRO": "zero",
    "!remat": "remat",
    "!schedule": "schedule",
    ">!microbatches": "n_microbatches",
}


def blocks(sweep: Sweep) -> Iterator[Block]:
    """The best row in words, what all rows have in common, then all rows."""
    yield strong(headline(sweep))
    common = common_text(sweep)
    if common:
        yield labelled([("all", common)])
    problems = distinct_problems(sweep.rows)

    def show_problem(row: Row) -> str:
        return problem_number(problems, row.problem or "")

    found = _differing_columns(sweep)
    headers, rows = _cells(sweep, found, show_problem)
    letters = fit_to_screen(headers, rows)
    if table_width(headers, rows) > SCREEN_WIDTH:
        headers, rows = _cells(sweep, {"strategy": partial(_found_text, found)}, show_problem)
        letters = fit_to_screen(headers, rows)
    yield table(headers, rows)
    yield labelled((letter, mesh) for mesh, letter in letters.items())
    yield footnotes(problems)
    yield quiet("type  -o csv or jsonl adds rooflines  ·  shardwise plan shows details")


def headline(sweep: Sweep) -> str:
    """The combination with the highest throughput per chip."""
    n_rows = len(sweep.rows)
    planned = sweep.planned
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
    """What all rows have in common, then all rows as a Markdown table."""
    headers, rows = _cells(sweep, _differing_columns(sweep), lambda row: row.problem or "")
    text = markdown(headers, rows)
    common = common_text(sweep)
    return f"All rows: {common}.\n\n{text}" if common else text


def common_text(sweep: Sweep) -> str:
    """The parts of the strategy that all planned rows share; empty for fewer than two rows."""
    planned = sweep.planned
    if len(planned) < 2:
        return ""
    differing = _differing_columns(sweep)
    common = {}
    for header, show_cell in FOUND.items():
        if header not in differing and OPTION_OF_COLUMN.get(header) not in planned[0].swept:
            common[header] = show_cell
    return _found_text(common, planned[0])


def _found_text(columns: Columns, row: Row) -> str:
    """Some columns of `FOUND` as text: `compute-bound, ZeRO-3, remat none, fsdp 16`."""
    if row.step_s is None:
        return ""
    parts = []
    for header, show_cell in columns.items():
        name = header.lstrip(">!")
        cell = show_cell(row)
        if name in ("bound", "ZeRO"):
            parts.append(f"{cell}-bound" if name == "bound" else f"ZeRO-{cell}")
        elif (name, cell) not in (("schedule", NO_SCHEDULE), ("microbatches", "1")):
            parts.append(cell if name == "mesh" else f"{name} {cell}")
    return ", ".join(parts)


def _differing_columns(sweep: Sweep) -> Columns:
    """The columns of what the sweep found that are not options and differ between rows."""
    planned = sweep.planned
    columns: Columns = {}
    for header, show_cell in FOUND.items():
        if OPTION_OF_COLUMN.get(header) in sweep.rows[0].swept:
            continue
        if len(planned) < 2 or len({show_cell(row) for row in planned}) > 1:
            columns[header] = show_cell
    return columns


def _cells(
    sweep: Sweep, found: Columns, show_problem: Callable[[Row], str]
) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of the table; a row without a plan has its problem, then dashes."""
    columns = {**RESULTS, **found}
    swept_headers = option_headers(sweep.rows[0].swept, OPTION_LABELS)
    headers = [*(f"!{header}" for header in swept_headers), *columns]
    rows = []
    for row in sweep.rows:
        cells = [option_text(value) for value in row.swept.values()]
        if row.step_s is None:
            cells += [show_problem(row), *[DASH] * (len(columns) - 2), ""]
        else:
            cells += [show_cell(row) for show_cell in columns.values()]
        rows.append(cells)
    return headers, rows
