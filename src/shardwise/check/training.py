"""Check of a training plan: compile its training step, and compare it with the plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from shardwise.check import comparison
from shardwise.check.array_names import (
    ATTENTION_PRODUCTS,
    ArrayNames,
    argument_category,
    largest_arrays,
)
from shardwise.check.causes import TimedParts, slower_parts, timed_parts
from shardwise.check.compiled_costs import (
    AnalyzedProgram,
    analyze_program,
    compiled_numbers,
    peak_arrays,
    write_timeline,
)
from shardwise.check.compiling.environment import choose_target
from shardwise.check.compiling.job import Job
from shardwise.check.compiling.process import compile_job
from shardwise.check.compiling.result import Compiled, OutOfMemory
from shardwise.check.compiling.targets import Target
from shardwise.check.deviations import judge
from shardwise.check.device_view import chip_collectives, plan_over_devices
from shardwise.check.notes import (
    CPU_NOTE,
    GPU_NOTE,
    compile_error,
    memory_note,
    refuse_trace,
    require_joined_bytes,
    required_memory,
)
from shardwise.check.options import CompileOptions
from shardwise.check.verdict import (
    CheckedCollective,
    CompiledNumbers,
    Difference,
    PeakArray,
    Verdict,
)
from shardwise.models import stack
from shardwise.plan.schema.json_output import encode
from shardwise.plan.schema.training import Plan
from shardwise.plan.training.rebuild import rebuild
from shardwise.runtime.training.ticks import (
    Ticks,
    branch_counts,
    lockstep,
    pipeline_ticks,
)
from shardwise.search.training.problem import Case
from shardwise.strategy.schedules import find
from shardwise.strategy.stages import stages

TRAIN_STEP = "shardwise.runtime.training.programs:train_step"
# Categories that a verdict does not list among the largest arrays: they are as large as planned.
STATE_CATEGORIES = ("arguments", "weights", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledStep:
    """A plan's training step after compilation.

    Args:
        program: the compiled program; None if it does not fit and was therefore not compiled.
        numbers: the compiler's numbers of one chip; None without a program.
        collectives: totals of planned and compiled collectives, by role and kind.
        attention_flops: FLOPs of attention kernels on one chip.
        recomputed_flops: FLOPs on one chip that the compiler recomputes to save memory.
        parts: seconds of the step by part.
        arrays: all arrays that are live on one device at the peak.
        fits: whether one device has enough memory; None if the compiler cannot tell.
        failure: the compiler's error if the memory is too small.
    """

    target: Target
    program: AnalyzedProgram | None
    numbers: CompiledNumbers | None
    collectives: tuple[CheckedCollective, ...]
    attention_flops: float
    recomputed_flops: float
    parts: TimedParts
    arrays: tuple[PeakArray, ...]
    fits: bool | None
    failure: OutOfMemory | None = None


def check_plan(
    plan: Plan, options: CompileOptions, trace: str | Path | None = None, note: str = ""
) -> Verdict:
    """Check a training plan with the compiler of its machine, without the machine.

    Args:
        trace: a file for the timeline, for Perfetto; `.gz` compresses it.
        note: text to put before the verdict's note.

    Raises:
        BadInput: the runtime does not support the plan, and the message says which part; or the
            trace cannot be written.
        NoAnswer: the compiler failed for another reason than memory, or exceeded a limit.
        MissingExtra: no compiler is installed.
    """
    refuse_trace(trace, choose_target(rebuild(plan).system))
    step = compile_step(plan, options)
    if trace is not None and step.program is not None and not step.failure:
        write_timeline(step.program, trace, f"{plan.model.name} on {plan.hardware.name}")
    return make_verdict(plan, step, note)


def compile_step(plan: Plan, options: CompileOptions) -> CompiledStep:
    """Compile a plan's training step and analyze it.

    Raises:
        As `check_plan`.
    """
    require_joined_bytes(plan.operations)
    case = rebuild(plan)
    job = step_job(plan, case, options)
    target = job.target
    result = compile_job(job, limits=options.limits, on_stage=options.on_stage)
    if isinstance(result, OutOfMemory):
        return _compiled_step(plan, case, target, result.program, result)
    if isinstance(result, Compiled):
        return _compiled_step(plan, case, target, result, None)
    raise compile_error(result)


def step_job(plan: Plan, case: Case, options: CompileOptions) -> Job:
    """The compile of a plan's training step for its machine."""
    target = choose_target(case.system)
    xla_options = {}
    if target.platform == case.system.chip.kind:
        xla_options = {flag.name: flag.value for flag in plan.xla_flags}
    return Job(
        target=target,
        builder=TRAIN_STEP,
        arguments={"plan": encode(plan).decode(), "collectives": options.collectives},
        options=xla_options,
        explain=options.explain,
        cache_path=options.cache_path,
        self_contained=True,
    )


