"""The public function `shardwise.check`, for plans and for a user's own functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from shardwise.check.compiling.process import Limits, OnStage
from shardwise.check.options import CompileOptions
from shardwise.check.training import check_plan
from shardwise.check.verdict import Verdict
from shardwise.errors import BadInput
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.schema.training import Plan

if TYPE_CHECKING:
    from shardwise.check.serving import ServingVerdict
    from shardwise.check.user.function import FunctionReport

PARTITIONER_NOTE = "XLA's partitioner chose the collectives, from sharding constraints."


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
    """Check a plan or a function with XLA's compiler for a machine, without the machine.

    Args:
        subject: a plan, whose training step (for serving, decode and prefill step) is compiled in a
            separate process and compared with the plan; or a function, jitted or not, which is
            compiled in this process.
        args: arguments of a function: arrays, or a `jax.ShapeDtypeStruct` each, on a mesh as large
            as the machine.
        on: for a function, the machine, such as `v5e:4x4`. For a plan, a smaller machine to compile
            for: its `data` axis is reduced, which does not change the program of a chip.
        layers: two depths, such as `(1, 2)`, to compile instead of the whole model; the results are
            extrapolated to its depth.
        trace: a file for the timeline of the program, for Perfetto; `.gz` compresses it.
        limits: limits of the time and memory that a compile may use.
        cache: whether compiled programs are read from and written to the cache.
        on_stage: called with the stage of a compile and the seconds since its start.
        collectives: who chooses the collectives of a training step: the `plan`, or XLA's
            partitioner from sharding constraints (`compiler`).

    Returns:
        A verdict for a plan, a report for a function. A verdict's `fits`, `sends_as_planned` and
        `takes_planned_time` are its three answers, `deviations` the figures far from the plan.

    Raises:
        BadInput: the runtime does not support the plan, or arguments are on a mesh of another size.
        NoAnswer: the compiler failed for another reason than memory, or exceeded a limit.
        MissingExtra: no compiler is installed.
    """
    options = CompileOptions(limits=limits, cache=cache, on_stage=on_stage, collectives=collectives)
    if isinstance(subject, ServingPlan):
        if on or layers or collectives == "compiler":
            raise BadInput(
                "on, layers and collectives apply to training plans; a serving plan is compiled "
                "in full, with the plan's collectives."
            )
        from shardwise.check.serving import check_serving

        return check_serving(subject, options, trace)
    if not isinstance(subject, Plan):
        if not on:
            raise BadInput("a function is compiled for a machine: add on='v5e:4x4'.")
        from shardwise.check.user.function import check_function

        return check_function(subject, *args, on=on, trace=trace)
    plan = subject
    notes = []
    if collectives == "compiler":
        notes.append(PARTITIONER_NOTE)
    if on:
        from shardwise.check.shrink import on_smaller_system

        plan, smaller_note = on_smaller_system(plan, on)
        notes.append(smaller_note)
    note = " ".join(notes)
    if layers:
        if trace is not None:
            raise BadInput("a trace needs the whole program: leave layers out.")
        from shardwise.check.shrink import check_extrapolated

        return check_extrapolated(plan, layers, options, note)
    return check_plan(plan, options, trace, note)
