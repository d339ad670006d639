"""A sweep of serving plans as a table for the screen, or as Markdown, CSV or JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from shardwise import units
from shardwise.plan.serving.sweep import ServedRow, ServingSweep
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

# Option of the Python API -> its header in the tables.
OPTION_LABELS = {
    "tpot_s": "tpot",
    "ttft_s": "ttft",
    "drafted": "draft",
    "kv_dtype": "KV dtype",
    "engine": "software",
}
# Option of the Python API -> the format of its values, if not that of `option_text`.
OPTION_FORMATS: dict[str, Callable[[Any], str]] = {
    "tpot_s": duration,
    "ttft_s": duration,
    "cached": percent,
    "acceptance": percent,
    "rate": lambda value: f"{value:g}/s",
}
# Longest part of a decode step -> its name in the tables; `software` is kernels and host.
BOUND_LABELS = {
    "weights": "weights",
    "kv": "KV",
    "flops": "FLOPs",
    "network": "network",
    "software": "kernels",
}

# Columns to leave out of a table that is too wide; csv and jsonl have them.
LEFT_OUT_IF_TOO_WIDE = (">!roofline", ">!tok/s")

# Header of a column, with the marks `>` and `!` of `style.table` -> a function that returns the
# cell of a row. It is called only for rows that have a deployment.
Columns = dict[str, Callable[[ServedRow], str]]


def blocks(sweep: ServingSweep) -> Iterator[Block]:
    """The best rows in words, then a table of all rows.

    The table has a column of engines only if rows differ in their engines. A table that is too wide
    has letters in that column, which are explained below it.
    """
    yield strong(headline(sweep))
    engine = _same_engine(sweep)
    same_engine = engine is not None
    if engine and len(sweep.rows) > 1:
        yield labelled([("all", engine)])
    columns = _screen_columns(sweep, same_engine=same_engine)
    problems = distinct_problems(sweep.rows)
    headers = [*_option_headers(sweep), *columns]
    rows = []
    for row in sweep.rows:
        cells = _cells(row, columns)
        if row.problem:
            cells[headers.index("!bound")] = problem_number(problems, row.problem)
            if not same_engine:
                cells[-1] = ""
        rows.append(cells)
    letters: dict[str, str] = {}
    if not same_engine:
        letters = fit_to_screen(headers, rows)
    for column in LEFT_OUT_IF_TOO_WIDE:
        if column in headers and table_width(headers, rows) > SCREEN_WIDTH:
            index = headers.index(column)
            del headers[index]
            for cells in rows:
                del cells[index]
    yield table(headers, rows)
    yield labelled((letter, engine) for engine, letter in letters.items())
    yield footnotes(problems)
    yield quiet("type  -o md, csv or jsonl  ·  shardwise plan --serve shows details")


def _screen_columns(sweep: ServingSweep, *, same_engine: bool, roofline: bool = False) -> Columns:
    deployed = sweep.planned
    columns: Columns = {}
    if "batch" not in sweep.options:
        columns[">!batch"] = _batch
    columns[">!TPOT"] = _tpot
    if same_engine or roofline:
        columns[">!roofline"] = lambda row: duration(_roofline_s(row))
    if same_engine:
        columns[">!tok/s"] = _tokens_per_s
    columns[">!tok/s\n/chip"] = _tokens_per_s_per_chip
    columns[">!HBM"] = _memory
    columns["!bound"] = _bound
    if any(row.usd_per_million_output_tokens is not None for row in deployed):
        columns[">!$/M out"] = _dollars
    if not same_engine:
        same_machine = len({row.hardware for row in deployed}) <= 1
        columns["engine"] = lambda row: _engine(row, show_machine=not same_machine)
    return columns


def headline(sweep: ServingSweep) -> str:
    """The combination with the highest throughput per chip, and that with the lowest TPOT."""
    n_rows = len(sweep.rows)
    deployed = sweep.planned
    if not deployed:
        return f"No deployment for any of {n_rows:,} combinations."
    best = max(deployed, key=lambda row: row.tokens_per_s_per_chip or 0.0)
    fastest = min(deployed, key=lambda row: row.tpot_s or 0.0)
    sentences = (
        f"Highest throughput: {_combination(best)} ({_tokens_per_s_per_chip(best)} "
        f"tokens/s/chip, TPOT {_tpot(best)}, {_engine(best)})."
    )
    if fastest is not best:
        sentences += (
            f" Lowest TPOT: {_combination(fastest)} ({_tpot(fastest)}, "
            f"{_tokens_per_s_per_chip(fastest)} tokens/s/chip)."
        )
    if len(deployed) < n_rows:
        sentences += f" {n_rows - len(deployed):,} of {n_rows:,} have no deployment."
    return sentences


def as_markdown(sweep: ServingSweep) -> str:
    """The engine, if all rows have the same, then all rows as a Markdown table."""
    engine = _same_engine(sweep)
    columns = _screen_columns(sweep, same_engine=engine is not None, roofline=True)
    rows = []
    for row in sweep.rows:
        cells = _cells(row, columns)
        if row.problem:
            cells[-1] = row.problem
        rows.append(cells)
    text = markdown([*option_headers(sweep.rows[0].swept, OPTION_LABELS), *columns], rows)
    return f"All rows: {engine}.\n\n{text}" if engine else text


def _same_engine(sweep: ServingSweep) -> str | None:
    """The engine and machine of all rows; None if rows differ in them."""
    engines = {_engine(row) for row in sweep.planned}
    return next(iter(engines), "") if len(engines) <= 1 else None


def _option_headers(sweep: ServingSweep) -> list[str]:
    """Headers of the swept options for the screen, where they are not wrapped."""
    return [f"!{header}" for header in option_headers(sweep.rows[0].swept, OPTION_LABELS)]


def _combination(row: ServedRow) -> str:
    """The swept options of a row with their values: `batch 32, dtype int8`."""
    options = []
    for name, value in zip(row.swept, _option_cells(row), strict=True):
        options.append(f"{OPTION_LABELS.get(name, name)} {value}")
    return ", ".join(options) or "the only deployment"


def _option_cells(row: ServedRow) -> list[str]:
    return [OPTION_FORMATS.get(name, option_text)(value) for name, value in row.swept.items()]


def _cells(row: ServedRow, columns: Columns) -> list[str]:
    """The option values of a row, then its columns; dashes if it has no deployment."""
    cells = _option_cells(row)
    if row.step_s is None:
        return cells + [DASH] * len(columns)
    for show_cell in columns.values():
        cells.append(show_cell(row))
    return cells


def _batch(row: ServedRow) -> str:
    return option_text(row.batch)


def _tpot(row: ServedRow) -> str:
    return duration(row.tpot_s or 0.0)


def _roofline_s(row: ServedRow) -> float:
    """Seconds of a decode step at peak rates; 0 without a deployment."""
    if row.step_s is None:
        return 0.0
    return row.step_s.lower


def _tokens_per_s(row: ServedRow) -> str:
    return f"{row.tokens_per_s:,.0f}"


def _tokens_per_s_per_chip(row: ServedRow) -> str:
    return units.significant(row.tokens_per_s_per_chip or 0.0)


def _memory(row: ServedRow) -> str:
    return units.show_gib(row.memory_bytes or 0.0)


def _bound(row: ServedRow) -> str:
    """The longest part of a decode step and its share of the step: `weights 61 %`."""
    return f"{BOUND_LABELS[row.bound or '']} {percent(row.share or 0.0)}"


def _dollars(row: ServedRow) -> str:
    """Price of a million output tokens; a dash without a public price."""
    dollars = row.usd_per_million_output_tokens
    if dollars is None:
        return DASH
    return f"{dollars:,.2f}"


def _engine(row: ServedRow, *, show_machine: bool = True) -> str:
    """The engines of a row and their machine: `2 of tensor 4, v5e:2x4`.

    The machine is left out if it is one of the swept options of the row.
    """
    engines = mesh_text({**(row.mesh or {}), "data": 1})
    if row.engines and row.engines > 1:
        engines = f"{row.engines:,} of {engines}"
    if row.weights != "stationary":
        engines += f" ({row.weights})"
    if row.prefill_mesh:
        engines += f" + prefill {mesh_text({**row.prefill_mesh, 'data': 1})}"
    if show_machine and row.swept.get("hardware") != row.hardware:
        engines += f", {row.hardware}"
    return engines
