"""`shardwise compare PLAN.json TRACE ...`: planned, compiled and measured side by side."""

from __future__ import annotations

from typing import Annotated

from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.inputs import Inputs
from shardwise.cli.options import argument, workload
from shardwise.compare.api import compare
from shardwise.compare.gate import exceeded, parse_bounds
from shardwise.compare.result import PairComparison
from shardwise.errors import CheckFailed
from shardwise.report import compare as report


def run(
    first: Annotated[str, argument("FILE", "a plan.json, run, trace, or saved JSON of a verb")],
    others: Annotated[list[str], argument("FILE...", "what it is compared with")],
    most: Annotated[
        str,
        workload("--max NAME=VALUE,...", "exit 4 if one is larger: step, ttft, tpot, memory, loss"),
    ] = "",
    json: options.Json = False,
) -> Answer:
    """Put a plan beside its trace, its run, its check --json or a load of bench: where the step
    went, by how much it differs, and why. Or compare two plans, two runs, two traces; or a
    check --json of your function with its trace. Exit code 4: --max does not hold."""
    inputs = Inputs()
    bounds = inputs.optional(parse_bounds, most) or {}
    inputs.done()
    result = compare(first, *others)
    excess = exceeded(result, bounds)
    if isinstance(result, PairComparison):
        blocks = report.pair_blocks(result, excess)
    else:
        blocks = report.step_blocks(result, excess)
    return Answer(
        document=lambda: result,
        blocks=blocks,
        as_json=json,
        exit_code=CheckFailed.exit_code if excess else 0,
    )
