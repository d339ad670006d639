"""`shardwise bench URL --rate 1-16*2 --prompt 256 --output 64`: load a server and measure it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import shardwise as sw
from shardwise import units
from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.inputs import Inputs, load_plan, parse_word
from shardwise.cli.options import argument, option, output, workload
from shardwise.cli.progress import counting
from shardwise.cli.ranges import parse_values, split_rate
from shardwise.errors import BadFile, BadInput, CheckFailed, NoAnswer
from shardwise.plan.serving.arrivals import Arrivals, read_arrivals
from shardwise.report.serving import bench as report
from shardwise.report.tables import FORMATS, rows_text
from shardwise.report.words import duration as duration_text
from shardwise.serve.load.bench import BenchResult, Point, bench
from shardwise.serve.load.measurement import Measurement
from shardwise.serve.load.requests import Shape, read_text

DEFAULT_REQUESTS = 64
DEFAULT_WARMUP = 4
KEY_VARIABLE = "OPENAI_API_KEY"
GATES = ("ttft", "tpot", "itl", "latency")


def run(
    url: Annotated[str, argument("URL", "a server with the OpenAI API: http://localhost:8000")],
    rate: options.RequestRate = "",
    concurrency: Annotated[
        str, workload("--concurrency N", "instead of --rate: users who wait for each answer")
    ] = "",
    traffic: Annotated[
        str,
        workload(
            "--traffic KIND",
            "poisson, constant, bursty[:CV], or requests in a .csv or .jsonl  [default: poisson]",
        ),
    ] = "",
    prompt: options.PromptLength = "",
    output_tokens: options.OutputLength = "",
    text: Annotated[
        str, workload("--text FILE", "cut prompts from this text  [default: random tokens]")
    ] = "",
    requests: Annotated[
        str,
        workload(
            "--requests N",
            f"requests at each rate  [default: {DEFAULT_REQUESTS}, or the whole recording]",
        ),
    ] = "",
    duration: Annotated[
        str, workload("--duration TIME", "instead of --requests: how long to send them")
    ] = "",
    warmup: Annotated[
        str,
        workload("--warmup N", f"requests before, which do not count  [default: {DEFAULT_WARMUP}]"),
    ] = "",
    seed: Annotated[
        int | None,
        workload(
            "--seed N",
            "seed of arrivals and prompts  [default: a new one, as servers cache prompts]",
        ),
    ] = None,
    ttft: options.TtftBound = "",
    tpot: options.TpotBound = "",
    model: Annotated[
        str, option("Server", "--model NAME", "the model  [default: the first that it lists]")
    ] = "",
    chat: Annotated[
        bool, option("Server", "--chat", "send chats  [default: texts to complete]")
    ] = False,
    key_file: Annotated[
        str,
        option("Server", "--key-file FILE", f"file of the API key  [default: ${KEY_VARIABLE}]"),
    ] = "",
    plan: Annotated[
        str, output("--plan FILE", "predict the same requests by this plan of serving")
    ] = "",
    most: Annotated[
        str,
        output("--max NAME=TIME,...", f"exit 4 if a p99 is longer: {', '.join(GATES)}"),
    ] = "",
    file: options.ServingTableFormat = "",
    verbose: options.Verbose = False,
    json: options.Json = False,
) -> Answer:
    """Send requests to a server and measure its latency and throughput, at one load or at each of
    a range: --rate 1-16*2, --concurrency 1-64*2. Outputs have exactly the length that is asked
    for, if the server knows ignore_eos."""
    inputs = Inputs()
    address = inputs.read(parse_url, url)
    arrivals = inputs.read(_arrivals, traffic)
    # A recording that cannot be read would have given the load.
    is_recorded = arrivals is None or arrivals.trace is not None
    points = inputs.read(_points, rate, concurrency, is_recorded=is_recorded)
    shape = inputs.read(
        _shape, arrivals, prompt, output_tokens, requests, duration, seed, is_recorded=is_recorded
    )
    n_warmup = inputs.optional(units.parse_whole, warmup, "--warmup", low=0)
    ttft_s = inputs.optional(units.parse_seconds, ttft, "--ttft")
    tpot_s = inputs.optional(units.parse_seconds, tpot, "--tpot")
    gates = inputs.optional(_gates, most) or {}
    key = inputs.read(_api_key, key_file)
    source = inputs.optional(read_text, text) or ""
    serving_plan = inputs.optional(_serving_plan, plan)
    inputs.optional(parse_word, file, "format", FORMATS)
    inputs.done()
    with counting("requests", quiet=json) as progress:
        result = bench(
            address,
            points,
            shape,
            model=model,
            key=key,
            chat=chat,
            text=source,
            warmup=DEFAULT_WARMUP if n_warmup is None else n_warmup,
            ttft_s=ttft_s,
            tpot_s=tpot_s,
            plan=serving_plan,
            on_reply=progress,
        )
    if not any(row.requests for row in result.rows):
        raise NoAnswer(f"{address} answered no request: {report.errors_text(result.rows)}.")
    failures = _failures(result, gates)
    raw = ""
    if file == "md":
        raw = report.as_markdown(result)
    elif file:
        raw = rows_text(report.flat_rows(result), file)
    return Answer(
        document=lambda: result,
        blocks=report.blocks(result, verbose=verbose, failures=failures),
        raw=raw,
        as_json=json,
        exit_code=CheckFailed.exit_code if failures else 0,
    )


def parse_url(text: str) -> str:
    """Parse the address of a server to one without /v1: `http://localhost:8000/v1`.

    Raises:
        BadInput: not an address of http or https.
    """
    try:
        parts = urlsplit(text)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        has_host = False
        parts = urlsplit("")
    is_plain = text.isascii() and text.isprintable() and " " not in text
    if parts.scheme not in ("http", "https") or not has_host or not is_plain:
        raise BadInput(f'"{text}" is not the URL of a server. Write http://localhost:8000.')
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


def _arrivals(text: str) -> Arrivals:
    return read_arrivals(text or "poisson")


def _points(rate: str, concurrency: str, *, is_recorded: bool) -> tuple[Point, ...]:
    """The loads of --rate or --concurrency; without them, a recording as it is.

    Raises:
        BadInput: both are given, or neither and there is no recording.
    """
    if rate and concurrency:
        raise BadInput("--rate sends at given times, --concurrency after each answer. Use one.")
    if rate:
        return tuple(Point(rate=value) for value in parse_rates(rate))
    if concurrency:
        return tuple(Point(users=n) for n in parse_values(concurrency, "--concurrency"))
    if not is_recorded:
        raise BadInput("no load is given: --rate 4/s, --rate 1-16*2, or --concurrency 8.")
    return (Point(),)


def parse_rates(text: str) -> tuple[float, ...]:
    """Parse rates to requests per second: `1-16*2`, `0.5,1,2`, `20/s`, `30-120*2/min`.

    >>> parse_rates("1-8*2"), parse_rates("30,60/min")
    ((1.0, 2.0, 4.0, 8.0), (0.5, 1.0))

    Raises:
        BadInput: not a rate, a list or a range.
    """
    numbers, unit_s = split_rate(text)
    rates: tuple[float, ...]
    if any(sign in numbers for sign in "-*+"):
        rates = parse_values(numbers, "--rate")
    else:
        rates = tuple(units.parse_count(number, "--rate") for number in numbers.split(","))
    if not all(rates):
        raise BadInput(f'--rate "{text}": requests that never arrive cannot be measured.')
    return tuple(value / unit_s for value in rates)


def _shape(
    arrivals: Arrivals | None,
    prompt: str,
    output_tokens: str,
    requests: str,
    duration: str,
    seed: int | None,
    *,
    is_recorded: bool,
) -> Shape:
    """Lengths, number and seed of the requests.

    Raises:
        BadInput: with every option that is wrong.
    """
    inputs = Inputs()
    if arrivals and is_recorded and (prompt or output_tokens):
        inputs.refuse("a recording has the lengths. Leave --prompt and --output out.")
    if not is_recorded and not (prompt and output_tokens):
        inputs.refuse(
            "no length of requests is given: --prompt 256 --output 64, or recorded requests: "
            "--traffic FILE."
        )
    if requests and duration:
        inputs.refuse("--requests and --duration both say when to stop. Use one.")
    if seed is not None and seed < 0:
        inputs.refuse(f"--seed {seed} is below 0.")
    seconds = inputs.optional(units.parse_seconds, duration, "--duration")
    if seconds is not None and seconds <= 0:
        inputs.refuse(f"--duration {duration} sends nothing.")
    n_requests = inputs.optional(units.parse_whole, requests, "--requests")
    n_prompt = inputs.optional(units.parse_length, prompt, "--prompt")
    n_output = inputs.optional(units.parse_length, output_tokens, "--output")
    inputs.done()
    if not (n_requests or seconds or is_recorded):
        n_requests = DEFAULT_REQUESTS
    return Shape(
        arrivals=arrivals or Arrivals(),
        prompt=n_prompt or 1,
        output=n_output or 1,
        requests=n_requests,
        seconds=seconds,
        seed=time.time_ns() % 2**32 if seed is None else seed,
    )


def _gates(text: str) -> dict[str, float]:
    """Parse --max: `ttft=500ms,tpot=50ms`.

    Raises:
        BadInput: with every part that is wrong.
    """
    inputs = Inputs()
    gates: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            inputs.refuse(f'--max "{part}" is not NAME=TIME. Write ttft=500ms,tpot=50ms.')
            continue
        inputs.read(parse_word, name, "name of --max", GATES)
        gates[name] = inputs.read(units.parse_seconds, value, f"--max {name}")
    inputs.done()
    return gates


def _failures(result: BenchResult, gates: dict[str, float]) -> list[str]:
    """What does not hold of --max; a request without an answer does not meet any bound."""
    failures = []
    for row in result.rows:
        for name, bound_s in gates.items():
            p99_s = p99(row, name)
            if p99_s > bound_s:
                failures.append(
                    f"{report.load_text(row)}: {name} is {duration_text(p99_s)} at p99, above "
                    f"{duration_text(bound_s)}."
                )
        if gates and row.n_errors:
            failures.append(f"{report.load_text(row)}: {row.n_errors:,} requests failed.")
    return failures


def p99(row: Measurement, name: str) -> float:
    """The 99th percentile of a latency of `GATES`, in seconds."""
    spreads = {
        "ttft": row.ttft_s,
        "tpot": row.tpot_s,
        "itl": row.itl_s,
        "latency": row.latency_s,
    }
    return spreads[name].p99


def _api_key(path: str) -> str:
    """The key in a file, else in the environment; empty without either.

    Raises:
        BadFile: the file cannot be read, or holds no key.
    """
    if not path:
        return os.environ.get(KEY_VARIABLE, "").strip()
    try:
        key = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise BadFile(f'cannot read "{path}": {error}.') from None
    if not key or not key.isascii() or not key.isprintable():
        raise BadFile(f'"{path}" holds no API key: one line of ASCII.')
    return key


def _serving_plan(path: str) -> sw.ServingPlan:
    plan = load_plan(path)
    if not isinstance(plan, sw.ServingPlan):
        raise BadInput(f"{path} is a plan of training; plan with --serve.")
    return plan
