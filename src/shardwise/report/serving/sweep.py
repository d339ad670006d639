"""A sweep of serving as a table for the screen, or as Markdown, CSV or JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from shardwise import units
from shardwise.plan.serving.sweep import ServedRow, ServingSweep
from shardwise.report.style import Block, labelled, quiet, strong, table
from shardwise.report.training.sweep import DASH, as_rows, heads_of, markdown, word
from shardwise.report.words import mesh_text, percent

# Options as the command line calls them, and how their values are written.
NAMES = {"tpot_s": "tpot", "ttft_s": "ttft", "drafted": "draft", "kv_dtype": "KV dtype"}
SHOWN: dict[str, Callable[[float], str]] = {
    "tpot_s": units.show_seconds,
    "ttft_s": units.show_seconds,
    "cached": percent,
    "acceptance": percent,
    "rate": lambda value: f"{value:g}/s",
}
WIDTH = 80
BINDS = {
    "weights": "weights",
    "kv": "KV",
    "flops": "FLOPs",
    "network": "network",
    "software": "kernels",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """Which columns a screen has: the batch, dollars, roofline with tokens/s, the machine."""

    batch: bool
    money: bool
    times: bool
    machine: bool


def blocks(found: ServingSweep) -> Iterator[Block]:
    """The best row in words, then all rows; engines that are all alike stand in the words alone."""
    yield strong(headline(found))
    problems = list(dict.fromkeys(row.problem for row in found.rows if row.problem))
    shown = _Columns(
        batch="batch" not in found.options,
        money=any(row.usd_per_million_output_tokens is not None for row in found.rows),
        times=len({_engine(row) for row in _there(found)}) <= 1,
        machine=len({row.hardware for row in _there(found)}) > 1,
    )
    heads = [*_heads(found), *[">!batch"] * shown.batch, ">!token"]
    heads += [">!roofline", ">!tok/s"] if shown.times else []
    heads += [">!tok/s/chip" if shown.times else ">!/s/chip", ">!HBM", "!binds"]
    heads += [">!$/M out"] * shown.money + ["engine"] * (not shown.times)
    rows = []
    for row in found.rows:
        none = f"none ({problems.index(row.problem) + 1})" if row.problem else ""
        rows.append(_cells(row, shown, none))
    listed: dict[str, str] = {}
    if not shown.times and _width(heads, rows) > WIDTH:  # long engines stand below, by a letter
        heads[-1] = ""
        for cells in rows:
            if cells[-1]:
                letter = listed.setdefault(cells[-1], _letter(len(listed)))
                cells[-1] = letter
    yield table(heads, rows)
    yield labelled((letter, engine) for engine, letter in listed.items())
    yield labelled((f"({i})", problem) for i, problem in enumerate(problems, 1))
    last = "type  -o md, csv or jsonl writes it  ·  shardwise plan --serve has all of a row"
    yield quiet(last)


def _width(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Columns of a table that is not wrapped."""
    columns = zip(*[[head.lstrip(">!") for head in heads], *rows], strict=True)
    return sum(max(map(len, cells)) + 2 for cells in columns) - 2


def _letter(n: int) -> str:
    """A, B ... Z, AA, AB ..."""
    first, last = divmod(n, 26)
    return (_letter(first - 1) if first else "") + chr(ord("A") + last)


def headline(found: ServingSweep) -> str:
    """Which combination has most tokens per second and chip, and which least time per token."""
    rows = _there(found)
    lost = len(found.rows) - len(rows)
    none = f" {lost:,} of {len(found.rows):,} have no deployment." if lost else ""
    if not rows:
        return f"No deployment for any of {len(found.rows):,} combinations."
    most = max(rows, key=lambda row: row.tokens_per_s_per_chip or 0.0)
    soon = min(rows, key=lambda row: row.tpot_s or 0.0)
    text = f"Most tokens per second and chip: {_which(most)} ({_rate(most)}, {_token(most)} a token"
    text += f", {_engine(most)})."
    if soon is not most:
        text += f" Least time: {_which(soon)} ({_token(soon)}, {_rate(soon)})."
    return text + none


