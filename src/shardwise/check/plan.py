"""Check a plan: compile its program for its machine, read it, and hold it against the plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shardwise.check import proof
from shardwise.check.cache import cache_folder
from shardwise.check.compile import Limits, OnStage, compile_job
from shardwise.check.environment import choose
from shardwise.check.hlo.collectives import collectives
from shardwise.check.hlo.costs import costs
from shardwise.check.hlo.loops import runs
from shardwise.check.hlo.memory import peak
from shardwise.check.hlo.text import Module, parse
from shardwise.check.job import Job
from shardwise.check.proof import Verdict
from shardwise.check.result import Compiled, Failure, OutOfMemory
from shardwise.check.timeline.build import Timed, time_program
from shardwise.check.timeline.kernels import attention_cost
from shardwise.check.timeline.places import devices_at
from shardwise.check.timeline.trace import write_trace
from shardwise.errors import BadInput, CheckFailed
from shardwise.hardware import System
from shardwise.plan.document import encode
from shardwise.plan.rebuild import rebuild
from shardwise.plan.serve_value import ServingPlan
from shardwise.plan.value import Plan

TRAIN_STEP = "shardwise.runtime.planned:train_step"
CORE = ("attn.scores", "attn.values")
WIDER = "It widens bf16 to fp32: bytes of collectives are up to twice those of the chip."
SHOWN = 8  # arrays at the peak that a verdict lists


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """A compiled program, read and timed."""

    compiled: Compiled
    module: Module
    timed: dict[str, Timed]
    flops: float
    attention_flops: float


def check(
    plan: Plan | ServingPlan,
    *,
    trace: str | Path | None = None,
    limits: Limits | None = None,
    cache: bool = True,
    on_stage: OnStage | None = None,
) -> Verdict:
    """Prove a training plan with the compiler of its machine, without the machine.

    Args:
        plan: of training.
        trace: a file for the timeline of the program, for Perfetto; `.gz` compresses it.
        limits: what the compile may take.
        cache: whether a program that was compiled before is taken from the cache.
        on_stage: called with the stage of the compile and its seconds.

    Raises:
        BadInput: a plan that the runtime does not run yet; says which part.
        CheckFailed: the compiler failed for another reason than memory.
        MissingExtra: no compiler is installed.
    """
    if not isinstance(plan, Plan):
        raise BadInput("plans of serving are not compiled yet; plans of training are.")
    if any(op.collective and op.role and not op.joined_bytes for op in plan.operations):
        raise BadInput(
            "the plan was saved by a version that did not write the bytes of all collectives: "
            "plan it again."
        )
    system = rebuild(plan).system
    job = Job(
        target=choose(system),
        builder=TRAIN_STEP,
        arguments={"plan": encode(plan).decode()},
        cache=str(cache_folder()) if cache else "",
    )
    result = compile_job(job, limits=limits, on_stage=on_stage)
    if isinstance(result, OutOfMemory):
        return _too_large(plan, job, result, system)
    if not isinstance(result, Compiled):
        raise CheckFailed(_told(result))
    read = _read(result, system)
    if trace is not None:
        timed = read.timed.get("cycles") or read.timed.get("roofline")
        if timed is None:
            raise CheckFailed("the CPU's compiler gives no timeline of another chip: no trace.")
        write_trace(Path(trace), timed.timeline, f"{plan.model.name} on {plan.hardware.name}")
    return _verdict(plan, read)


def _read(compiled: Compiled, system: System) -> _Read:
    module = parse(compiled.hlo)
    target, timed = compiled.target, {}
    if target.platform != "cpu":
        places = compiled.places
        devices = devices_at(
            system,
            [p.coords for p in places],
            [p.core for p in places],
            [p.slice_index for p in places],
        )
        for mode in ("cycles", "roofline") if target.clock_hz else ("roofline",):
            timed[mode] = time_program(
                module, system, devices, compiled.mesh, mode=mode, clock_hz=target.clock_hz
            )
    ops = costs(module, attention_cost, runs(module))
    kernels = [op for op in ops if attention_cost(op.instruction) is not None]
    return _Read(
        compiled=compiled,
        module=module,
        timed=timed,
        flops=float(sum(op.flops for op in ops)),
        attention_flops=float(sum(op.flops for op in kernels)),
    )


def _verdict(plan: Plan, read: _Read) -> Verdict:
    compiled, target = read.compiled, read.compiled.target
    rows = proof.held_against(plan, collectives(read.module, compiled.mesh))
    lost = proof.missing(rows)
    fits = compiled.fits
    verdict, note = "proved", target.note
    if target.platform == "cpu":
        note = f"{note} {WIDER}".strip()
    if fits is False:
        verdict = "does not fit"
    elif lost:
        verdict, note = "collectives missing", f"{', '.join(lost)}: planned and not in the program."
    return Verdict(
        name=plan.model.name,
        hardware=plan.hardware.name,
        compiler=target.platform,
        fits=fits,
        verdict=verdict,
        note=note,
        planned=proof.planned_numbers(plan),
        compiled=_numbers(read),
        collectives=rows,
        differences=_differences(plan, read, rows),
        largest=_largest(read.module) if target.proves_memory else (),
        compile_s=compiled.lower_s + compiled.compile_s,
        versions=compiled.versions,
    )


def _differences(
    plan: Plan, read: _Read, rows: tuple[proof.CheckedCollective, ...]
) -> tuple[proof.Difference, ...]:
    """In words; bytes only where the chip's own compiler laid the arrays out."""
    core = [op for op in plan.operations if op.name.startswith(CORE)]
    planned = sum(op.computed_flops or op.flops for op in core)
    found = proof.attention(planned, read.attention_flops)
    beside = proof.differences(rows) if read.compiled.target.proves_memory else ()
    return (*beside, *([found] if found else []))


