"""The account of a step: the time of a device by category and by operation, which sums to the step.

A step is one execution of the program that takes most of the time. Where an execution follows, the
step lasts until that begins, so that the time of the host between them is part of it. An instant
belongs to the work that the device does; if it does none, to the collectives that run, which are
exposed then; else to a loop, a gap inside the program, or the host.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from shardwise.check.hlo.costs import Cost
from shardwise.check.hlo.text import Module
from shardwise.errors import BadFile
from shardwise.hardware import Chip
from shardwise.profile.categories import (
    CATEGORIES,
    COMMUNICATION,
    COPY,
    GAP,
    HOST,
    LOOP,
    WORK,
)
from shardwise.profile.costs import (
    Work,
    instruction_collectives,
    instruction_costs,
    program_module,
)
from shardwise.profile.devices import Device, Event, Execution, devices_of
from shardwise.profile.files import open_trace, trace_files
from shardwise.profile.host import DISPATCH, LOADING, HostSpan
from shardwise.profile.intervals import Span, covered, partition
from shardwise.profile.memory import memory_peak
from shardwise.profile.plans import chip_of, plan_beside
from shardwise.profile.result import CategoryTime, MemoryPeak, OperationTime, Profile

NANOSECONDS = 1e9  # per second
# Which of the categories that overlap has the time; a copy beside the operations comes after both.
# A host loads, or dispatches, where no device works.
LEVELS = {**dict.fromkeys(WORK, 0), COMMUNICATION: 1, LOOP: 3, GAP: 4}
BESIDE = 2
HOST_LEVELS = {LOADING: 5, DISPATCH: 6}


Key = tuple[str, str, str]  # name, pass, category of an operation


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAccount:
    """The seconds of the mean step on one device.

    Args:
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


def read_devices(path: str) -> list[Device]:
    """The devices of a trace, of all hosts.

    Raises:
        BadFile: there is no trace, or no device of it ran a program.
    """
    devices = [device for file in trace_files(path) for device in devices_of(open_trace(file))]
    if not devices:
        raise BadFile(
            f'no device ran a program in the trace "{path}". Trace whole steps, and wait for their '
            "results (jax.block_until_ready) before jax.profiler.stop_trace()."
        )
    return devices


def read_profile(path: str) -> Profile:
    """The account of a trace.

    Raises:
        BadFile: there is no trace of a step.
    """
    return profile_devices(path, read_devices(path))


def profile_devices(
    path: str, devices: Sequence[Device], *, program: str = "", chip: Chip | None = None
) -> Profile:
    """The account of a step, the mean over devices.

    Args:
        path: of the trace.
        program: whose executions are steps; empty for the one that takes most of the time.
        chip: of the devices, for the roofs of operations.

    Raises:
        BadFile: no device has executed a program.
    """
    module = program or main_module(devices)
    plan = plan_beside(path)
    if chip is None and plan:
        chip = chip_of(plan)
    active = [device for device in devices if steps_of(device, module)]
    if not active and program:
        names = sorted({run.module for device in devices for run in device.executions})
        raise BadFile(f"{program} did not run in the trace. Its programs: {', '.join(names)}.")
    if not active:
        raise BadFile(f'the trace "{path}" does not say which program its operations belong to.')
    accounts = [account_device(device, steps_of(device, module)) for device in active]
    parts: dict[Key, float] = defaultdict(float)
    counts: dict[Key, float] = defaultdict(float)
    for account in accounts:
        for key, seconds in account.parts.items():
            parts[key] += seconds / len(accounts)
        for key, count in account.counts.items():
            counts[key] += count / len(accounts)
    hlo_module = _hlo_module(accounts[0], active[0], module)
    executed = {event.name for event, _ in accounts[0].runs if event.module == module}
    costs = instruction_costs(hlo_module, executed) if hlo_module is not None else {}
    work = _work(accounts[0], costs, module, chip)
    traffic = _traffic(accounts[0], hlo_module, module, len(active))
    step_s = sum(parts.values())
    by_category = dict.fromkeys(CATEGORIES, 0.0)
    for (_, _, category), seconds in parts.items():
        by_category[category] += seconds
    communication_s = _mean([account.communication_s for account in accounts])
    idle_s = by_category[GAP] + by_category[HOST]
    return Profile(
        trace=path,
        kind=active[0].kind,
        devices=len(active),
        module=module,
        steps=min(account.n_steps for account in accounts),
        step_s=step_s,
        longest_step_s=max(account.longest_s for account in accounts),
        compute_s=sum(by_category[category] for category in WORK),
        communication_s=communication_s,
        exposed_s=by_category[COMMUNICATION],
        hidden_s=communication_s - by_category[COMMUNICATION],
        idle_s=idle_s,
        operations_share=1 - (idle_s + by_category[LOOP]) / step_s,
        named_share=_mean([account.named_s for account in accounts]) / step_s,
        has_programs=any(device.has_programs for device in active),
        categories=tuple(
            CategoryTime(category=category, seconds=seconds, share=seconds / step_s)
            for category, seconds in by_category.items()
        ),
        operations=_operation_times(parts, counts, work, traffic, step_s),
        plan=plan,
        chip=chip.name if chip and any(part.roof[0] for part in work.values()) else "",
        memory=_memory(active[0], module),
        dtype=_dtype(accounts[0], costs, module),
    )


