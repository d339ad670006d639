"""The public function `shardwise.compare`, for paths and values alike."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

from shardwise.check.serving import ServingVerdict
from shardwise.check.user.function import FunctionReport
from shardwise.check.verdict import Verdict
from shardwise.compare.inputs import Input, RunLog, read_input
from shardwise.compare.pairs import compare_plans, compare_runs
from shardwise.compare.result import PairComparison, StepComparison
from shardwise.compare.step import compare_function, compare_step
from shardwise.compare.traces import compare_traces
from shardwise.errors import BadInput
from shardwise.plan.schema.json_io import AnyPlan
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.schema.training import Plan
from shardwise.profile.result import Profile
from shardwise.serve.load.measurement import Measurement

T = TypeVar("T")

NAMES = {
    Plan: "a plan of training",
    ServingPlan: "a plan of serving",
    RunLog: "a run",
    Profile: "a trace",
    Verdict: "a verdict of check",
    ServingVerdict: "a verdict of check on serving",
    FunctionReport: "a report of check on a function",
    Measurement: "a load of bench",
}
COMBINATIONS = (
    "A plan is compared with its trace, its run, its verdict of check, or a load of bench; or two "
    "plans, two runs, two traces; or a report of check on a function with its trace."
)


def compare(*things: Input | str | os.PathLike[str]) -> StepComparison | PairComparison:
    """Compare a plan with what was compiled and measured, or two plans, runs or traces.

    Args:
        things: values, or paths of files and folders: a plan; a folder or metrics.jsonl of `train`;
            a trace, or the JSON of `profile`; the JSON of `check`; the JSON of `bench`.

    Raises:
        BadInput: they do not go together; the message says what does.
        BadFile: one cannot be read, or is none of these.
    """
    values = [read_input(os.fspath(x)) if isinstance(x, str | os.PathLike) else x for x in things]
    plans = _all(values, Plan) + _all(values, ServingPlan)
    profiles = _all(values, Profile)
    runs = _all(values, RunLog)
    if len(values) == 2:
        if len(plans) == 2:
            names = (_name(things[0], plans[0]), _name(things[1], plans[1]))
            return compare_plans(plans[0], plans[1], names)
        if len(runs) == 2:
            return compare_runs(*runs)
        if len(profiles) == 2:
            return compare_traces(*profiles)
        if functions := _all(values, FunctionReport):
            if profiles:
                return compare_function(functions[0], profiles[0])
            raise _no_combination(values)
    return _compare_step(values, plans, runs, profiles)


def _compare_step(
    values: Sequence[Input],
    plans: Sequence[AnyPlan],
    runs: Sequence[RunLog],
    profiles: Sequence[Profile],
) -> StepComparison:
    verdicts: list[Verdict | ServingVerdict] = [*_all(values, Verdict)]
    verdicts += _all(values, ServingVerdict)
    loads = _all(values, Measurement)
    if not plans and runs and runs[0].plan is not None:
        plans = [runs[0].plan]
    evidence = (runs, profiles, verdicts, loads)
    is_each_once = all(len(kind) <= 1 for kind in evidence) and any(evidence)
    if len(plans) != 1 or not is_each_once or _all(values, FunctionReport):
        raise _no_combination(values)
    return compare_step(
        plans[0],
        profile=profiles[0] if profiles else None,
        run=runs[0] if runs else None,
        verdict=verdicts[0] if verdicts else None,
        load=loads[0] if loads else None,
    )


def _name(thing: Input | str | os.PathLike[str], plan: AnyPlan) -> str:
    """The plan in a line, after its path if that was given."""
    return f"{os.fspath(thing)}: {plan}" if isinstance(thing, str | os.PathLike) else str(plan)


def _all(values: Sequence[Input], kind: type[T]) -> list[T]:
    return [value for value in values if isinstance(value, kind)]


def _no_combination(values: Sequence[Input]) -> BadInput:
    there = " and ".join(NAMES[type(value)] for value in values) or "nothing"
    return BadInput(f"{there} cannot be compared.", COMBINATIONS)
