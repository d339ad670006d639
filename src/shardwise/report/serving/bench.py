"""Measurements of a server: a line for each load, percentiles, and a plan's prediction beside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from shardwise import units
from shardwise.report.style import Block, bar, labelled, printable, quiet, strong, table
from shardwise.report.tables import DASH, markdown
from shardwise.report.words import duration, percent
from shardwise.serve.load.bench import BenchResult
from shardwise.serve.load.measurement import Measurement
from shardwise.simulate import Spread

LARGE_LAG_S = 5e-3  # of this client's event loop at p99; above it, and above ...
LARGE_LAG = 0.1  # ... this share of TPOT, the client's own delays change what it measures
LOW_RATE = 0.95  # of the rate that was asked for, below which the client could not keep up


def blocks(result: BenchResult, *, verbose: bool, failures: Sequence[str]) -> Iterator[Block]:
    """The best loads, a table of all, the Pareto front, and what the plan predicts."""
    rows = result.rows
    yield strong(_headline(result))
    yield labelled(_context(result))
    headers, cells = _table(result)
    yield table(headers, cells)
    if len(rows) > 1:
        yield ""
        yield from _pareto(result)
    if len(rows) == 1 or verbose:
        for row in rows:
            yield ""
            yield from _details(row)
    elif any(row.prediction for row in rows):
        yield ""
        yield table(*_prediction(rows))
        yield quiet("×: measured over simulated; means: the planner's closed form without queues")
    yield labelled(_notes(result))
    if failures:
        yield labelled([("✗", failure) for failure in failures])
    yield quiet("type  -o md, csv or jsonl  ·  -v: percentiles  ·  --json: everything")


def load_text(row: Measurement) -> str:
    """The load of a row: `4/s`, `8 users`, or `recorded`."""
    if row.users:
        return f"{row.users:,} user" + ("s" if row.users > 1 else "")
    if row.rate is None:
        return "recorded"
    return f"{row.rate:g}/s"


def errors_text(rows: Iterable[Measurement]) -> str:
    """Every kind of error with its number and first message: `3 × HTTP 503 (overloaded)`."""
    counts: dict[str, int] = {}
    messages: dict[str, str] = {}
    for row in rows:
        for kind, count in row.errors.items():
            counts[kind] = counts.get(kind, 0) + count
            messages.setdefault(kind, row.messages[kind])
    texts = [f"{count:,} × {kind} ({messages[kind]})" for kind, count in counts.items()]
    return printable(", ".join(texts))


def flat_rows(result: BenchResult) -> list[dict[str, Any]]:
    """The rows for csv and jsonl, in SI units: `ttft_s.p50` is `ttft_s_p50`."""
    rows = []
    for row in result.rows:
        flat: dict[str, Any] = {}
        for name, value in asdict(row).items():
            if name in ("prediction", "ratios", "messages"):
                continue
            if name == "errors":
                value = row.n_errors
            if isinstance(value, dict):
                flat |= {f"{name}_{statistic}": number for statistic, number in value.items()}
            else:
                flat[name] = value
        if row.prediction:
            flat["simulated_ttft_s_p50"] = row.prediction.simulated.ttft_s.p50
            flat["simulated_tpot_s_p50"] = row.prediction.simulated.tpot_s.p50
            flat["simulated_output_tokens_per_s"] = row.prediction.simulated.output_tokens_per_s
        rows.append(flat)
    return rows


def as_markdown(result: BenchResult) -> str:
    """The table of all loads in Markdown, and that of the plan's prediction if there is one."""
    tables = [markdown(*_table(result))]
    if any(row.prediction for row in result.rows):
        tables.append(markdown(*_prediction(result.rows)))
    return "\n".join(tables)


