"""What the devices of a trace did: operations and executions of programs, in time.

A TPU or a GPU has a plane of its own. The devices of a CPU share one plane with the threads of the
host, whose events carry the number of the device.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardwise.check.hlo.scopes import model_operation
from shardwise.profile.categories import category, kernel_category
from shardwise.profile.files import TraceFile
from shardwise.profile.host import HOST_PLANE, HostSpan, host_spans, step_marks
from shardwise.profile.library_calls import matched
from shardwise.profile.programs import Programs, programs

ACCELERATOR = re.compile(r"/device:(?:TPU|GPU):\d+$")
END = "end: "  # of an operation on a CPU, by the number of its start
UNUSED = ("Mutex", "Threadpool")  # events of a CPU, and most of them
MODULES_LINE = "XLA Modules"
OPS_LINE = "XLA Ops"
ASYNC_LINE = "Async XLA Ops"
STREAM_LINES = "Stream #"  # of a GPU, one a stream
DRIVER_CALLS = ("Memset", "Memcpy")  # on GPUs: a program may do without them in later executions
GRAPH = "command_buffer"  # a CUDA graph, which is called the operation of all of its kernels

_HLO_TEXT = re.compile(r"^%?([^\s=]+) = ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One operation on a device.

    Args:
        name: of the operation in its compiled program, or of a kernel.
        operation: the operation of the model, else the primitive, "" if neither is known; and its
            pass.
        module: name of the program; "" if the trace does not say.
        program: the name with its number, by which the trace holds the program; else the name.
        run: number of the execution; None if the trace does not say.
        line: the thread, stream or engine that ran it.
        asynchronous: whether it ran beside the operations of the device's main line.
        start_ns: on the clock of its host.
        flops, hbm_bytes: as the profiler of the device says; None if it does not.
        waiting_ns: of a collective, from its start, until the last device has come to it.
        is_named: whether the model names the operation, by its name scopes.
    """

    name: str
    operation: tuple[str, str]
    category: str
    module: str
    run: int | None
    line: str
    asynchronous: bool
    start_ns: float
    end_ns: float
    flops: float | None = None
    hbm_bytes: float | None = None
    waiting_ns: float = 0.0
    is_named: bool = False
    program: str = ""

    @property
    def transfer_ns(self) -> float:
        """When it begins to do more than wait for other devices."""
        return self.start_ns + self.waiting_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One execution of a program on a device, from its first operation to its last."""

    module: str
    start_ns: float
    end_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The events of one device, in order of their start, and its executions of programs.

    Args:
        programs: those that the trace holds, with name scopes and opcodes.
        host: what its host did: compilation, dispatch and loading.
        marks: when its host began the steps that it marks.
    """

    name: str
    kind: str
    events: tuple[Event, ...]
    executions: tuple[Execution, ...]
    programs: Programs
    host: tuple[HostSpan, ...] = ()
    marks: tuple[float, ...] = ()

    @property
    def has_programs(self) -> bool:
        """Whether the trace holds one of its programs."""
        return self.programs.has(event.module for event in self.events)


def devices_of(trace: TraceFile) -> list[Device]:
    """The devices of a trace that ran a program; those of the CPU if there are no others."""
    compiled = programs(trace.content)
    devices = []
    host = None
    for plane in trace.data.planes:
        if ACCELERATOR.match(plane.name):
            devices.append(_accelerator(plane, compiled))
        elif plane.name == HOST_PLANE:
            host = plane
    devices = [device for device in devices if device.events]
    if not devices and host is not None:
        devices = list(_cpu_devices(host, compiled))
    if host is not None:
        spans = host_spans(host)
        marks = step_marks(host)
        devices = [replace(device, host=spans, marks=marks) for device in devices]
    return devices