def _numbers(read: _Read) -> proof.CompiledNumbers:
    compiled, timed = read.compiled, read.timed
    proves = compiled.target.proves_memory
    seconds = None
    if timed:
        cycles = timed["cycles"].timeline.step_s if "cycles" in timed else None
        seconds = proof.CompiledSeconds(cycles=cycles, roofline=timed["roofline"].timeline.step_s)
    best = timed.get("cycles") or timed.get("roofline")
    return proof.CompiledNumbers(
        peak_bytes=compiled.memory.needed if proves else None,
        arguments_bytes=compiled.memory.arguments,
        temporaries_bytes=compiled.memory.temporaries if proves else None,
        capacity_bytes=compiled.target.memory_bytes,
        flops=read.flops,
        step_s=seconds,
        exposed_s=best.timeline.exposed if best else {},
    )


def _largest(module: Module) -> tuple[proof.Buffer, ...]:
    return tuple(
        proof.Buffer(
            bytes=one.bytes,
            shape=f"{one.shape.dtype}[{','.join(map(str, one.shape.dims))}]",
            category=one.category,
            scope=one.scope,
        )
        for one in peak(module).buffers
        if one.category != "arguments"
    )[:SHOWN]


def _too_large(plan: Plan, job: Job, failure: OutOfMemory, system: System) -> Verdict:
    """The verdict of a program for which the memory is too small."""
    read = _read(failure.program, system) if failure.program else None
    largest = _largest(read.module) if read else ()
    return Verdict(
        name=plan.model.name,
        hardware=plan.hardware.name,
        compiler=job.target.platform,
        fits=False,
        verdict="does not fit",
        note=failure.text.splitlines()[0] if failure.text else "",
        planned=proof.planned_numbers(plan),
        compiled=_numbers(read) if read else None,
        collectives=(),
        differences=(),
        largest=largest,
        compile_s=0.0,
        versions={},
    )


def _told(failure: Failure) -> str:
    """A failure of the compiler in one sentence, with its own words."""
    text = getattr(failure, "text", "") or str(failure)
    return f"the compiler failed ({type(failure).__name__}): {text[:600]}"