def _compiled_step(
    plan: Plan,
    case: Case,
    target: Target,
    compiled: Compiled | None,
    failure: OutOfMemory | None,
) -> CompiledStep:
    if compiled is None:
        return CompiledStep(
            target=target,
            program=None,
            numbers=None,
            collectives=(),
            attention_flops=0.0,
            recomputed_flops=0.0,
            parts=TimedParts(),
            arrays=(),
            fits=False,
            failure=failure,
        )
    schedule = scheduled_ticks(case)
    program = analyze_program(
        compiled,
        case.system,
        argument_category,
        branch_runs=branch_runs(case),
        lockstep=lockstep(schedule) if schedule else (),
    )
    arrays = peak_arrays(program, ArrayNames(case).describe)
    devices_per_chip = target.devices_per_chip
    collectives: tuple[CheckedCollective, ...] = ()
    if not failure:
        device_plan, _ = plan_over_devices(plan)
        collectives = comparison.compare_collectives(
            device_plan, chip_collectives(program.collectives, devices_per_chip)
        )
    return CompiledStep(
        target=target,
        program=program,
        numbers=compiled_numbers(program, arrays),
        collectives=collectives,
        attention_flops=devices_per_chip * program.attention_flops,
        recomputed_flops=devices_per_chip * program.recomputed_flops,
        parts=timed_parts(program),
        arrays=arrays,
        fits=False if failure else compiled.fits,
        failure=failure,
    )


def branch_runs(case: Case) -> dict[str, tuple[int, ...]]:
    """Run counts of the branches of the conditionals in a pipeline's program; {} without one."""
    schedule = scheduled_ticks(case)
    return branch_counts(schedule) if schedule else {}


def scheduled_ticks(case: Case) -> Ticks | None:
    """The ticks of a pipeline's program; None without a pipeline."""
    layout = case.layout
    if not layout.is_pipelined:
        return None
    (segment,) = stack(case.model)
    division = stages(segment.repeats, layout)
    n_chunks = int(division.chunks)
    n_positions = int(division.held) // n_chunks
    schedule = find(layout.schedule)
    order = schedule.order(layout.sizes["pipe"], layout.n_microbatches, n_chunks)
    return pipeline_ticks(order, n_positions, recomputes=layout.full_remat)


def make_verdict(plan: Plan, step: CompiledStep, note: str = "") -> Verdict:
    """The verdict on a plan, from its compiled step.

    Args:
        note: text to put before the verdict's note.
    """
    plan, device_note = plan_over_devices(plan)
    target = step.target
    notes = [note, target.note, device_note]
    if target.platform == "cpu":
        notes.append(CPU_NOTE)
    if target.platform == "gpu":
        notes.append(GPU_NOTE)
    required_bytes = required_memory(step.failure, step.numbers, target.devices_per_chip)
    if step.fits is False:
        notes.insert(0, memory_note(step.failure, step.numbers, target.devices_per_chip))
    verdict = Verdict(
        name=plan.model.name,
        hardware=plan.hardware.name,
        compiler=target.platform,
        fits=step.fits,
        verdict="",
        note=" ".join(filter(None, notes)),
        planned=comparison.planned_numbers(plan),
        compiled=step.numbers,
        collectives=step.collectives,
        differences=_differences(plan, step),
        largest=largest_arrays(step.arrays, STATE_CATEGORIES),
        xla_flags=(),
        compile_s=0.0,
        versions={},
        required_bytes=required_bytes,
    )
    idle_share = plan.estimate.bubble_fraction
    verdict = judge(verdict, slower_parts(plan.operations, step.parts, idle_share))
    if step.program is None:
        return verdict
    compiled = step.program.compiled
    return replace(
        verdict,
        xla_flags=tuple(flag for flag in plan.xla_flags if flag.name in compiled.options),
        compile_s=compiled.total_s,
        versions=compiled.versions,
    )


def _differences(plan: Plan, step: CompiledStep) -> tuple[Difference, ...]:
    """Differences in bytes (only with the chip's own compiler) and in FLOPs."""
    if step.failure:
        return ()
    planned_flops = 0.0
    planned_attention = 0.0
    for op in plan.operations:
        planned_flops += comparison.computed_flops(op)
        if op.name.startswith(ATTENTION_PRODUCTS):
            planned_attention += comparison.computed_flops(op)
    differences: list[Difference | None] = []
    if step.target.proves_memory:
        n_microbatches = plan.strategy.n_microbatches
        differences += comparison.collective_differences(step.collectives, n_microbatches)
    differences += [
        comparison.attention_difference(planned_attention, step.attention_flops),
        comparison.recomputation_difference(planned_flops, step.recomputed_flops),
    ]
    return tuple(filter(None, differences))
