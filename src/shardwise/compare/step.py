"""A plan beside its trace, its run and its verdict: rows by group, and causes, largest first."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping

from shardwise.check.serving import ServingVerdict
from shardwise.check.user.function import FunctionReport
from shardwise.check.verdict import Verdict
from shardwise.compare import causes, groups
from shardwise.compare.inputs import RunLog
from shardwise.compare.measured import (
    MeasuredGroup,
    joined_communication,
    measured_groups,
    require_steps,
    steps_of_profile,
    steps_of_run,
)
from shardwise.compare.planned import PlannedStep, planned_step
from shardwise.compare.result import Cause, Figure, MeasuredSteps, Row, StepComparison
from shardwise.compare.same_plan import require_devices, require_run_of
from shardwise.plan.schema.json_io import AnyPlan
from shardwise.plan.schema.serving import ServingPlan
from shardwise.profile.result import Profile
from shardwise.serve.load.measurement import Measurement

LEAST = 0.01  # share of the step below which a difference is none


def compare_step(
    plan: AnyPlan,
    *,
    profile: Profile | None = None,
    run: RunLog | None = None,
    verdict: Verdict | ServingVerdict | None = None,
    load: Measurement | None = None,
) -> StepComparison:
    """A planned step beside what was compiled and measured of it.

    Raises:
        BadInput: the trace has other devices than the plan, or more of them, or the run is one of
            another plan.
    """
    if profile is not None:
        require_steps(profile)
        require_devices(plan, profile)
    if run is not None:
        require_run_of(plan, run)
    planned = planned_step(plan)
    if isinstance(verdict, ServingVerdict):
        verdict = verdict.decode
    run_steps = steps_of_run(run.records) if run else None
    steps = steps_of_profile(profile) if profile else run_steps
    rows: list[Row] = []
    explanations: list[Cause] = []
    if profile is not None:
        rows = list(_rows(plan, planned, profile, run_steps, verdict))
        explanations += [row.cause for row in rows if row.cause]
        measured = measured_groups(profile, planned)
        explanations += causes.remat_causes(planned, measured.values(), profile.step_s)
        explanations += causes.profile_causes(profile)
        if verdict is None:  # which says more about memory
            explanations += causes.memory_causes(plan, profile)
    else:
        rows = [
            Row(group=group, planned_s=seconds, compiled_s=_compiled_s(group, verdict))
            for group, seconds in planned.seconds.items()
        ]
        rows.sort(key=lambda row: -(row.planned_s or 0.0))
    explanations += causes.plan_causes(plan, planned)
    if verdict is not None:
        explanations += causes.verdict_causes(verdict)
    explanations = causes.ranked(explanations, planned.step_s)
    measured_s = steps.typical_s if steps else None
    planned_s = planned.step_s
    if load is not None and measured_s is None:  # of its requests, not of a full batch
        measured_s = load.tpot_s.p50
        if load.prediction is not None:
            planned_s = load.prediction.simulated.tpot_s.p50
            rows.clear()  # the parts of a full batch
    compiled_s = None
    if verdict is not None and verdict.compiled and verdict.compiled.step_s:
        seconds = verdict.compiled.step_s
        compiled_s = seconds.roofline if seconds.cycles is None else seconds.cycles
    rows.append(_step_row(planned_s, compiled_s, measured_s, explanations))
    hidden = None
    if planned.traffic_s:
        hidden = Figure(
            quantity="hidden communication",
            planned=planned.hidden_s,
            measured=profile.hidden_s if profile else None,
        )
    return StepComparison(
        name=plan.model.name,
        hardware=plan.hardware.name,
        rows=tuple(rows),
        figures=tuple(_figures(plan, run, verdict, load, profile)),
        causes=tuple(explanations),
        step_s=compiled_s if measured_s is None else measured_s,
        steps=steps,
        run=run_steps if profile else None,
        hidden=hidden,
        accounted_fraction=profile.operations_share if profile else None,
        doubt=causes.other_flops(planned, profile) if profile else None,
        load=load,
        rates_measured=rates_are_measured(plan),
    )


def rates_are_measured(plan: AnyPlan) -> bool:
    """Whether `hw measure` has measured the rates of a plan's work; of serving, on one device."""
    work = "serving." if isinstance(plan, ServingPlan) else "training."
    return any(figure.startswith(work) for figure in plan.hardware.figures)


def compare_function(report: FunctionReport, profile: Profile) -> StepComparison:
    """A function that `check` has compiled beside a trace of it."""
    require_steps(profile)
    explanations = [*causes.fault_causes(report.faults), *causes.profile_causes(profile)]
    measured = measured_groups(profile, None)
    rows = [
        Row(group=group, measured_s=part.seconds)
        for group, part in sorted(measured.items(), key=lambda item: -item[1].seconds)
    ]
    compiled_s = None
    if report.compiled and report.compiled.step_s:
        compiled_s = report.compiled.step_s.roofline
    rows.append(Row(group=groups.STEP, compiled_s=compiled_s, measured_s=profile.step_s))
    return StepComparison(
        name=report.name,
        hardware=report.hardware,
        rows=tuple(rows),
        figures=(),
        causes=tuple(explanations),
        faults=report.faults,
        other_devices="" if report.compiler.upper() == profile.kind else profile.kind,
        n_devices=math.prod(report.mesh.values()),
        step_s=profile.step_s,
        steps=steps_of_profile(profile),
        accounted_fraction=profile.operations_share,
    )


