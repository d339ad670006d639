"""The account of one device: its mean step, divided among the operations that ran.

An instant belongs to the work that the device does; if it does none, to the collectives that
transfer, which are exposed then; else to a call of the host, a wait for other devices, a loop, a
gap inside the program, or the host.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardwise.profile.categories import (
    CALLBACK,
    COMMUNICATION,
    COPY,
    GAP,
    HOST,
    LOOP,
    WAIT,
    WORK,
)
from shardwise.profile.devices import Device, Event, Execution
from shardwise.profile.host import COMPILATION, DISPATCH, LOADING, HostSpan
from shardwise.profile.intervals import Span, covered, partition

NANOSECONDS = 1e9  # per second
# Which of the categories that overlap has the time; a copy beside the operations comes after both.
# A host compiles, loads, or dispatches, where no device works.
LEVELS = {**dict.fromkeys(WORK, 0), COMMUNICATION: 1, CALLBACK: 3, WAIT: 4, LOOP: 5, GAP: 6}
BESIDE = 2
HOST_LEVELS = {COMPILATION: 7, LOADING: 8, DISPATCH: 9}

Key = tuple[str, str, str]  # name, pass, category of an operation


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAccount:
    """The seconds of the mean step on one device.

    Args:
        communication_s: in which a collective transfers, beside work or not.
        named_s: in operations of the model.
        runs: an event of each operation of a program, with its number in a step.
    """

    n_steps: int
    step_s: float
    longest_s: float
    communication_s: float
    named_s: float
    parts: dict[Key, float]
    counts: dict[Key, float]
    runs: list[tuple[Event, float]]


def account_device(device: Device, steps: Sequence[tuple[float, float]]) -> DeviceAccount:
    """The account of the mean step on one device."""
    windows = _windows(steps)
    events = [
        event
        for event in device.events
        if any(start_ns <= event.start_ns < end_ns for start_ns, end_ns in windows)
    ]
    spans = [_gap_span(execution) for execution in device.executions]
    for event in events:
        spans += _event_spans(event)
    spans += [_host_span(span) for span in device.host]
    in_window: Counter[tuple[Key, bool]] = Counter()
    for start_ns, end_ns in windows:
        in_window.update(partition(spans, start_ns, end_ns, rest=((HOST, "", HOST), False)))
    per_step = NANOSECONDS * len(steps)
    parts: dict[Key, float] = defaultdict(float)
    for (key, _), duration in in_window.items():
        parts[key] += duration / per_step
    counts: Counter[Key] = Counter(operation_key(event) for event in events)
    counts.update(_wait_key(event) for event in events if event.waiting_ns)
    n_runs = Counter((event.module, event.name) for event in events)
    one_of = {(event.module, event.name): event for event in events}
    transfers = [
        (event.transfer_ns, event.end_ns) for event in events if event.category == COMMUNICATION
    ]
    named = sum(duration for (_, is_named), duration in in_window.items() if is_named)
    return DeviceAccount(
        n_steps=len(steps),
        step_s=sum(end_ns - start_ns for start_ns, end_ns in windows) / per_step,
        longest_s=max(last - first for first, last in steps) / NANOSECONDS,
        communication_s=sum(covered(transfers, *window) for window in windows) / per_step,
        named_s=named / per_step,
        parts=dict(parts),
        counts={key: count / len(steps) for key, count in counts.items()},
        runs=[(event, n_runs[name] / len(steps)) for name, event in one_of.items()],
    )


def _windows(steps: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The steps, those that follow one another as one."""
    windows: list[tuple[float, float]] = []
    for start, end in steps:
        if windows and windows[-1][1] == start:
            start = windows.pop()[0]
        windows.append((start, end))
    return windows


def _gap_span(execution: Execution) -> Span[tuple[Key, bool]]:
    key = ((GAP, "", GAP), False)
    return Span(execution.start_ns, execution.end_ns, LEVELS[GAP], key)


def _host_span(span: HostSpan) -> Span[tuple[Key, bool]]:
    return Span(span.start_ns, span.end_ns, HOST_LEVELS[span.kind], ((span.kind, "", HOST), False))


def _event_spans(event: Event) -> Iterator[Span[tuple[Key, bool]]]:
    level = LEVELS[event.category]
    if event.asynchronous and event.category == COPY:
        level = BESIDE
    is_named = event.is_named and event.category != LOOP
    if event.waiting_ns:
        wait = (_wait_key(event), is_named)
        yield Span(event.start_ns, event.transfer_ns, LEVELS[WAIT], wait)
    yield Span(event.transfer_ns, event.end_ns, level, (operation_key(event), is_named))


def operation_key(event: Event) -> Key:
    """The operation that an event belongs to: of the model, else that of the program."""
    if event.category == LOOP:
        return LOOP, "", LOOP
    name, phase = event.operation
    if not name:
        return event.name, "", event.category
    return name, phase, event.category


def _wait_key(event: Event) -> Key:
    """The waiting of a collective for other devices."""
    name, phase, _ = operation_key(event)
    return name, phase, WAIT
