"""`--traffic`, `--at` and `--capacity`: what arrives at a planned deployment."""

from __future__ import annotations

import re
from collections.abc import Mapping

from shardwise.cli.inputs import Inputs
from shardwise.errors import BadInput
from shardwise.plan.serving.arrivals import AT, Arrivals, read_arrivals

OFF = "off"
_AT = re.compile(r"p(\d{1,2}(?:\.\d+)?)")


def read_traffic(
    traffic: str, at: str, capacity: bool, words: Mapping[str, str]
) -> Arrivals | None:
    """What arrives, or None where means are asked for.

    Args:
        words: what was typed, by the name of the option.

    Raises:
        BadInput: with everything that is wrong; BadFile: what is wrong in a recording.
    """
    inputs = Inputs()
    share = inputs.read(parse_at, at) if at else AT
    if traffic == OFF or not (traffic or words["rate"] or capacity):
        for name, given in (("--at", at), ("--capacity", capacity)):
            if given:
                inputs.refuse(f"{name} is of simulated requests: add --rate, or another --traffic.")
        inputs.done()
        return None
    found = inputs.read(read_arrivals, traffic or "poisson")
    recorded = found is not None and found.trace is not None
    if recorded and (words["prompt"] or words["output"] or words["context"]):
        inputs.refuse("a recording has the lengths. Leave --prompt, --output, --context out.")
    if recorded and words["cached"]:
        inputs.refuse("a recording has the shared prefixes. Leave --cached out.")
    if not recorded and not (words["rate"] or capacity):
        inputs.refuse("--traffic needs --rate, the requests per time: --rate 20/s.")
    if not recorded and not (words["output"] or words["rate"]):
        inputs.refuse("--traffic needs the length of requests: --prompt N --output N.")
    if capacity and not (words["ttft"] or words["tpot"]):
        inputs.refuse("--capacity needs a bound: --ttft 500ms, --tpot 30ms, or both.")
    inputs.done()
    return Arrivals(
        kind=found.kind,
        variation=found.variation,
        trace=found.trace,
        name=found.name,
        at=share,
    )


def parse_at(text: str) -> float:
    """`p99` -> 0.99.

    >>> parse_at("p99.9")
    0.999

    Raises:
        BadInput: no percentile.
    """
    match = _AT.fullmatch(text.strip())
    if not match or not float(match[1]):
        raise BadInput(f'--at "{text}" is no percentile. Write p50, p90 or p99.')
    return round(float(match[1]) / 100, 6)