def _cpu_devices(plane: Any, compiled: Programs) -> Iterator[Device]:
    by_device: dict[int, list[Event]] = defaultdict(list)
    ends: dict[tuple[str, Any], float] = {}
    started: list[tuple[str, Any, dict[str, Any]]] = []
    for line in plane.lines:
        for raw in line.events:
            if raw.name.startswith(END):
                stats = dict(raw.stats)
                ends[raw.name.removeprefix(END), stats.get("_c")] = raw.start_ns
            elif not raw.name.startswith(UNUSED):
                stats = dict(raw.stats)
                if "hlo_op" in stats:
                    started.append((line.name, raw, stats))
    program_names = cpu_program_names(started, compiled)
    for line_name, raw, stats in started:
        program = program_names[stats.get("hlo_module"), stats.get("program_id")]
        event = _event(raw, stats, line_name, compiled, program)
        # Matmuls go on in other threads after their own event has ended.
        end_ns = ends.get((raw.name, stats.get("_p")), event.end_ns)
        event = replace(event, end_ns=max(event.end_ns, end_ns))
        by_device[int(stats.get("device_ordinal", 0))].append(event)
    for number, events in sorted(by_device.items()):
        ended = ended_before_readers(events, compiled)
        yield _device(f"CPU {number}", "CPU", ended, [], compiled)


def cpu_program_names(
    started: Iterable[tuple[str, Any, dict[str, Any]]], compiled: Programs
) -> dict[tuple[Any, Any], str]:
    """(name, number) of a program in the events of a CPU -> its name among the compiled programs.

    The numbers are not those of the compiled programs, which are told apart by their operations.
    """
    names: dict[tuple[Any, Any], set[str]] = defaultdict(set)
    for _, _, stats in started:
        names[stats.get("hlo_module"), stats.get("program_id")].add(str(stats["hlo_op"]))
    return {key: compiled.numbered_name(str(key[0] or ""), names[key]) for key in names}


def ended_before_readers(events: list[Event], compiled: Programs) -> list[Event]:
    """The events of one CPU device, each ended when an operation that reads its result starts.

    A CPU writes the end of a matmul only when the operations that waited for it have returned,
    on the thread that ended it.
    """
    starts: dict[tuple[str, int | None, str], list[float]] = defaultdict(list)
    for event in events:
        starts[event.module, event.run, event.name].append(event.start_ns)
    for times in starts.values():
        times.sort()
    ended = []
    for event in events:
        operation = compiled.find(event.program, event.name)
        end_ns = event.end_ns
        for reader in operation.readers if operation else ():
            times = starts.get((event.module, event.run, reader), [])
            index = bisect_right(times, event.start_ns)
            if index < len(times):
                end_ns = min(end_ns, times[index])
        ended.append(replace(event, end_ns=end_ns))
    return ended


def _accelerator(plane: Any, compiled: Programs) -> Device:
    lines = {line.name: list(line.events) for line in plane.lines}
    executions = []
    for raw in lines.get(MODULES_LINE, ()):
        end_ns = raw.start_ns + raw.duration_ns
        executions.append(Execution(module=raw.name, start_ns=raw.start_ns, end_ns=end_ns))
    executions.sort(key=lambda execution: execution.start_ns)
    names = [name for name in (OPS_LINE, ASYNC_LINE) if name in lines]
    if OPS_LINE not in lines:
        names = [name for name in lines if name.startswith(STREAM_LINES)]
    events = []
    for name in names:
        for raw in lines[name]:
            stats = dict(raw.stats)
            stats.setdefault("hlo_module", _module_at(executions, raw.start_ns))
            events.append(_event(raw, stats, name, compiled, _program_name(stats, compiled)))
    kind = plane.name.split(":")[1]
    return _device(plane.name.removeprefix("/device:"), kind, events, executions, compiled)


def _module_at(executions: list[Execution], start_ns: float) -> str:
    """The program that was executing at a time, of executions in order; empty before the first."""
    index = bisect_right(executions, start_ns, key=lambda execution: execution.start_ns)
    return executions[index - 1].module if index else ""


def _program_name(stats: Mapping[str, Any], compiled: Programs) -> str:
    """The name of an accelerator's program, with its number if the trace holds it."""
    module = str(stats.get("hlo_module", ""))
    numbered = f"{module}({stats.get('program_id')})"
    return numbered if numbered in compiled.by_name else module


