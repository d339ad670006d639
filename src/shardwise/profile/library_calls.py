"""Kernels on GPUs that have no name of the program: those of libraries, and of Pallas.

Inside a CUDA graph a trace has the kernel's name alone. An execution of a program runs the kernels
of a library in the order of its calls: where there are as many, each belongs to the call of its
place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Targets of calls, and the names of the kernels that do their work; for each one kernel.
LIBRARIES = (
    (re.compile(r"__cublas"), re.compile(r"nvjet|cutlass|cublas|gemm(?!_fusion)")),
    (re.compile(r"__cudnn\$fmha.*Backward"), re.compile(r"bprop")),
    (re.compile(r"__cudnn\$fmha(?!.*Backward)"), re.compile(r"fprop")),
)
TRITON = re.compile(r"__gpu\$xla\.gpu\.triton")
_NO_KERNEL_OF_PALLAS = re.compile(r"^Mem|^memcpy|cudnn|splitK|^void ")
CALL, LOOP, CUSTOM_CALL = "call", "while", "custom-call"


def matched(kernels: Sequence[str], calls: Sequence[tuple[str, str]]) -> dict[int, str]:
    """Position of a kernel of an execution -> the operation that called it.

    Args:
        kernels: names of kernels that are no operations of the program, in order of their start.
        calls: (operation, target) of the program's custom calls, in the order in which they run.
    """
    operations: dict[int, str] = {}
    remaining = dict(enumerate(kernels))
    for target, name in LIBRARIES:
        positions = [i for i, kernel in remaining.items() if name.search(kernel)]
        for i in positions:
            del remaining[i]
        operations |= _in_order(positions, _to(target, calls))
    positions = [i for i, kernel in remaining.items() if not _NO_KERNEL_OF_PALLAS.search(kernel)]
    return operations | _in_order(positions, _to(TRITON, calls))


def _to(target: re.Pattern[str], calls: Sequence[tuple[str, str]]) -> list[str]:
    """The operations that call a library."""
    return [operation for operation, called in calls if target.match(called)]


def _in_order(positions: Sequence[int], operations: Sequence[str]) -> dict[int, str]:
    """Each position with its operation; none where their numbers differ."""
    if len(positions) != len(operations):
        return {}
    return dict(zip(positions, operations, strict=True))


def calls_of(module: Any) -> tuple[tuple[str, str], ...]:
    """(operation, target) of the custom calls of an HloModule, in the order in which they run.

    None of them if this is not known, as of loops whose number of turns is not.
    """
    computations = {computation.id: computation for computation in module.computations}
    order = {entry.key: list(entry.value.instruction_ids) for entry in module.schedule.sequences}
    try:
        return tuple(_calls(module.entry_computation_id, computations, order))
    except LookupError:
        return ()


def _calls(
    computation: int, computations: Mapping[int, Any], order: Mapping[int, list[int]]
) -> Iterator[tuple[str, str]]:
    """Those of one computation.

    Raises:
        LookupError: a schedule, or the number of turns of a loop, is missing.
    """
    by_id = {instruction.id: instruction for instruction in computations[computation].instructions}
    for number in order[computation]:
        instruction = by_id[number]
        if instruction.opcode == CUSTOM_CALL:
            yield instruction.name, instruction.custom_call_target
        elif instruction.opcode == CALL:
            yield from _calls(instruction.called[0], computations, order)
        elif instruction.opcode == LOOP:
            # The body is called first, then the condition.
            inside = tuple(_calls(instruction.called[0], computations, order))
            for _ in range(_turns(instruction) if inside else 0):
                yield from inside


def _turns(loop: Any) -> int:
    """Turns of a loop, which XLA's backends keep.

    Raises:
        LookupError: it is not known.
    """
    config = json.loads(loop.backend_config or b"{}")
    return int(config["known_trip_count"]["n"])
