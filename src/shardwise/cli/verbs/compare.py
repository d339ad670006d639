"""`shardwise compare PLAN.json TRACE ...`: planned, compiled and measured side by side."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import Annotated

from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.inputs import Inputs, parse_chip_file
from shardwise.cli.options import argument, output, workload
from shardwise.compare.api import compare
from shardwise.compare.calibrate import calibrate
from shardwise.compare.gate import exceeded, parse_bounds
from shardwise.compare.inputs import Input, RunLog, read_input
from shardwise.compare.result import PairComparison, StepComparison
from shardwise.errors import BadInput, CheckFailed
from shardwise.plan.schema.training import Plan
from shardwise.report import compare as report


def run(
    first: Annotated[str, argument("FILE", "a plan.json, run, trace, or saved JSON of a verb")],
    others: Annotated[list[str], argument("FILE...", "what it is compared with")],
    most: Annotated[
        str,
        workload("--max NAME=VALUE,...", "exit 4 if one is larger: step, ttft, tpot, memory, loss"),
    ] = "",
    calibrated: Annotated[
        str,
        output(
            "--calibrate FILE", "save the plan's chip, its rates corrected by the run: h100.toml"
        ),
    ] = "",
    json: options.Json = False,
) -> Answer:
    """Put a plan beside its trace, its run, its check --json or a load of bench: where the step
    went, by how much it differs, and why. Or compare two plans, two runs, two traces; or a
    check --json of your function with its trace. Exit code 4: --max does not hold."""
    inputs = Inputs()
    bounds = inputs.optional(parse_bounds, most) or {}
    inputs.optional(parse_chip_file, calibrated)
    inputs.done()
    result = compare(first, *others)
    excess = exceeded(result, bounds)
    notes = []
    if calibrated and isinstance(result, StepComparison):
        plan = _training_plan(map(read_input, (first, *others)))
        chip = calibrate(plan, result, calibrated, f"{date.today():%Y-%m}")
        notes = list(report.calibrated_blocks(chip, calibrated))
    elif calibrated:
        raise BadInput("--calibrate needs a training plan and its run or trace, not two of a kind.")
    if isinstance(result, PairComparison):
        blocks = report.pair_blocks(result, excess)
    else:
        blocks = report.step_blocks(result, excess)
    return Answer(
        document=lambda: result,
        blocks=[*blocks, *notes],
        as_json=json,
        exit_code=CheckFailed.exit_code if excess else 0,
    )


def _training_plan(things: Iterable[Input]) -> Plan:
    """The training plan among the inputs, or beside a run.

    Raises:
        BadInput: there is none.
    """
    for thing in things:
        plan = thing.plan if isinstance(thing, RunLog) else thing
        if isinstance(plan, Plan):
            return plan
    raise BadInput("--calibrate needs a training plan and its run or trace.")
