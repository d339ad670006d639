"""`shardwise.check`: of a plan, or of anybody's function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, overload

from shardwise.check.compiling.process import Limits, OnStage
from shardwise.check.serving import ServingVerdict, check_serving
from shardwise.check.shrink import extrapolated, smaller
from shardwise.check.training import How, check_plan
from shardwise.check.user.function import FunctionReport, check_user
from shardwise.check.verdict import Verdict
from shardwise.errors import BadInput
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.schema.training import Plan

BY_COMPILER = "XLA's partitioner chose the collectives, from sharding constraints."


@overload
def check(
    subject: Plan,
    *,
    on: str = "",
    layers: Sequence[int] = (),
    trace: str | Path | None = None,
    limits: Limits | None = None,
    cache: bool = True,
    on_stage: OnStage | None = None,
    collectives: str = "plan",
) -> Verdict: ...
@overload
def check(
    subject: ServingPlan,
    *,
    on: str = "",
    layers: Sequence[int] = (),
    trace: str | Path | None = None,
    limits: Limits | None = None,
    cache: bool = True,
    on_stage: OnStage | None = None,
    collectives: str = "plan",
) -> ServingVerdict: ...
@overload
def check(
    subject: Callable[..., Any], *args: Any, on: str, trace: str | Path | None = None
) -> FunctionReport: ...
def check(
    subject: Plan | ServingPlan | Callable[..., Any],
    *args: Any,
    on: str = "",
    layers: Sequence[int] = (),
    trace: str | Path | None = None,
    limits: Limits | None = None,
    cache: bool = True,
    on_stage: OnStage | None = None,
    collectives: str = "plan",
) -> Verdict | ServingVerdict | FunctionReport:
    """Ask XLA's own compiler about a plan, or about a function, without the machine.

    Args:
        subject: a plan, whose step (of serving: whose two steps) is compiled and held against it;
            or a function, jitted or not, which is compiled in this process and reported.
        args: of a function: arrays or `jax.ShapeDtypeStruct`s, on a mesh as large as the machine.
        on: the machine of a function, `v5e:4x4`; of a plan a smaller machine, on which its `data`
            axis is cut and a chip does the same.
        layers: two depths, `(1, 2)`: these are compiled, and the plan's depth is extrapolated.
        trace: a file for the timeline of the program, for Perfetto; `.gz` compresses it.
        limits: what a compile may take.
        cache: whether a program that was compiled before is taken from the cache.
        on_stage: called with the stage of a compile and its seconds.
        collectives: who chooses those of a training step: the `plan`, or XLA's partitioner
            (`compiler`), which is told by sharding constraints where arrays lie.

    Raises:
        BadInput: a plan that the runtime does not run yet; arguments on a mesh of another size.
        CheckFailed: the compiler failed for another reason than memory.
        MissingExtra: no compiler is installed.
    """
    how = How(limits=limits, cache=cache, on_stage=on_stage, collectives=collectives)
    by_compiler = collectives == "compiler"
    if isinstance(subject, ServingPlan):
        if on or layers or by_compiler:
            raise BadInput(
                "on, layers and collectives are for plans of training; of serving all is compiled, "
                "with the plan's collectives."
            )
        return check_serving(subject, how, trace)
    if not isinstance(subject, Plan):
        if not on:
            raise BadInput("a function is compiled for a machine: add on='v5e:4x4'.")
        return check_user(subject, *args, on=on, trace=trace)
    plan, note = smaller(subject, on) if on else (subject, "")
    note = " ".join(filter(None, (BY_COMPILER if by_compiler else "", note)))
    if layers:
        if trace is not None:
            raise BadInput("a timeline is drawn of a whole program: leave layers out.")
        return extrapolated(plan, layers, how, note)
    return check_plan(plan, how, trace, note)
