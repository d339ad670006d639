"""The options --traffic, --at and --capacity: requests that arrive at a planned deployment."""

from __future__ import annotations

import re
from dataclasses import replace

from shardwise.cli.inputs import Inputs
from shardwise.cli.verbs.serving.workload import USERS_NEED_A_BOUND, RequestOptions, parse_lengths
from shardwise.errors import BadInput
from shardwise.plan.serving.arrivals import (
    CLOSED_LOOP,
    DEFAULT_AT,
    Arrivals,
    is_recording,
    read_arrivals,
)

OFF = "off"  # value of --traffic that plans with mean times and simulates no requests
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?)")


def read_traffic(
    traffic: str, at: str, capacity: bool, requests: RequestOptions
) -> Arrivals | None:
    """Parse the options to the arriving requests; None if no requests are to be simulated.

    Args:
        traffic: kind of arrivals, a file of recorded requests, `off`, or empty.
        at: percentile of the requests that must meet the bounds: `p99`; empty for the default.
        capacity: whether the highest rate that meets the bounds is searched.

    Raises:
        BadInput: with every option that is wrong.
        BadFile: the recorded requests cannot be read.
    """
    inputs = Inputs()
    percentile = inputs.optional(parse_percentile, at)
    ranges = _drawn_lengths(requests)
    if requests.users:
        _check_users(inputs, traffic, capacity, requests)
    if traffic == OFF or not (traffic or requests.rate or requests.users or capacity):
        if ranges:
            inputs.refuse(
                f"a range of {' and '.join(ranges)} lengths applies to simulated requests: add "
                "--rate 20/s or --users 64, or give one length."
            )
        for name, value in {"--at": at, "--capacity": capacity}.items():
            if value:
                inputs.refuse(
                    f"{name} applies to simulated requests: add --rate or --users with --prompt "
                    "and --output, or another --traffic."
                )
        inputs.done()
        return None
    if requests.users:
        arrivals = CLOSED_LOOP
    else:
        arrivals = inputs.read(read_arrivals, traffic or "poisson")
        _check_open_loop(inputs, capacity, requests, recorded=is_recording(traffic))
    inputs.done()
    return replace(
        arrivals,
        at=percentile or DEFAULT_AT,
        prompt=ranges.get("prompt"),
        output=ranges.get("output"),
    )


def _drawn_lengths(requests: RequestOptions) -> dict[str, tuple[int, int]]:
    """Those of `prompt` and `output` that are ranges, with their limits; `read_jobs` refuses
    what cannot be read."""
    ranges = {}
    for name in ("prompt", "output"):
        text = getattr(requests, name)
        try:
            low, high = parse_lengths(text, f"--{name}")
        except BadInput:
            continue
        if low < high:
            ranges[name] = (low, high)
    return ranges


def _check_users(inputs: Inputs, traffic: str, capacity: bool, requests: RequestOptions) -> None:
    """Refuse what contradicts a closed loop, and users without a bound on latency."""
    if capacity:
        inputs.refuse("--capacity finds a rate, and --users make their own. Use one.")
    if traffic not in ("", OFF):
        inputs.refuse(f"--traffic {traffic} has times of arrival, and --users make their own.")
    if not (requests.ttft or requests.tpot):
        inputs.refuse(USERS_NEED_A_BOUND)


def _check_open_loop(
    inputs: Inputs, capacity: bool, requests: RequestOptions, *, recorded: bool
) -> None:
    """Refuse what contradicts requests that arrive at times of their own, and what they lack."""
    if recorded:
        _check_recorded(inputs, requests)
    else:
        _check_random(inputs, capacity, requests)
    if capacity and not (requests.ttft or requests.rate or recorded):
        inputs.refuse(
            "--capacity needs a bound on the first token, without which requests may wait for "
            "ever: --ttft 500ms, with --tpot 30ms or without."
        )


def _check_recorded(inputs: Inputs, requests: RequestOptions) -> None:
    """Refuse options that a recording of requests makes superfluous."""
    if requests.prompt or requests.output or requests.context:
        inputs.refuse("a recording has the lengths. Leave --prompt, --output, --context out.")
    if requests.cached:
        inputs.refuse("a recording has the shared prefixes. Leave --cached out.")


def _check_random(inputs: Inputs, capacity: bool, requests: RequestOptions) -> None:
    """Refuse random arrivals without a rate, or without the lengths of requests."""
    if not (requests.rate or capacity):
        inputs.refuse("--traffic needs --rate, the requests per time: --rate 20/s.")
    if not (requests.output or requests.rate):
        inputs.refuse("--traffic needs the length of requests: --prompt N --output N.")


def parse_percentile(text: str) -> float:
    """Parse a percentile: `p99` -> 0.99.

    >>> parse_percentile("p99.9")
    0.999

    Raises:
        BadInput: not a percentile.
    """
    match = _PERCENTILE.fullmatch(text.strip())
    if not match or not float(match[1]):
        raise BadInput(f'--at "{text}" is not a percentile. Write p50, p90 or p99.')
    return round(float(match[1]) / 100, 6)
