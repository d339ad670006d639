"""Check a plan: compile its program for its machine, read it, and hold it against the plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shardwise import units
from shardwise.check import comparison
from shardwise.check.array_names import Words, argument
from shardwise.check.compiled_costs import Read, draw, held_at_peak, numbers, read_program
from shardwise.check.compiling.cache import cache_folder
from shardwise.check.compiling.environment import choose
from shardwise.check.compiling.job import Job
from shardwise.check.compiling.process import Limits, OnStage, compile_job
from shardwise.check.compiling.result import Compiled, Failure, OutOfMemory
from shardwise.check.compiling.targets import Target
from shardwise.check.device_view import as_devices, of_chip
from shardwise.check.verdict import Buffer, CheckedCollective, CompiledNumbers, Difference, Verdict
from shardwise.errors import BadInput, CheckFailed, UnknownName
from shardwise.plan.schema.json_output import encode
from shardwise.plan.schema.training import Plan
from shardwise.plan.training.rebuild import rebuild
from shardwise.runtime.program import COLLECTIVES
from shardwise.runtime.training.ticks import taken, ticks
from shardwise.search.training.problem import Case
from shardwise.strategy.schedules import find
from shardwise.strategy.stages import stages

TRAIN_STEP = "shardwise.runtime.training.programs:train_step"
CORE = ("attn.scores", "attn.values")
WIDER = "It widens bf16 to fp32: bytes of collectives are up to twice those of the chip."
ROOFLINES = "Times are rooflines of this package: the GPU's compiler estimates none."
STATE = ("arguments", "weights", "optimizer")  # as the plan counts it; no surprise
SHOWN = 8  # rows of arrays at the peak that a verdict lists


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How programs are compiled.

    Args:
        limits: what a compile may take.
        cache: whether a program that was compiled before is taken from the cache.
        on_stage: called with the stage of a compile and its seconds.
        collectives: who chooses those of a training step, of `runtime.program.COLLECTIVES`.
    """

    limits: Limits | None = None
    cache: bool = True
    on_stage: OnStage | None = None
    collectives: str = "plan"

    def __post_init__(self) -> None:
        if self.collectives not in COLLECTIVES:
            raise UnknownName("chooser of collectives", self.collectives, COLLECTIVES)

    @property
    def folder(self) -> str:
        """The folder of the cache, empty for none."""
        return str(cache_folder()) if self.cache else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """What the compiler made of a plan, ready to be held against it.

    Args:
        read: None where the program does not fit and was not compiled.
        found: its collectives beside those of the plan.
        fits: whether one device holds it; None where its compiler cannot say.
        failure: of a program for which the memory is too small.
    """

    target: Target
    read: Read | None
    numbers: CompiledNumbers | None
    found: tuple[CheckedCollective, ...]
    attention_flops: float
    again_flops: float
    buffers: tuple[Buffer, ...]
    fits: bool | None
    failure: OutOfMemory | None = None


def check_plan(plan: Plan, how: How, trace: str | Path | None = None, note: str = "") -> Verdict:
    """Prove a training plan with the compiler of its machine, without the machine.

    Raises:
        BadInput: a plan that the runtime does not run yet; says which part.
        CheckFailed: the compiler failed for another reason than memory.
        MissingExtra: no compiler is installed.
    """
    sides = compiled_sides(plan, how)
    if trace is not None and sides.read is not None and not sides.failure:
        draw(sides.read, trace, f"{plan.model.name} on {plan.hardware.name}")
    return verdict_of(plan, sides, note)


def compiled_sides(plan: Plan, how: How) -> Sides:
    """Compile a plan's training step and read it.

    Raises:
        As `check_plan`.
    """
    if any(op.collective and op.role and not op.joined_bytes for op in plan.operations):
        raise BadInput(
            "the plan was saved by a version that did not write the bytes of all collectives: "
            "plan it again."
        )
    case = rebuild(plan)
    target = choose(case.system)
    proves = target.platform == case.system.chip.kind
    job = Job(
        target=target,
        builder=TRAIN_STEP,
        arguments={"plan": encode(plan).decode(), "collectives": how.collectives},
        options={flag.name: flag.value for flag in plan.xla_flags} if proves else {},
        cache=how.folder,
    )
    result = compile_job(job, limits=how.limits, on_stage=how.on_stage)
    plan, _ = as_devices(plan)
    if isinstance(result, OutOfMemory):
        program = result.program
        read = read_program(program, case.system, argument, _taken(case)) if program else None
        return _sides(plan, case, target, read, result)
    if not isinstance(result, Compiled):
        raise CheckFailed(told(result))
    read = read_program(result, case.system, argument, _taken(case))
    return _sides(plan, case, target, read, None)


