"""A sweep of serving as a table for the screen, or as Markdown, CSV or JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from shardwise import units
from shardwise.plan.serving.sweep import ServedRow, ServingSweep
from shardwise.report.style import Block, labelled, quiet, strong, table
from shardwise.report.tables import (
    DASH,
    distinct_problems,
    footnotes,
    markdown,
    option_heads,
    option_text,
    problem_number,
)
from shardwise.report.words import duration, mesh_text, percent

# Option of the Python API -> its name on the command line.
OPTION_LABELS = {"tpot_s": "tpot", "ttft_s": "ttft", "drafted": "draft", "kv_dtype": "KV dtype"}
OPTION_FORMATS: dict[str, Callable[[Any], str]] = {
    "tpot_s": duration,
    "ttft_s": duration,
    "cached": percent,
    "acceptance": percent,
    "rate": lambda value: f"{value:g}/s",
}
BOUND_LABELS = {
    "weights": "weights",
    "kv": "KV",
    "flops": "FLOPs",
    "network": "network",
    "software": "kernels",
}
SCREEN_COLUMNS = 80
ALPHABET = 26

# Head of a column -> the cell of a row that has a deployment.
Columns = dict[str, Callable[[ServedRow], str]]


def blocks(sweep: ServingSweep) -> Iterator[Block]:
    """The best rows in words, then all rows.

    The engine has a column where rows differ in it; the headline names an engine common to all.
    """
    yield strong(headline(sweep))
    deployed = _deployed(sweep)
    same_engine = len({_engine(row) for row in deployed}) <= 1
    columns = _screen_columns(sweep, same_engine=same_engine)
    problems = distinct_problems(sweep.rows)
    heads = [*_option_heads(sweep), *columns]
    rows = []
    for row in sweep.rows:
        cells = _cells(row, columns)
        if row.problem:
            cells[heads.index("!bound")] = problem_number(problems, row.problem)
            if not same_engine:
                cells[-1] = ""
        rows.append(cells)
    letters: dict[str, str] = {}
    if not same_engine and _table_width(heads, rows) > SCREEN_COLUMNS:
        letters = _replace_engines(heads, rows)
    yield table(heads, rows)
    yield labelled((letter, engine) for engine, letter in letters.items())
    yield footnotes(problems)
    yield quiet("type  -o md, csv or jsonl  ·  shardwise plan --serve shows details")


def _screen_columns(sweep: ServingSweep, *, same_engine: bool) -> Columns:
    deployed = _deployed(sweep)
    columns: Columns = {}
    if "batch" not in sweep.options:
        columns[">!batch"] = _batch
    columns[">!TPOT"] = _tpot
    if same_engine:
        columns[">!roofline"] = lambda row: duration(_roofline_s(row))
        columns[">!tok/s"] = _tokens_per_s
    columns[">!tok/s/chip" if same_engine else ">!tok/s\n/chip"] = _throughput
    columns[">!HBM"] = _memory
    columns["!bound"] = _bound
    if any(row.usd_per_million_output_tokens is not None for row in deployed):
        columns[">!$/M out"] = _dollars
    if not same_engine:
        same_machine = len({row.hardware for row in deployed}) <= 1
        columns["engine"] = lambda row: _engine(row, machine=not same_machine)
    return columns


def _replace_engines(heads: list[str], rows: Sequence[list[str]]) -> dict[str, str]:
    """Replace engines in the last column by letters; returns the letter of each engine."""
    letters: dict[str, str] = {}
    heads[-1] = ""
    for cells in rows:
        if cells[-1]:
            cells[-1] = letters.setdefault(cells[-1], _letter(len(letters)))
    return letters


def _table_width(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Width in characters of a table that is not wrapped."""
    width = 0
    for head, *cells in zip(heads, *rows, strict=True):
        width += max(map(len, [*head.lstrip(">!").splitlines(), *cells])) + 2
    return width - 2


def _letter(index: int) -> str:
    """A, B ... Z, AA, AB ..."""
    quotient, remainder = divmod(index, ALPHABET)
    prefix = _letter(quotient - 1) if quotient else ""
    return prefix + chr(ord("A") + remainder)


