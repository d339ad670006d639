"""The account of a step: the time of a device by category and by operation, which sums to the step.

A step is one execution of the program that takes most of the time. Where an execution follows, the
step lasts until that begins, so that the time of the host between them is part of it. An instant
belongs to the work that the device does; if it does none, to what else runs (`device_account`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardwise.check.hlo.costs import Cost
from shardwise.check.hlo.text import Module
from shardwise.check.hlo.updates import argument_updates
from shardwise.errors import BadFile
from shardwise.hardware import Chip
from shardwise.profile.categories import (
    CATEGORIES,
    COMMUNICATION,
    GAP,
    HOST,
    LOOP,
    WAIT,
    WORK,
)
from shardwise.profile.costs import (
    Work,
    collective_groups,
    instruction_collectives,
    instruction_costs,
    program_module,
)
from shardwise.profile.device_account import (
    NANOSECONDS,
    DeviceAccount,
    Key,
    account_device,
    operation_key,
)
from shardwise.profile.devices import Device, Event, devices_of, program_of
from shardwise.profile.files import open_trace, trace_files
from shardwise.profile.host import COMPILATION
from shardwise.profile.memory import memory_peak
from shardwise.profile.plans import chip_of, plan_beside, step_program
from shardwise.profile.products import ProductFaults, product_faults
from shardwise.profile.programs import Program
from shardwise.profile.result import CategoryTime, MemoryPeak, OperationTime, Profile, SlowStep
from shardwise.profile.steps import Window, find_steps
from shardwise.profile.waiting import with_waiting

ROUNDING = 1e-9  # of a sum of times, of which it is a share


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
        program: whose executions are steps; empty for decoding of an engine whose plan is beside
            the trace, else for the one that takes most of the time.
        chip: of the devices, for the roofs of operations.

    Raises:
        BadFile: no device has executed a program.
    """
    plan = plan_beside(path)
    ran = {run.module for device in devices for run in device.executions}
    trace_steps = find_steps(devices, program or step_program(plan, ran)).without_slow()
    module = trace_steps.module
    if chip is None and plan:
        chip = chip_of(plan)
    active = [d for d, windows in zip(devices, trace_steps.windows, strict=True) if windows]
    steps = [windows for windows in trace_steps.windows if windows]
    if not active and program:
        names = ", ".join(sorted(ran))
        raise BadFile(f"{program} did not run in the trace. Its programs: {names}.")
    if not active:
        raise BadFile(f'the trace "{path}" does not say which program its operations belong to.')
    hlo_module = _hlo_module(active[0], module, steps[0])
    if hlo_module is not None:
        active = with_waiting(active, collective_groups(hlo_module, len(active)))
    else:
        active = with_waiting(active, {})
    accounts = [account_device(d, windows) for d, windows in zip(active, steps, strict=True)]
    parts = _mean_of([account.parts for account in accounts])
    counts = _mean_of([account.counts for account in accounts])
    executed = {event.name for event, _ in accounts[0].runs if event.module == module}
    costs: Mapping[str, Cost] = {}
    faults: Mapping[str, ProductFaults] = {}
    undonated_bytes = updated_elements = None
    if hlo_module is not None:
        costs = instruction_costs(hlo_module, executed)
        faults = product_faults(hlo_module, executed, active[0].kind)
        undonated_bytes, updated_elements = _updated(hlo_module)
    work = _work(accounts[0], costs, faults, module, chip)
    traffic = _traffic(accounts[0], hlo_module, module, len(active))
    step_s = sum(parts.values())
    by_category = dict.fromkeys(CATEGORIES, 0.0)
    for (_, _, category), seconds in parts.items():
        by_category[category] += seconds
    exposed_s = by_category[COMMUNICATION]
    transfer_s = _mean([account.communication_s for account in accounts])
    is_hidden = transfer_s - exposed_s > ROUNDING * transfer_s
    communication_s = transfer_s if is_hidden else exposed_s
    idle_s = by_category[GAP] + by_category[HOST]
    return Profile(
        trace=path,
        kind=active[0].kind,
        devices=len(active),
        module=module,
        n_programs=trace_steps.n_programs,
        most_frequent=trace_steps.most_frequent,
        has_marked_steps=trace_steps.are_marked,
        steps=min(account.n_steps for account in accounts),
        step_s=step_s,
        longest_step_s=max(account.longest_s for account in accounts),
        slow_steps=tuple(
            SlowStep(
                seconds=(window[1] - window[0]) / NANOSECONDS,
                compiled=_compiled_steps(active[0], [window]) > 0,
            )
            for window in trace_steps.slow
        ),
        compute_s=sum(by_category[category] for category in WORK),
        communication_s=communication_s,
        exposed_s=exposed_s,
        hidden_s=communication_s - exposed_s,
        waiting_s=by_category[WAIT],
        compiled_steps=_compiled_steps(active[0], steps[0]),
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
        memory=_memory(active[0], module, steps[0]),
        dtype=_dtype(accounts[0], costs, module),
        undonated_bytes=undonated_bytes,
        updated_elements=updated_elements,
    )