def _headline(result: BenchResult) -> str:
    answered = [row for row in result.rows if row.requests]
    best = max(answered, key=lambda row: row.output_tokens_per_s)
    text = f"{_throughput(best)} output tokens/s at {load_text(best)}: {_medians(best)}."
    if len(result.rows) == 1:
        return text
    fastest = min(answered, key=lambda row: row.tpot_s.p50)
    text = f"Highest throughput: {text}"
    if fastest is not best:
        text += f" Lowest TPOT: {duration(fastest.tpot_s.p50)} at {load_text(fastest)}."
    return text


def _medians(row: Measurement) -> str:
    return f"TTFT {duration(row.ttft_s.p50)}, TPOT {duration(row.tpot_s.p50)} at p50"


def _context(result: BenchResult) -> Iterator[tuple[str, str]]:
    """What was measured: the server, and the requests."""
    kind = "chats" if result.chat else "completions"
    yield "server", f"{printable(result.model)} at {result.url}, {kind}"
    n_requests = max(row.requests + row.n_errors for row in result.rows)
    lengths = "lengths as recorded"
    if result.prompt is not None:
        lengths = f"{result.prompt:,} + {result.output:,} tokens"
    arrivals = f"{result.arrivals} arrivals"
    if result.rows[0].users:
        arrivals = "each user waits for its answer"
    yield "load", f"{n_requests:,} requests, {lengths}; {arrivals}, seed {result.seed}"


def _table(result: BenchResult) -> tuple[list[str], list[list[str]]]:
    """Headers and cells of the table of all loads."""
    has_bounds = result.ttft_bound_s is not None or result.tpot_bound_s is not None
    has_errors = any(row.errors for row in result.rows)
    headers = [
        ">!load", ">!TTFT\n p50", ">!TTFT\n p99", ">!TPOT\n p50", ">!TPOT\n p99", ">!latency\n p99",
        ">!req/s", ">!tok/s",
    ]  # fmt: skip
    if has_bounds:
        headers.append(">!within")
    if has_errors:
        headers.append(">!errors")
    rows = []
    for row in result.rows:
        latencies = (
            row.ttft_s.p50, row.ttft_s.p99, row.tpot_s.p50, row.tpot_s.p99, row.latency_s.p99,
        )  # fmt: skip
        cells = [load_text(row)]
        if row.requests:
            cells += map(duration, latencies)
            cells += [units.significant(row.requests_per_s), _throughput(row)]
        else:
            cells += [DASH] * (len(latencies) + 2)
        if has_bounds:
            cells.append(percent(row.within))
        if has_errors:
            cells.append(f"{row.n_errors:,}")
        rows.append(cells)
    return headers, rows


def _throughput(row: Measurement) -> str:
    return units.significant(row.output_tokens_per_s)


def _pareto(result: BenchResult) -> Iterator[Block]:
    """The loads that no other beats in both throughput and TPOT."""
    front = [result.rows[index] for index in result.pareto]
    highest = max(row.output_tokens_per_s for row in front)
    cells = []
    for row in front:
        share = bar(row.output_tokens_per_s, highest, 30)
        cells.append([f"  {load_text(row)}", duration(row.tpot_s.p50), _throughput(row), share])
    yield table(["Pareto front", ">TPOT", ">tok/s", ""], cells)


def _details(row: Measurement) -> Iterator[Block]:
    """Percentiles of a load; with a plan, those of the simulation and the ratios."""
    measured = {"TTFT": row.ttft_s, "TPOT": row.tpot_s, "ITL": row.itl_s, "latency": row.latency_s}
    cells = []
    for name, spread in measured.items():
        cells.append([f"  {name}", *_cells(spread)])
        if row.prediction and row.ratios and name != "ITL":
            simulated = row.prediction.simulated
            spreads = {
                "TTFT": (simulated.ttft_s, row.ratios.ttft),
                "TPOT": (simulated.tpot_s, row.ratios.tpot),
                "latency": (simulated.latency_s, row.ratios.latency),
            }
            simulated_spread, ratio = spreads[name]
            cells.append(["    simulated", *_cells(simulated_spread)])
            cells.append(["    measured / simulated", *map(_ratio, _numbers(ratio))])
    yield table([f"at {load_text(row)}", ">mean", ">p50", ">p90", ">p99"], cells)
    yield labelled(_facts(row))


