"""The peak of memory of a program, replayed from the buffer assignment of its compiler.

A trace keeps it with the program: the arguments, the results, and one block for all temporary
arrays, with the order in which these come and go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from shardwise.profile.messages import message_types
from shardwise.profile.programs import Program
from shardwise.profile.result import LiveArrays, MemoryPeak

FREE, SHARE = 1, 2  # kinds of events; 0 allocates
HBM_COLOR = 0  # of allocations; others are in the memories of a TPU's core


def memory_peak(program: Program) -> MemoryPeak | None:
    """The peak of a program's memory; None if the trace does not hold the assignment."""
    assignment = message_types()["HloProto"].FromString(program.content).buffer_assignment
    in_hbm = [
        part
        for part in assignment.buffer_allocations
        if not part.is_thread_local and part.color == HBM_COLOR
    ]
    sizes = {b.id: b.size for b in assignment.logical_buffers if b.color == HBM_COLOR}
    if not assignment.buffer_allocations:
        return None
    traces = [trace.events for trace in assignment.heap_simulator_traces]
    largest: Iterable[Any] = max(
        traces,
        key=lambda events: sum(sizes.get(event.buffer_id, 0) for event in events),
        default=(),
    )
    live, instruction = at_peak(largest, sizes)
    total = sum(part.size for part in in_hbm)
    arguments = sum(p.size for p in in_hbm if p.is_entry_computation_parameter)
    results = sum(
        p.size for p in in_hbm if p.maybe_live_out and not p.is_entry_computation_parameter
    )
    arrays: Counter[tuple[str, str]] = Counter()
    counts: Counter[tuple[str, str]] = Counter()
    for buffer, producer in live.items():
        owner = _owner(program, producer)
        arrays[owner] += sizes.get(buffer, 0)
        counts[owner] += 1
    return MemoryPeak(
        bytes=total,
        arguments=arguments,
        results=results,
        temporaries=total - arguments - results,
        instruction=instruction,
        operation=_owner(program, instruction)[0],
        arrays=tuple(
            LiveArrays(name=owner[0], phase=owner[1], count=counts[owner], bytes=size)
            for owner, size in arrays.most_common()
        ),
    )


def at_peak(events: Iterable[Any], sizes: dict[int, int]) -> tuple[dict[int, str], str]:
    """The buffers that are live when most bytes are, with their instructions; and the last one."""
    live: dict[int, str] = {}
    owner: dict[int, int] = {}  # buffer -> the buffer whose memory it has
    users: Counter[int] = Counter()
    total = peak = 0
    largest: dict[int, str] = {}
    instruction = ""
    for event in events:
        buffer = event.buffer_id
        if event.kind == FREE:
            memory = owner.get(buffer, buffer)
            users[memory] -= 1
            if not users[memory] and memory in live:
                total -= sizes.get(memory, 0)
                del live[memory]
            continue
        memory = buffer
        if event.kind == SHARE:
            memory = owner.get(event.share_with_canonical_id, event.share_with_canonical_id)
        owner[buffer] = memory
        users[memory] += 1
        if memory not in live:
            live[memory] = event.instruction_name
            total += sizes.get(memory, 0)
        if total > peak:
            peak = total
            largest = dict(live)
            instruction = event.instruction_name
    return largest, instruction


def _owner(program: Program, instruction: str) -> tuple[str, str]:
    """The operation of the model, and its pass, that an instruction belongs to."""
    found = program.operations.get(instruction)
    if found is None:
        return instruction, ""
    name, phase = found.operation
    return name or instruction, phase if name else ""