def _updated(module: Module) -> tuple[int, int]:
    """Of the arguments that a program returns updated: bytes in other memory, elements of all."""
    undonated = list(argument_updates(module).unaliased())
    arguments = module.entry_computation.parameters
    updated = undonated + [arguments[number] for _, number in module.aliases]
    n_elements = sum(shape.elements for argument in updated for shape in argument.shapes)
    return sum(argument.bytes for argument in undonated), n_elements


def _hlo_module(device: Device, module: str, steps: Sequence[Window]) -> Module | None:
    """The program of the steps as HLO; None if the trace does not hold it."""
    start_ns, end_ns = steps[0][0], steps[-1][1]
    events = [
        event
        for event in device.events
        if event.module == module and start_ns <= event.start_ns < end_ns
    ]
    program = _program(device, events, module)
    return program_module(program) if program is not None else None


def _program(device: Device, events: Sequence[Event], module: str) -> Program | None:
    """The program of some events; None if it is not known which."""
    return device.programs.executed(program_of(events, module), (event.name for event in events))


def _compiled_steps(device: Device, steps: Sequence[Window]) -> int:
    """The number of steps in which the host of a device compiled a program."""
    starts = [span.start_ns for span in device.host if span.kind == COMPILATION]
    return sum(any(start_ns <= start < end_ns for start in starts) for start_ns, end_ns in steps)


def _mean_of(sums: Sequence[Mapping[Key, float]]) -> dict[Key, float]:
    """The mean of the values of each key over devices; 0 where a device does not have it."""
    mean: dict[Key, float] = defaultdict(float)
    for values in sums:
        for key, value in values.items():
            mean[key] += value / len(sums)
    return mean


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
            by_kind = traffic.setdefault(operation_key(event), {})
            by_kind[kind] = by_kind.get(kind, 0.0) + n_runs * n_bytes
    return traffic


def _work(
    account: DeviceAccount,
    costs: Mapping[str, Cost],
    faults: Mapping[str, ProductFaults],
    module: str,
    chip: Chip | None,
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
            key = operation_key(event)
            slowed = faults.get(event.name) if event.module == module else None
            work[key] = work.get(key, Work()).plus(cost, slowed, chip, n_runs)
    return work


def _dtype(account: DeviceAccount, costs: Mapping[str, Cost], module: str) -> str:
    """The dtype in which most FLOPs of products are computed; empty if it is not known."""
    flops: Counter[str] = Counter()
    for event, n_runs in account.runs:
        cost = costs.get(event.name) if event.module == module else None
        if cost is not None and cost.flops:
            flops[cost.dtype] += round(n_runs * cost.flops)
    return max(flops, key=lambda dtype: flops[dtype], default="")


def _memory(device: Device, module: str, steps: Sequence[Window]) -> MemoryPeak | None:
    """The peak of memory, and when in the first step it is."""
    events = [event for event in device.events if event.module == module]
    program = _program(device, events, module)
    peak = memory_peak(program) if program is not None else None
    if peak is None:
        return None
    start_ns, end_ns = steps[0]
    for event in device.events:
        if event.name == peak.instruction and start_ns <= event.start_ns < end_ns:
            return replace(peak, at_share=(event.start_ns - start_ns) / (end_ns - start_ns))
    return peak


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
                upcast_flops=done.upcast_flops if done else 0.0,
                odd_dim=done.odd_dim if done else 0,
                roof_s=roof_s,
                roof=roof,
                collectives=traffic.get(key, {}),
            )
        )
    return tuple(rows)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