def _event(
    raw: Any, stats: Mapping[str, Any], line: str, compiled: Programs, program: str
) -> Event:
    """An operation as it ran, of a program whose name among the compiled ones is `program`."""
    text = _HLO_TEXT.match(raw.name)  # on TPUs the whole instruction is the name of an event
    kernel = text[1] if text else raw.name
    name = str(stats.get("hlo_op") or kernel)
    module = str(stats.get("hlo_module", ""))
    if name.startswith(GRAPH):
        name = compiled.of_kernel(program, kernel)
    found = compiled.find(program, name)
    operation = model_operation(str(stats.get("tf_op", "")))
    is_named = bool(operation[0])
    if found is not None:
        operation, is_named = found.operation, found.is_named
    run = stats.get("run_id")
    return Event(
        name=name,
        operation=operation,
        is_named=is_named,
        category=category(kernel if found is None else name, found),
        module=module,
        program=program,
        run=None if run is None else int(run),
        line=line,
        asynchronous=line == ASYNC_LINE,
        start_ns=raw.start_ns,
        end_ns=raw.start_ns + raw.duration_ns,
        flops=_number(stats, "flops"),
        hbm_bytes=_number(stats, "bytes_accessed", "bytes accessed"),
    )


def _number(stats: Mapping[str, Any], *names: str) -> float | None:
    """The first of some statistics that an event has."""
    return next((float(stats[name]) for name in names if name in stats), None)


def _device(
    name: str, kind: str, events: list[Event], executions: list[Execution], compiled: Programs
) -> Device:
    events.sort(key=lambda event: event.start_ns)
    executions = executions or executions_of(events)
    if kind == "GPU":
        events = with_calls(events, executions, compiled)
    return Device(
        name=name,
        kind=kind,
        events=tuple(events),
        executions=tuple(executions),
        programs=compiled,
    )


def program_of(events: Iterable[Event], module: str) -> str:
    """The program of events of one name, with its number if it is the same for all."""
    programs = {event.program for event in events} - {""}
    return programs.pop() if len(programs) == 1 else module


def with_calls(events: list[Event], executions: list[Execution], compiled: Programs) -> list[Event]:
    """The events of a GPU, in which kernels of libraries are operations of their programs."""
    starts = [event.start_ns for event in events]
    events = list(events)
    for run in executions:
        first, last = bisect_left(starts, run.start_ns), bisect_right(starts, run.end_ns)
        within = [i for i in range(first, last) if events[i].module == run.module]
        is_known = {i: compiled.find(run.module, events[i].name) is not None for i in within}
        known = [events[i] for i in within if is_known[i]]
        candidates = compiled.candidates(program_of(known, run.module), [e.name for e in known])
        if len({program.calls for program in candidates}) != 1:
            continue
        program = candidates[0]
        kernels = [i for i in within if not is_known[i]]
        calls = matched([events[i].name for i in kernels], program.calls)
        for place, name in calls.items():
            kernel = events[kernels[place]]
            operation = program.operations[name]
            events[kernels[place]] = replace(
                kernel,
                name=name,
                operation=operation.operation,
                is_named=operation.is_named,
                category=kernel_category(kernel.name, name, operation),
            )
    return events


def executions_of(events: list[Event]) -> list[Execution]:
    """The executions of programs, of the events of a device in order of their start.

    An execution has its number where the trace says it. Elsewhere one begins with each occurrence
    of the program's rarest operation, of those the first.
    """
    runs: dict[tuple[str, int], list[Event]] = defaultdict(list)
    unnumbered: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.run is not None:
            runs[event.module, event.run].append(event)
        elif event.module:
            unnumbered[event.module].append(event)
    for module, module_events in unnumbered.items():
        counts: dict[str, int] = {}
        for event in module_events:
            counts[event.name] = counts.get(event.name, 0) + 1
        operations = [name for name in counts if not name.startswith(DRIVER_CALLS)]
        first = min(operations or counts, key=lambda name: counts[name])
        number = 0
        for event in module_events:
            number += event.name == first
            runs[module, number].append(event)
        # Before the first one is a part of an execution; or, of an only one, its start.
        start = runs.pop((module, 0), [])
        if number == 1:
            runs[module, 1][:0] = start
    executions = []
    for (module, _), run_events in runs.items():
        end_ns = max(event.end_ns for event in run_events)
        start_ns = run_events[0].start_ns
        executions.append(Execution(module=module, start_ns=start_ns, end_ns=end_ns))
    return sorted(executions, key=lambda execution: execution.start_ns)