def _hlo_module(account: DeviceAccount, device: Device, module: str) -> Module | None:
    """The program of the steps as HLO; None if the trace does not hold it."""
    names = {event.name for event, _ in account.runs if event.module == module}
    program = device.programs.executed(module, names)
    return program_module(program) if program is not None else None


def _traffic(
    account: DeviceAccount, hlo_module: Module | None, module: str, n_devices: int
) -> dict[Key, dict[str, float]]:
    """Bytes that the collectives of a step join, by operation and kind."""
    sizes = instruction_collectives(hlo_module, n_devices) if hlo_module is not None else {}
    traffic: dict[Key, dict[str, float]] = {}
    for event, n_runs in account.runs:
        if event.module != module or event.category != COMMUNICATION:
            continue
        for kind, n_bytes in sizes.get(event.name, {}).items():
            by_kind = traffic.setdefault(_key(event), {})
            by_kind[kind] = by_kind.get(kind, 0.0) + n_runs * n_bytes
    return traffic


def _work(
    account: DeviceAccount, costs: Mapping[str, Cost], module: str, chip: Chip | None
) -> dict[Key, Work]:
    """FLOPs and bytes of a step by operation, as the profiler says, else of the program."""
    work: dict[Key, Work] = {}
    for event, n_runs in account.runs:
        cost = costs.get(event.name) if event.module == module else None
        if event.flops is not None or event.hbm_bytes is not None:
            dtype = cost.dtype if cost else ""
            flops, hbm_bytes = int(event.flops or 0), int(event.hbm_bytes or 0)
            cost = Cost(flops=flops, elementwise=0, hbm_bytes=hbm_bytes, dtype=dtype)
        if cost is not None and event.category in WORK:
            key = _key(event)
            work[key] = work.get(key, Work()).plus(cost, chip, n_runs)
    return work


def _dtype(account: DeviceAccount, costs: Mapping[str, Cost], module: str) -> str:
    """The dtype in which most FLOPs of products are computed; empty if it is not known."""
    flops: Counter[str] = Counter()
    for event, n_runs in account.runs:
        cost = costs.get(event.name) if event.module == module else None
        if cost is not None and cost.flops:
            flops[cost.dtype] += round(n_runs * cost.flops)
    return max(flops, key=lambda dtype: flops[dtype], default="")


def _memory(device: Device, module: str) -> MemoryPeak | None:
    """The peak of memory, and when in the first step it is."""
    names = {event.name for event in device.events if event.module == module}
    program = device.programs.executed(module, names)
    peak = memory_peak(program) if program is not None else None
    if peak is None:
        return None
    start_ns, end_ns = steps_of(device, module)[0]
    for event in device.events:
        if event.name == peak.instruction and event.start_ns >= start_ns:
            return replace(peak, at_share=(event.start_ns - start_ns) / (end_ns - start_ns))
    return peak