def headline(sweep: ServingSweep) -> str:
    """The combination with the highest throughput per chip, and that with the lowest TPOT."""
    n_rows = len(sweep.rows)
    deployed = _deployed(sweep)
    if not deployed:
        return f"No deployment for any of {n_rows:,} combinations."
    densest = max(deployed, key=lambda row: row.tokens_per_s_per_chip or 0.0)
    fastest = min(deployed, key=lambda row: row.tpot_s or 0.0)
    text = (
        f"Highest throughput: {_combination(densest)} ({_throughput(densest)} tokens/s/chip, "
        f"TPOT {_tpot(densest)}, {_engine(densest)})."
    )
    if fastest is not densest:
        text += (
            f" Lowest TPOT: {_combination(fastest)} ({_tpot(fastest)}, "
            f"{_throughput(fastest)} tokens/s/chip)."
        )
    if len(deployed) < n_rows:
        text += f" {n_rows - len(deployed):,} of {n_rows:,} have no deployment."
    return text


def as_markdown(sweep: ServingSweep) -> str:
    """All rows as a Markdown table."""
    columns: Columns = {}
    if "batch" not in sweep.options:
        columns[">batch"] = _batch
    columns |= {
        ">TPOT ms": lambda row: units.significant((row.tpot_s or 0.0) / units.MS),
        ">roofline ms": lambda row: units.significant(_roofline_s(row) / units.MS),
        ">tokens/s": _tokens_per_s,
        ">tokens/s/chip": _throughput,
        ">HBM / chip": _memory,
        "bound": _bound,
        ">$ / M output tokens": _dollars,
        "engine": _engine,
    }
    rows = []
    for row in sweep.rows:
        cells = _cells(row, columns)
        if row.problem:
            cells[-1] = row.problem
        rows.append(cells)
    options = [head.lstrip("!") for head in _option_heads(sweep)]
    return markdown([*options, *columns], rows)


def _deployed(sweep: ServingSweep) -> list[ServedRow]:
    return [row for row in sweep.rows if row.step_s]


def _option_heads(sweep: ServingSweep) -> list[str]:
    return [f"!{head}" for head in option_heads(sweep.rows[0].swept, OPTION_LABELS)]


def _combination(row: ServedRow) -> str:
    """`batch 32, dtype int8`: the values of the swept options."""
    values = zip(row.swept, _options(row), strict=True)
    options = [f"{OPTION_LABELS.get(name, name)} {value}" for name, value in values]
    return ", ".join(options) or "the only deployment"


def _options(row: ServedRow) -> list[str]:
    return [OPTION_FORMATS.get(name, option_text)(value) for name, value in row.swept.items()]


def _cells(row: ServedRow, columns: Columns) -> list[str]:
    cells = _options(row)
    for show in columns.values():
        cells.append(show(row) if row.step_s else DASH)
    return cells


def _batch(row: ServedRow) -> str:
    return option_text(row.batch)


def _tpot(row: ServedRow) -> str:
    return duration(row.tpot_s or 0.0)


def _roofline_s(row: ServedRow) -> float:
    return row.step_s.lower if row.step_s else 0.0


def _tokens_per_s(row: ServedRow) -> str:
    return f"{row.tokens_per_s:,.0f}"


def _throughput(row: ServedRow) -> str:
    return units.significant(row.tokens_per_s_per_chip or 0.0)


def _memory(row: ServedRow) -> str:
    return units.show_gib(row.memory_bytes or 0.0)


def _bound(row: ServedRow) -> str:
    """`weights 61 %`: the longest part of a decode step and its share."""
    return f"{BOUND_LABELS[row.bound or '']} {percent(row.share or 0.0)}"


def _dollars(row: ServedRow) -> str:
    dollars = row.usd_per_million_output_tokens
    return DASH if dollars is None else f"{dollars:,.2f}"


def _engine(row: ServedRow, *, machine: bool = True) -> str:
    """`2 of tensor 4, v5e:2x4`; without the machine where an option of the row names it."""
    text = mesh_text({**(row.mesh or {}), "data": 1})
    if row.engines and row.engines > 1:
        text = f"{row.engines:,} of {text}"
    if row.weights != "stationary":
        text += f" ({row.weights})"
    if row.prefill_mesh:
        text += f" + prefill {mesh_text({**row.prefill_mesh, 'data': 1})}"
    if machine and row.swept.get("hardware") != row.hardware:
        text += f", {row.hardware}"
    return text
