"""Check a serving plan: compile its two steps for its machine, and hold them against the plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from shardwise import units
from shardwise.check import comparison
from shardwise.check.array_names import unnamed
from shardwise.check.compiled_costs import Read, draw, held_at_peak, numbers, read_program
from shardwise.check.compiling.environment import choose
from shardwise.check.compiling.job import Job
from shardwise.check.compiling.process import compile_job
from shardwise.check.compiling.result import Compiled, Failure, OutOfMemory
from shardwise.check.compiling.targets import Target
from shardwise.check.hlo.collectives import Collective
from shardwise.check.training import SHOWN, WIDER, How, told
from shardwise.check.verdict import CheckedCollective, Difference, PlannedNumbers, Verdict
from shardwise.errors import BadInput, CheckFailed
from shardwise.hardware import System
from shardwise.plan.collectives import STEPS
from shardwise.plan.schema.common import Operation, Range
from shardwise.plan.schema.json_output import encode
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.serving.rebuild import rebuild

PROGRAM = "shardwise.runtime.serving.programs:{}_step"


@dataclass(frozen=True, slots=True, kw_only=True)
class HbmBytes:
    """What a chip reads and writes in a step; None where the compiler is not the chip's own."""

    planned: float
    compiled: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingVerdict:
    """What the compiler says of the two steps of a serving plan.

    Args:
        decode: one token for each sequence.
        prefill: prompts, beside the caches of the engine that reads them.
        decode_hbm, prefill_hbm: bytes of HBM traffic of each.
    """

    name: str
    hardware: str
    decode: Verdict
    prefill: Verdict
    decode_hbm: HbmBytes
    prefill_hbm: HbmBytes

    @property
    def passed(self) -> bool:
        """Whether nothing that was checked failed."""
        return self.decode.passed and self.prefill.passed


def check_serving(plan: ServingPlan, how: How, trace: str | Path | None = None) -> ServingVerdict:
    """Prove a serving plan with the compiler of its machine, without the machine.

    Args:
        plan: of serving.
        how: its two steps are compiled.
        trace: a file for the timeline of the decode step, for Perfetto; `.gz` compresses it.

    Raises:
        BadInput: a plan that the runtime does not run yet; says which part.
        CheckFailed: the compiler failed for another reason than memory.
        MissingExtra: no compiler is installed.
    """
    if any(op.collective and op.role and not op.joined_bytes for op in plan.operations):
        raise BadInput(
            "the plan was saved by a version that did not write the bytes of all collectives: "
            "plan it again."
        )
    chosen = rebuild(plan)[1]
    systems = {"decode": chosen.server.system, "prefill": (chosen.reader or chosen.server).system}
    found: dict[str, tuple[Verdict, HbmBytes]] = {}
    for step in STEPS:
        job = Job(
            target=choose(systems[step]),
            builder=PROGRAM.format(step),
            arguments={"plan": encode(plan).decode()},
            cache=how.folder,
        )
        result = compile_job(job, limits=how.limits, on_stage=how.on_stage)
        drawn = trace if step == "decode" else None
        found[step] = _verdict(plan, step, job.target, result, systems[step], drawn)
    return ServingVerdict(
        name=plan.model.name,
        hardware=plan.hardware.name,
        decode=found["decode"][0],
        prefill=found["prefill"][0],
        decode_hbm=found["decode"][1],
        prefill_hbm=found["prefill"][1],
    )