def _facts(row: Measurement) -> Iterator[tuple[str, str]]:
    """Throughput, goodput and what the plan says of them."""
    tokens = f"{_throughput(row)} output tokens/s, {units.significant(row.total_tokens_per_s)}"
    text = f"{tokens} with prompts, {units.significant(row.requests_per_s)} requests/s"
    if row.within < 1:
        text += f"; {percent(row.within)} within the bounds, {units.significant(row.goodput)}/s"
    yield "rates", text
    if row.prediction and row.ratios:
        prediction = row.prediction
        tokens = units.significant(prediction.simulated.output_tokens_per_s)
        ratio = _ratio(row.ratios.output_tokens_per_s)
        yield (
            "plan",
            f"{tokens} output tokens/s simulated (measured {ratio}); means without queues: TTFT "
            f"{duration(prediction.means_ttft_s)}, TPOT {duration(prediction.means_tpot_s)}",
        )


def _prediction(rows: Sequence[Measurement]) -> tuple[list[str], list[list[str]]]:
    """Headers, and a row of cells for each load: what the plan's simulation says, and measured
    over simulated."""
    cells = []
    for row in rows:
        prediction = row.prediction
        ratios = row.ratios
        if prediction is None or ratios is None:
            cells.append([load_text(row), *[DASH] * 8])
            continue
        simulated = prediction.simulated
        cells.append(
            [
                load_text(row),
                duration(simulated.ttft_s.p50),
                _ratio(ratios.ttft.p50),
                duration(simulated.tpot_s.p50),
                _ratio(ratios.tpot.p50),
                units.significant(simulated.output_tokens_per_s),
                _ratio(ratios.output_tokens_per_s),
                duration(prediction.means_ttft_s),
                duration(prediction.means_tpot_s),
            ]
        )
    headers = [
        ">!plan", ">!TTFT\n p50", ">!×", ">!TPOT\n p50", ">!×", ">!tok/s", ">!×", ">!means\n TTFT",
        ">!means\n TPOT",
    ]  # fmt: skip
    return headers, cells


def _notes(result: BenchResult) -> Iterator[tuple[str, str]]:
    """The client's own punctuality, errors, and lengths that are not those asked for."""
    rows = result.rows
    slowest = max(rows, key=lambda row: row.lag_s.p99)
    text = f"event loop {duration(slowest.lag_s.p99)} late at p99"
    if slowest.lag_s.p99 > max(LARGE_LAG_S, LARGE_LAG * slowest.tpot_s.p50):
        text += f" at {load_text(slowest)}: latencies may be too long by that much"
    yield "client", text
    for row in rows:
        if row.rate and row.achieved_rate < LOW_RATE * row.rate:
            yield (
                "",
                f"{units.significant(row.achieved_rate)}/s sent of {load_text(row)}: this client "
                "cannot send faster",
            )
    if any(row.errors for row in rows):
        yield "errors", errors_text(rows)
    n_short = sum(row.short_outputs for row in rows)
    if n_short:
        yield "lengths", f"{n_short:,} outputs are shorter than was asked for"
    prompt_tokens = sum(row.prompt_tokens for row in rows)
    n_requests = sum(row.requests for row in rows)
    if result.prompt and prompt_tokens and prompt_tokens != result.prompt * n_requests:
        mean = units.significant(prompt_tokens / n_requests)
        yield "prompts", f"{mean} tokens on average, as the server counts them"
    n_cached = sum(row.cached_tokens for row in rows)
    if n_cached:
        yield "cached", f"{percent(n_cached / prompt_tokens)} of the tokens of prompts"


def _cells(spread: Spread) -> list[str]:
    return [*map(duration, _numbers(spread))]


def _numbers(spread: Spread) -> tuple[float, float, float, float]:
    return spread.mean, spread.p50, spread.p90, spread.p99


def _ratio(value: float) -> str:
    return f"×{units.significant(value, 3)}"
