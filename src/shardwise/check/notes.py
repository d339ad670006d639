"""Notes and errors shared by the checks of training plans, serving plans and functions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from shardwise import units
from shardwise.check.array_names import user_scope
from shardwise.check.compiling.result import (
    Failure,
    Killed,
    MemoryLimit,
    OutOfMemory,
    Timeout,
    VmemOverflow,
)
from shardwise.check.compiling.targets import Target
from shardwise.check.source_line import SourceLine
from shardwise.check.verdict import CompiledNumbers
from shardwise.errors import BadInput, NoAnswer
from shardwise.plan.schema.common import Operation

CPU_NOTE = "It widens bf16 to fp32: bytes of collectives are up to twice those of the chip."
LESS_TO_COMPILE = "A training plan compiles faster with --layers 1,2, or --on a smaller machine."
# By `bench/timeline.py`, of published runs on TPUs.
CYCLES_NOTE = "cycles are 12 to 38 % above published training steps, 34 to 120 % above decode"
GPU_NOTE = "Times are rooflines of this package: the GPU's compiler estimates none."

# Stage of a compilation -> what the user's code has not done.
STAGE_FAILURES = {
    "building": "cannot be imported, or its arguments cannot be made",
    "lowering": "cannot be traced with these arguments",
}
MAX_TEXT = 600  # characters of the message of JAX or a compiler that are repeated


def located(problem: str, source: SourceLine | None, text: str) -> str:
    """A problem, the line of the user's code that is at fault, and the message it comes with."""
    place = f", at {source}" if source else ""
    return f"{problem}{place}: {text[:MAX_TEXT]}"


def compile_error(failure: Failure) -> NoAnswer:
    """The error for a failure of the compiler, with the compiler's message."""
    match failure:
        case Timeout():
            text = (
                f"compiling takes longer than {units.show_seconds(failure.limit_s)} (it was "
                f"{failure.stage}). Give it more with --timeout, as --timeout 1h. {LESS_TO_COMPILE}"
            )
        case MemoryLimit():
            text = (
                f"compiling takes more than {units.show_gib(failure.limit)} of this machine's "
                f"memory (it was {failure.stage}). Give it more with --memory, as --memory 32GiB. "
                f"{LESS_TO_COMPILE}"
            )
        case Killed():
            text = (
                f"the system killed the compiler's process while it was {failure.stage}, as it "
                f"does when memory runs out: compile where more is free. {LESS_TO_COMPILE}"
            )
        case VmemOverflow():
            text = vmem_note(failure)
        case _:
            text = f"the compiler failed ({type(failure).__name__}): {failure.text[:MAX_TEXT]}"
    return NoAnswer(text)


def vmem_note(failure: VmemOverflow) -> str:
    """A sentence that says which operation takes too much VMEM, and what may help."""
    name = "a Pallas kernel" if failure.is_kernel else "an operation"
    scope = user_scope(failure.op_name)
    where = f" in {scope}" if scope else ""
    advice = ""
    if failure.is_kernel:
        advice = (
            " Take smaller blocks or scratch, or raise the limit with "
            "pltpu.CompilerParams(vmem_limit_bytes=...)."
        )
    return (
        f"{name}{where} needs {units.show_gib(failure.required)} of VMEM, and may have "
        f"{units.show_gib(failure.limit)}.{advice}"
    )


def refuse_trace(trace: str | Path | None, target: Target) -> None:
    """Refuse a timeline that could not be written, before the program is compiled.

    Raises:
        BadInput: the folder of `trace` is missing, or the compiler is not the chip's own.
    """
    if trace is None:
        return
    folder = Path(trace).parent
    if not folder.is_dir():
        raise BadInput(f"--trace {trace}: there is no folder {folder}.")
    if Path(trace).is_dir():
        raise BadInput(f"--trace {trace} is a folder. Name a file, as {trace}/step.json.gz.")
    if target.platform == "cpu":
        raise BadInput(
            f"--trace {trace}: the CPU's compiler gives no timeline of {target.name}. {target.note}"
        )


def required_memory(
    failure: OutOfMemory | None, compiled: CompiledNumbers | None, devices_per_chip: int = 1
) -> float | None:
    """Bytes that a chip needs: of the compiled program, else as the compiler's failure says."""
    if compiled and compiled.peak_bytes:
        return compiled.peak_bytes
    if failure and failure.required:
        return failure.required * devices_per_chip
    return None


def memory_note(
    failure: OutOfMemory | None, compiled: CompiledNumbers | None, devices_per_chip: int = 1
) -> str:
    """A sentence that says how much memory a chip lacks, in GiB as compilers and drivers print.

    If either number is unknown, the first line of the compiler's message instead.
    """
    required = required_memory(failure, compiled, devices_per_chip)
    available = compiled.capacity_bytes if compiled else None
    if failure:
        available = (failure.available or 0) * devices_per_chip or available
    if not required or not available:
        return first_line(failure)
    excess = units.show_gib(max(0.0, required - available))
    return (
        f"A chip needs {units.show_gib(required)} at the peak of the step and has "
        f"{units.show_gib(available)}: {excess} too much."
    )


def first_line(failure: OutOfMemory | None) -> str:
    """The first line of the compiler's message; "" if there is none."""
    if failure is None or not failure.text:
        return ""
    return failure.text.splitlines()[0]


def require_joined_bytes(operations: Iterable[Operation]) -> None:
    """Reject plans saved by early versions, which lack the bytes of some collectives.

    Raises:
        BadInput: a collective has no joined bytes.
    """
    for op in operations:
        if op.collective and op.role and not op.joined_bytes:
            raise BadInput(
                "the plan was saved by a version that did not record the bytes of all "
                "collectives: run shardwise plan again."
            )