def main_module(devices: Sequence[Device]) -> str:
    """The program whose executions take most of the time; empty without executions."""
    seconds: Counter[str] = Counter()
    for device in devices:
        for execution in device.executions:
            seconds[execution.module] += int(execution.end_ns - execution.start_ns)
    return seconds.most_common(1)[0][0] if seconds else ""


def steps_of(device: Device, module: str) -> list[tuple[float, float]]:
    """Start and end of each step: each lasts until the next begins, so the last one is none.

    An only execution is a step by itself. If most steps have no time of another program as long
    as the step's own, those that have, as a prefill between two decode passes, are none.
    """
    runs = [execution for execution in device.executions if execution.module == module]
    if len(runs) < 2:
        return [(run.start_ns, run.end_ns) for run in runs if run.end_ns > run.start_ns]
    others = [run for run in device.executions if run.module != module]
    steps = []
    plain = []
    for run, following in pairwise(runs):
        step = (run.start_ns, following.start_ns)
        steps.append(step)
        inside = [other for other in others if step[0] <= other.start_ns < step[1]]
        if sum(o.end_ns - o.start_ns for o in inside) < run.end_ns - run.start_ns:
            plain.append(step)
    return plain if 2 * len(plain) > len(steps) else steps


def account_device(device: Device, steps: Sequence[tuple[float, float]]) -> DeviceAccount:
    """The account of the mean step on one device."""
    windows = _windows(steps)
    events = [
        event
        for event in device.events
        if any(start_ns <= event.start_ns < end_ns for start_ns, end_ns in windows)
    ]
    spans = [_gap_span(execution) for execution in device.executions]
    spans += [_event_span(event) for event in events]
    spans += [_host_span(span) for span in device.host]
    in_window: Counter[tuple[Key, bool]] = Counter()
    for start_ns, end_ns in windows:
        in_window.update(partition(spans, start_ns, end_ns, rest=((HOST, "", HOST), False)))
    per_step = NANOSECONDS * len(steps)
    parts: dict[Key, float] = defaultdict(float)
    for (key, _), duration in in_window.items():
        parts[key] += duration / per_step
    counts: Counter[Key] = Counter(_key(event) for event in events)
    n_runs = Counter((event.module, event.name) for event in events)
    one_of = {(event.module, event.name): event for event in events}
    collectives = [
        (event.start_ns, event.end_ns) for event in events if event.category == COMMUNICATION
    ]
    named = sum(duration for (_, is_named), duration in in_window.items() if is_named)
    return DeviceAccount(
        n_steps=len(steps),
        step_s=sum(end_ns - start_ns for start_ns, end_ns in windows) / per_step,
        longest_s=max(last - first for first, last in steps) / NANOSECONDS,
        communication_s=sum(covered(collectives, *window) for window in windows) / per_step,
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


def _event_span(event: Event) -> Span[tuple[Key, bool]]:
    level = LEVELS[event.category]
    if event.asynchronous and event.category == COPY:
        level = BESIDE
    is_named = bool(event.operation[0]) and event.category != LOOP
    return Span(event.start_ns, event.end_ns, level, (_key(event), is_named))


def _key(event: Event) -> Key:
    if event.category == LOOP:
        return LOOP, "", LOOP
    name, phase = event.operation
    if not name:
        return event.name, "", event.category
    return name, phase, event.category


def _operation_times(
    parts: dict[Key, float],
    counts: dict[Key, float],
    work: dict[Key, Work],
    traffic: dict[Key, dict[str, float]],
    step_s: float,
) -> tuple[OperationTime, ...]:
    """The operations, those that take longest first, with the time that is no operation's."""
    rows = []
    for key in sorted(parts, key=lambda key: -parts[key]):
        name, phase, category = key
        done = work.get(key)
        roof_s, roof = done.roof if done else (None, "")
        rows.append(
            OperationTime(
                name=name,
                phase=phase,
                category=category,
                count=counts.get(key, 0.0),
                seconds=parts[key],
                share=parts[key] / step_s,
                flops=done.flops if done else None,
                hbm_bytes=done.hbm_bytes if done else None,
                roof_s=roof_s,
                roof=roof,
                collectives=traffic.get(key, {}),
            )
        )
    return tuple(rows)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