def _taken(case: Case) -> dict[str, tuple[int, ...]]:
    """How often the program of a pipeline takes each side of its choices."""
    layout = case.layout
    if not layout.is_pipelined:
        return {}
    chunks = int(stages(case.model.n_layers, layout).chunks)
    order = find(layout.schedule).order(layout.sizes["pipe"], layout.n_microbatches, chunks)
    return taken(ticks(order))


def _sides(
    plan: Plan, case: Case, target: Target, read: Read | None, failure: OutOfMemory | None
) -> Sides:
    buffers = held_at_peak(read, Words(case).of) if read else ()
    n = target.devices_per_chip
    return Sides(
        target=target,
        read=read,
        numbers=numbers(read, buffers) if read else None,
        found=comparison.held_against(plan, of_chip(read.collectives, n))
        if read and not failure
        else (),
        attention_flops=n * read.attention_flops if read else 0.0,
        again_flops=n * read.again_flops if read else 0.0,
        buffers=buffers,
        fits=read.compiled.fits if read and not failure else False,
        failure=failure,
    )


def verdict_of(plan: Plan, sides: Sides, note: str = "") -> Verdict:
    """The plan and what the compiler made of it, side by side.

    Args:
        note: what is to be said before anything else.
    """
    plan, shared = as_devices(plan)
    target, compiled = sides.target, sides.read.compiled if sides.read else None
    lost = comparison.missing(sides.found)
    verdict, notes = "proved", [note, target.note, shared]
    if target.platform == "cpu":
        notes.append(WIDER)
    if target.platform == "gpu":
        notes.append(ROOFLINES)
    if sides.fits is False:
        verdict = "does not fit"
        notes.insert(0, too_large(sides.failure, sides.numbers, target.devices_per_chip))
    elif lost:
        verdict = "collectives missing"
        notes.insert(0, f"{', '.join(lost)}: planned and not in the program.")
    used = compiled.options if compiled else {}
    return Verdict(
        name=plan.model.name,
        hardware=plan.hardware.name,
        compiler=target.platform,
        fits=sides.fits,
        verdict=verdict,
        note=" ".join(filter(None, notes)),
        planned=comparison.planned_numbers(plan),
        compiled=sides.numbers,
        collectives=sides.found,
        differences=_differences(plan, sides),
        largest=tuple(b for b in sides.buffers if b.category not in STATE)[:SHOWN],
        xla_flags=tuple(flag for flag in plan.xla_flags if flag.name in used),
        compile_s=compiled.lower_s + compiled.compile_s if compiled else 0.0,
        versions=compiled.versions if compiled else {},
    )


def too_large(failure: OutOfMemory | None, found: CompiledNumbers | None, n: int = 1) -> str:
    """By how much the memory is too small, in GiB as compilers and drivers say it."""
    needed = found.peak_bytes if found else None
    limit: float | None = found.capacity_bytes if found else None
    if failure:
        needed = needed or (failure.required and n * failure.required)
        limit = (failure.available and n * failure.available) or limit
    if not needed or not limit:
        return failure.text.splitlines()[0] if failure and failure.text else ""
    over = units.show_gib(max(0.0, needed - limit))
    return (
        f"A chip needs {units.show_gib(needed)} at the peak of the step and has "
        f"{units.show_gib(limit)}: {over} too much."
    )


def _differences(plan: Plan, sides: Sides) -> tuple[Difference, ...]:
    """In words; bytes only where the chip's own compiler laid the arrays out."""
    if sides.failure:
        return ()
    core = [op for op in plan.operations if op.name.startswith(CORE)]
    more = (
        comparison.attention(sum(map(comparison.computed, core)), sides.attention_flops),
        comparison.again(sum(map(comparison.computed, plan.operations)), sides.again_flops),
    )
    beside: tuple[Difference, ...] = ()
    if sides.target.proves_memory:
        beside = comparison.differences(sides.found, plan.strategy.n_microbatches)
    return (*beside, *(one for one in more if one))


def told(failure: Failure) -> str:
    """A failure of the compiler in one sentence, with its own words."""
    text = getattr(failure, "text", "") or str(failure)
    return f"the compiler failed ({type(failure).__name__}): {text[:600]}"