def text(found: ServingSweep, how: str) -> str:
    """All rows as Markdown, CSV or JSON lines; csv and jsonl in SI units."""
    return _markdown(found) if how == "md" else as_rows(found.to_dicts(), how)


def _there(found: ServingSweep) -> list[ServedRow]:
    return [row for row in found.rows if row.step_s]


def _which(row: ServedRow) -> str:
    told = zip(row.swept, _options(row), strict=True)
    return ", ".join(f"{NAMES.get(k, k)} {v}" for k, v in told) or "the one deployment"


def _heads(found: ServingSweep) -> list[str]:
    named = {NAMES.get(k, k): v for k, v in found.rows[0].swept.items()}
    return [f"!{head}" for head in heads_of(named)]


def _options(row: ServedRow) -> list[str]:
    return [SHOWN[k](v) if k in SHOWN else word(v) for k, v in row.swept.items()]


def _token(row: ServedRow) -> str:
    return units.show_seconds(row.tpot_s or 0.0)


def _rate(row: ServedRow) -> str:
    return units.significant(row.tokens_per_s_per_chip or 0.0)


def _engine(row: ServedRow, *, machine: bool = True) -> str:
    """`2 of tensor 4, v5e:2x4`; without the machine where that is an option of the row."""
    many = f"{row.engines:,} of " if row.engines and row.engines > 1 else ""
    told = f"{many}{mesh_text({**(row.mesh or {}), 'data': 1})}"
    told += f" ({row.weights})" if row.weights != "stationary" else ""
    told += f" + {mesh_text({**row.prefill_mesh, 'data': 1})} reads" if row.prefill_mesh else ""
    known = not machine or row.swept.get("hardware") == row.hardware
    return told if known else f"{told}, {row.hardware}"


def _binds(row: ServedRow) -> str:
    return f"{BINDS[row.bound or '']} {percent(row.share or 0.0)}"


def _dollars(row: ServedRow) -> str:
    found = row.usd_per_million_output_tokens
    return DASH if found is None else f"{found:,.2f}"


def _cells(row: ServedRow, shown: _Columns, none: str) -> list[str]:
    options = _options(row)
    if row.step_s is None:
        before = [*options, *[DASH] * (3 + shown.batch + 2 * shown.times)]
        return [*before, none, *[DASH] * shown.money, *[""] * (not shown.times)]
    return [
        *options,
        *[word(row.batch)] * shown.batch,
        _token(row),
        *[units.show_seconds(row.step_s.lower), f"{row.tokens_per_s:,.0f}"] * shown.times,
        _rate(row),
        units.show_gib(row.memory_bytes or 0.0),
        _binds(row),
        *[_dollars(row)] * shown.money,
        *[_engine(row, machine=shown.machine)] * (not shown.times),
    ]


def _markdown(found: ServingSweep) -> str:
    chosen = "batch" not in found.options
    heads = [*(head.lstrip("!") for head in _heads(found)), *[">batch"] * chosen]
    heads += [">ms / token", ">roofline ms", ">tokens/s", ">tokens/s/chip", ">HBM / chip", "bound"]
    heads += [">$ / M output tokens", "engine"]
    return markdown(heads, [_line(row, chosen) for row in found.rows])


def _line(row: ServedRow, batch: bool) -> Sequence[str]:
    options = _options(row)
    if row.step_s is None:
        return [*options, *[DASH] * (7 + batch), row.problem or ""]
    return [
        *options,
        *[word(row.batch)] * batch,
        units.significant((row.tpot_s or 0.0) / units.MS),
        units.significant(row.step_s.lower / units.MS),
        f"{row.tokens_per_s:,.0f}",
        _rate(row),
        units.show_gib(row.memory_bytes or 0.0),
        _binds(row),
        _dollars(row),
        _engine(row),
    ]
