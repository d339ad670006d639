"""Check of a serving plan: compile its decode and prefill steps, and compare them with the plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from shardwise import units
from shardwise.check import comparison
from shardwise.check.array_names import describe_unplanned, largest_arrays
from shardwise.check.causes import slower_parts, timed_parts
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
from shardwise.check.compiling.result import Compiled, Failure, OutOfMemory
from shardwise.check.compiling.targets import Target
from shardwise.check.deviations import judge
from shardwise.check.hlo.collectives import Collective
from shardwise.check.notes import (
    CPU_NOTE,
    compile_error,
    first_line,
    refuse_trace,
    require_joined_bytes,
    required_memory,
)
from shardwise.check.options import CompileOptions
from shardwise.check.verdict import CheckedCollective, Difference, PlannedNumbers, Verdict
from shardwise.estimate.serving.pass_time import activation_bytes
from shardwise.estimate.serving.steady_state import prompts_per_pass
from shardwise.hardware import System
from shardwise.plan.collectives import STEPS
from shardwise.plan.schema.common import Operation
from shardwise.plan.schema.json_output import encode
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.serving.rebuild import rebuild

STEP_BUILDER = "shardwise.runtime.serving.programs:{}_step"  # {}: decode or prefill


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingVerdict:
    """The compiler's verdicts on the two steps of a serving plan.

    Args:
        decode: verdict on the decode step, which generates one token for each sequence.
        prefill: verdict on the prefill step, which reads prompts; its memory includes the KV cache
            of the engine that runs it.
    """

    name: str
    hardware: str
    decode: Verdict
    prefill: Verdict

    @property
    def passed(self) -> bool:
        """Whether both steps passed."""
        return self.decode.passed and self.prefill.passed


def check_serving(
    plan: ServingPlan, options: CompileOptions, trace: str | Path | None = None
) -> ServingVerdict:
    """Check a serving plan with the compiler of its machine, without the machine.

    Args:
        trace: a file for the timeline of the decode step, for Perfetto; `.gz` compresses it.

    Raises:
        BadInput: the runtime does not support the plan; the message says which part.
        NoAnswer: the compiler failed for another reason than memory, or exceeded a limit.
        MissingExtra: no compiler is installed.
    """
    require_joined_bytes(plan.operations)
    systems = step_systems(plan)
    refuse_trace(trace, choose_target(systems["decode"]))
    verdicts: dict[str, Verdict] = {}
    for step in STEPS:
        job = step_job(plan, step, systems[step], options)
        result = compile_job(job, limits=options.limits, on_stage=options.on_stage)
        program = _analyze(result, systems[step])
        if trace is not None and step == "decode" and program is not None:
            title = f"decode, {plan.model.name} on {systems[step].name}"
            write_timeline(program, trace, title)
        failure = result if isinstance(result, OutOfMemory) else None
        verdicts[step] = _verdict(plan, step, systems[step], job.target, program, failure)
    return ServingVerdict(
        name=plan.model.name,
        hardware=plan.hardware.name,
        decode=verdicts["decode"],
        prefill=verdicts["prefill"],
    )


def step_systems(plan: ServingPlan) -> dict[str, System]:
    """The machine of each step: `decode` and `prefill`."""
    deployment = rebuild(plan)[1]
    prefill_server = deployment.prefill_server or deployment.server
    return {"decode": deployment.server.system, "prefill": prefill_server.system}


def step_job(plan: ServingPlan, step: str, system: System, options: CompileOptions) -> Job:
    """The compile of one step of a plan for its machine."""
    return Job(
        target=choose_target(system),
        builder=STEP_BUILDER.format(step),
        arguments={"plan": encode(plan).decode()},
        cache_path=options.cache_path,
        self_contained=True,
    )


def _analyze(result: Compiled | Failure, system: System) -> AnalyzedProgram | None:
    """Analyze the compiled program; None if it does not fit and was therefore not compiled.

    Raises:
        NoAnswer: the compiler failed for another reason than memory, or exceeded a limit.
    """
    if isinstance(result, OutOfMemory):
        return analyze_program(result.program, system) if result.program else None
    if isinstance(result, Compiled):
        return analyze_program(result, system)
    raise compile_error(result)


def _verdict(
    plan: ServingPlan,
    step: str,
    system: System,
    target: Target,
    program: AnalyzedProgram | None,
    failure: OutOfMemory | None,
) -> Verdict:
    """The verdict on one step."""
    numbers = planned_numbers(plan, step)
    verdict = Verdict(
        name=f"the {step} step of {plan.model.name}",
        hardware=system.name,
        compiler=target.platform,
        fits=False,
        verdict="does not fit",
        note=first_line(failure),
        planned=numbers,
        compiled=None,
        collectives=(),
        differences=(),
        largest=(),
        compile_s=0.0,
        versions={},
        xla_flags=(),
    )
    if program is None:
        return replace(verdict, required_bytes=required_memory(failure, None))
    arrays = peak_arrays(program, describe_unplanned)
    rows: tuple[CheckedCollective, ...] = ()
    if not failure:
        rows = _collectives(plan, step, program)
    compiled = compiled_numbers(program, arrays)
    verdict = replace(
        verdict,
        compiled=compiled,
        required_bytes=required_memory(failure, compiled),
        collectives=rows,
        differences=tuple(_differences(plan, step, numbers, program, rows)),
        largest=largest_arrays(arrays, ("arguments",)),
        compile_s=program.compiled.total_s,
        versions=program.compiled.versions,
    )
    fits = program.compiled.fits
    if failure or fits is False:
        return verdict
    note = target.note
    if target.platform == "cpu":
        note = f"{note} {CPU_NOTE}".strip()
    causes = slower_parts(_operations(plan, step), timed_parts(program))
    return judge(replace(verdict, fits=fits, note=note), causes)


def _operations(plan: ServingPlan, step: str) -> list[Operation]:
    return [op for op in plan.operations if op.phase == step]


def planned_numbers(plan: ServingPlan, step: str) -> PlannedNumbers:
    """The plan's numbers in the verdict on one step.

    A plan keeps memory for the largest pass that a scheduler makes, or with --peak for none; a
    step's program is compared with the memory of a pass of its own size. HBM bytes are those of
    weights and cache, which the plan lists, and in a prefill those of activations, which are too
    many for caches.
    """
    estimate = plan.estimate
    deployment = rebuild(plan)[1]
    server = deployment.server
    batch = deployment.batch
    step_s = estimate.decode.step_s
    load = server.decode_load(batch)
    step_operations = _operations(plan, step)
    hbm_bytes = sum(op.hbm_bytes for op in step_operations)
    if step == "prefill":
        server = deployment.prefill_server or server
        batch = int(prompts_per_pass(server.engine)) if deployment.prefill_server else batch
        step_s = estimate.prefill.step_s
        load = server.prefill_load
        hbm_bytes += activation_bytes(server.engine, load)
    return PlannedNumbers(
        peak_bytes=server.program_bytes(batch, load),
        flops=sum(op.flops for op in step_operations),
        hbm_bytes=hbm_bytes,
        step_s=step_s,
    )


def _collectives(
    plan: ServingPlan, step: str, program: AnalyzedProgram
) -> tuple[CheckedCollective, ...]:
    """Totals of planned and compiled collectives of one step, by role and kind.

    Sampling is not in the plan, and the compiler drops the op names of its collectives. So the axes
    of small collectives are ignored, with a higher threshold for those without an op name.
    """
    total_bytes = sum(op.network_bytes for op in _operations(plan, step))
    collectives: list[Collective] = []
    for collective in program.collectives:
        share = comparison.ROUNDING_SHARE
        if collective.op_name:
            share = comparison.NEGLIGIBLE_SHARE
        if collective.received_bytes * collective.n_runs <= share * total_bytes:
            collective = replace(collective, axes=())
        collectives.append(collective)
    return comparison.compare_collectives(plan, collectives, step)


def _differences(
    plan: ServingPlan,
    step: str,
    numbers: PlannedNumbers,
    program: AnalyzedProgram,
    rows: tuple[CheckedCollective, ...],
) -> Iterator[Difference]:
    """Yield the differences between plan and program; none if the compiler is not the chip's."""
    if not program.compiled.target.proves_memory:
        return
    yield from comparison.collective_differences(rows)
    precision = plan.strategy.precision
    is_narrow = min(units.bytes_per_element(precision[x]) for x in ("weights", "kv")) < 2
    excess = program.compiled.memory.arguments - numbers.peak_bytes
    if is_narrow and excess > 0:
        yield Difference(
            text=f"memory: arguments take {units.show_bytes(excess)} more than planned: quantized "
            "numbers have scales, and a chip may pad the width of a cached head.",
            bytes=excess,
        )
    if plan.strategy.servers.kv == "batch":
        yield Difference(
            text="the engine shares the tokens of each sequence among chips with the same KV "
            "heads, where the plan gives them different sequences: it gathers queries and sums "
            "outputs instead of exchanging both.",
            bytes=0.0,
        )
    context = plan.workload.context
    mean_context = plan.estimate.decode.context
    if step == "decode" and mean_context < context:
        yield Difference(
            text=f"attention reads all {context:,} positions of a cache, of which "
            f"{mean_context:,.0f} are filled on average.",
            bytes=0.0,
        )
    planned = sum(op.flops for op in _operations(plan, step) if op.name == "attn.prompts")
    limit = planned * (1 + comparison.ROUNDING_SHARE)
    if step == "prefill" and program.attention_flops > limit:
        yield Difference(
            text=f"attention: {units.show_rate(planned, 'FLOP')} planned, "
            f"{units.show_rate(program.attention_flops, 'FLOP')} in its kernel, which computes "
            "blocks on the diagonal in full.",
            bytes=0.0,
        )