def _verdict(
    plan: ServingPlan,
    step: str,
    target: Target,
    result: Compiled | Failure,
    system: System,
    trace: str | Path | None,
) -> tuple[Verdict, HbmBytes]:
    """One step, number against number."""
    failure = result if isinstance(result, OutOfMemory) else None
    if not isinstance(result, Compiled | OutOfMemory):
        raise CheckFailed(told(result))
    compiled = result if isinstance(result, Compiled) else result.program
    read = read_program(compiled, system) if compiled else None
    if trace is not None and read is not None:
        draw(read, trace, f"decode, {plan.model.name} on {system.name}")
    buffers = held_at_peak(read, unnamed) if read else ()
    rows = _rows(plan, step, read) if read and not failure else ()
    verdict, note = _said(failure, read, rows, target)
    return (
        Verdict(
            name=f"the {step} step of {plan.model.name}",
            hardware=system.name,
            compiler=target.platform,
            fits=False if failure else read.compiled.fits if read else None,
            verdict=verdict,
            note=note,
            planned=planned_numbers(plan, step),
            compiled=numbers(read, buffers) if read else None,
            collectives=rows,
            differences=tuple(_differences(plan, step, read, rows)) if read else (),
            largest=tuple(b for b in buffers if b.category != "arguments")[:SHOWN],
            compile_s=read.compiled.lower_s + read.compiled.compile_s if read else 0.0,
            versions=read.compiled.versions if read else {},
            xla_flags=(),
        ),
        HbmBytes(
            planned=sum(op.hbm_bytes for op in _of(plan, step)),
            compiled=_hbm_bytes(read) if read and target.proves_memory else None,
        ),
    )


def _said(
    failure: OutOfMemory | None,
    read: Read | None,
    rows: tuple[CheckedCollective, ...],
    target: Target,
) -> tuple[str, str]:
    """(verdict, note)."""
    if failure or (read and read.compiled.fits is False):
        return "does not fit", failure.text.splitlines()[0] if failure and failure.text else ""
    if lost := comparison.missing(rows):
        return "collectives missing", f"{', '.join(lost)}: planned and not in the program."
    note = f"{target.note} {WIDER}".strip() if target.platform == "cpu" else target.note
    return "proved", note


def _of(plan: ServingPlan, step: str) -> Iterator[Operation]:
    return (op for op in plan.operations if op.phase == step)


def planned_numbers(plan: ServingPlan, step: str) -> PlannedNumbers:
    """The plan's side of one step."""
    found = plan.estimate
    reads = found.prefill_memory_bytes_per_chip or found.memory_bytes_per_chip
    memory = found.memory_bytes_per_chip if step == "decode" else reads
    step_s: Range = found.decode.step_s if step == "decode" else found.prefill.step_s
    flops = sum(op.flops for op in _of(plan, step))
    return PlannedNumbers(peak_bytes=memory.total, flops=flops, step_s=step_s)


def _rows(plan: ServingPlan, step: str, read: Read) -> tuple[CheckedCollective, ...]:
    total = sum(op.network_bytes for op in _of(plan, step))

    def told_apart(one: Collective) -> Collective:
        """What samples a token is in no plan; the compiler rewrites it, and its name is lost."""
        least = (comparison.SLIGHT if one.op_name else comparison.SAME) * total
        return one if one.received_bytes * one.count > least else replace(one, axes=())

    return comparison.held_against(plan, map(told_apart, read.collectives), step)


def _hbm_bytes(read: Read) -> float:
    return float(sum(op.hbm_bytes for op in read.ops))


def _differences(
    plan: ServingPlan, step: str, read: Read, rows: tuple[CheckedCollective, ...]
) -> Iterator[Difference]:
    """In words; bytes only where the chip's own compiler laid the arrays out."""
    if not read.compiled.target.proves_memory:
        return
    yield from comparison.differences(rows)
    narrow = units.bytes_per_element(plan.strategy.precision["weights"]) < 2
    memory = read.compiled.memory.arguments - planned_numbers(plan, step).peak_bytes
    if narrow and memory > 0:
        yield Difference(
            text=f"memory: {units.show_bytes(memory)} more than planned are arguments: both ends "
            "of the model stay in 16 bits, and narrow numbers have scales.",
            bytes=memory,
        )
    context, mean = plan.workload.context, plan.estimate.decode.context
    if step == "decode" and mean < context:
        yield Difference(
            text=f"attention reads all {context:,} places of a cache, of which {mean:,.0f} are "
            "filled in the mean.",
            bytes=0.0,
        )
    planned = sum(op.flops for op in _of(plan, step) if op.name == "attn.prompts")
    if step == "prefill" and read.attention_flops > planned * (1 + comparison.SAME):
        yield Difference(
            text=f"attention: {units.show_rate(planned, 'FLOP')} planned, "
            f"{units.show_rate(read.attention_flops, 'FLOP')} in its kernel, which computes "
            "blocks on the diagonal whole.",
            bytes=0.0,
        )