def _rows(
    plan: AnyPlan,
    planned: PlannedStep,
    profile: Profile,
    run: MeasuredSteps | None,
    verdict: Verdict | None,
) -> Iterator[Row]:
    """The groups of a trace beside those of the plan, what lengthens the step most first."""
    measured = measured_groups(profile, planned)
    seconds: Mapping[str, float] = planned.seconds
    if groups.COMMUNICATION_GROUP in measured:
        seconds = joined_communication(seconds, list(planned.traffic_s))
    noise = max(steps.noise for steps in (steps_of_profile(profile), run) if steps)
    slowdown = _slowdown(seconds, measured)
    rows = []
    for group in dict.fromkeys([*seconds, *measured]):
        planned_s = seconds.get(group, 0.0)
        part = measured.get(group, MeasuredGroup(seconds=0.0, remat_s=0.0, operations=()))
        cause = None
        least_s = max(LEAST * profile.step_s, noise * part.seconds)
        if part.seconds - planned_s > least_s:
            cause = causes.gap_cause(group, planned, planned_s, part, profile, plan, slowdown)
        row = Row(
            group=group,
            planned_s=planned_s,
            compiled_s=_compiled_s(group, verdict),
            measured_s=part.seconds,
            ratio=planned_s / part.seconds if planned_s and part.seconds else None,
            cause=cause,
        )
        rows.append(row)
    yield from sorted(rows, key=lambda row: (row.planned_s or 0.0) - (row.measured_s or 0.0))


def _slowdown(seconds: Mapping[str, float], measured: Mapping[str, MeasuredGroup]) -> float:
    """Measured over planned seconds of the matmuls of layers: the median of their groups."""
    ratios = [
        measured[group].seconds / seconds[group]
        for group in groups.MATMUL_GROUPS
        if group != groups.ENDS and group in measured and seconds.get(group)
    ]
    return statistics.median(ratios) if ratios else 1.0


def _step_row(
    planned_s: float, compiled_s: float | None, measured_s: float | None, explanations: list[Cause]
) -> Row:
    return Row(
        group=groups.STEP,
        planned_s=planned_s,
        compiled_s=compiled_s,
        measured_s=measured_s,
        ratio=planned_s / measured_s if measured_s else None,
        cause=explanations[0] if explanations else None,
    )


def _compiled_s(group: str, verdict: Verdict | None) -> float | None:
    """Exposed seconds of a role's collectives in the compiled schedule."""
    if verdict is None or verdict.compiled is None or not verdict.compiled.step_s:
        return None
    total = None
    for label, seconds in verdict.compiled.exposed_s.items():
        role = label.partition("+")[0].partition(".")[0]
        if groups.communication_group(role) == group:
            total = (total or 0.0) + seconds
    return total


def _figures(
    plan: AnyPlan,
    run: RunLog | None,
    verdict: Verdict | None,
    load: Measurement | None,
    profile: Profile | None,
) -> Iterator[Figure]:
    compiled = verdict.compiled if verdict else None
    memory = run.memory_bytes if run else None
    peak: float | None = None
    if profile is not None and profile.memory is not None:
        peak = profile.memory.bytes  # as the compiler of the traced program assigned it
    if verdict is not None:
        peak = verdict.required_bytes
    if compiled is not None and compiled.peak_bytes is not None:
        peak = compiled.peak_bytes
    yield Figure(quantity="memory", planned=plan.memory.total, compiled=peak, measured=memory)
    if verdict is not None:
        yield Figure(
            quantity="FLOPs",
            planned=verdict.planned.flops,
            compiled=compiled.flops if compiled else None,
        )
        for row in verdict.collectives:
            yield Figure(
                quantity=f"{row.role} {row.kind.replace('_', '-')}",
                planned=row.planned_bytes,
                compiled=row.compiled_bytes,
            )
    if run is not None and not math.isnan(run.records[-1].loss):
        yield Figure(quantity="loss", measured=run.records[-1].loss)
    if isinstance(plan, ServingPlan) and load is not None:
        yield from _load_figures(plan, load)


def _load_figures(plan: ServingPlan, load: Measurement) -> Iterator[Figure]:
    """Measured medians of a load beside what was simulated for its requests.

    A load without a simulation is put beside the plan, which is of equal requests without queues.
    """
    estimate = plan.estimate
    ttft_s = estimate.ttft_s
    tpot_s = estimate.tpot_s
    tokens_per_s = estimate.tokens_per_s
    if load.prediction is not None:
        simulated = load.prediction.simulated
        ttft_s = simulated.ttft_s.p50
        tpot_s = simulated.tpot_s.p50
        tokens_per_s = simulated.output_tokens_per_s
    yield Figure(quantity="ttft", planned=ttft_s, measured=load.ttft_s.p50)
    yield Figure(quantity="tpot", planned=tpot_s, measured=load.tpot_s.p50)
    yield Figure(quantity="tokens/s", planned=tokens_per_s, measured=load.output_tokens_per_s)
