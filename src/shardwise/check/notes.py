"""Notes and errors shared by the checks of training plans, serving plans and functions."""

from __future__ import annotations

from collections.abc import Iterable

from shardwise import units
from shardwise.check.compiling.result import Failure, OutOfMemory
from shardwise.check.verdict import CompiledNumbers
from shardwise.errors import BadInput, CheckFailed
from shardwise.plan.schema.common import Operation

CPU_NOTE = "It widens bf16 to fp32: bytes of collectives are up to twice those of the chip."
GPU_NOTE = "Times are rooflines of this package: the GPU's compiler estimates none."


def compile_error(failure: Failure) -> CheckFailed:
    """The error for a failure of the compiler, with the compiler's message."""
    text = getattr(failure, "text", "") or str(failure)
    return CheckFailed(f"the compiler failed ({type(failure).__name__}): {text[:600]}")


def memory_note(
    failure: OutOfMemory | None, compiled: CompiledNumbers | None, devices_per_chip: int = 1
) -> str:
    """A sentence that says how much memory a chip lacks, in GiB as compilers and drivers print.

    If either number is unknown, the first line of the compiler's message instead.
    """
    required = compiled.peak_bytes if compiled else None
    available = compiled.capacity_bytes if compiled else None
    if failure:
        required = required or (failure.required or 0) * devices_per_chip
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
