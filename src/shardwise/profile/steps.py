"""The steps of a trace: executions of the program that takes most of the time.

Where many programs run and none takes most of it, as when a step is not compiled as one, steps are
those that the trace marks (jax.profiler.StepTraceAnnotation); without marks the whole trace is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from shardwise.profile.devices import Device

MANY = 10  # programs, of which one has to take at least a half of the time to be the step
HALF = 0.5
Window = tuple[float, float]  # start and end of a step


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of a trace.

    Args:
        module: the program whose executions they are; empty if no program is the step.
        n_programs: number of those that ran, and the name of that which ran most often.
        are_marked: whether they are marked steps of many programs.
        windows: of each device, none if it ran no step.
    """

    module: str
    n_programs: int
    most_frequent: str
    are_marked: bool
    windows: tuple[list[Window], ...]


def find_steps(devices: Sequence[Device], program: str) -> Steps:
    """The steps of a trace.

    Args:
        program: whose executions are steps; empty for the one that takes most of the time.
    """
    counts: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for device in devices:
        for run in device.executions:
            counts[run.module] += 1
            seconds[run.module] += int(run.end_ns - run.start_ns)
    module = program or max(seconds, key=lambda name: seconds[name], default="")
    is_scattered = len(seconds) >= MANY and seconds[module] < HALF * seconds.total()
    if is_scattered and not program:
        module = ""
        windows = [_marked(device) or _whole(device) for device in devices]
    else:
        windows = [steps_of(device, module) for device in devices]
    return Steps(
        module=module,
        n_programs=len(seconds),
        most_frequent=max(counts, key=lambda name: counts[name], default=""),
        are_marked=not module and any(_marked(device) for device in devices),
        windows=tuple(windows),
    )


def _marked(device: Device) -> list[Window]:
    """The steps that the host marks, each until the next begins; none of fewer than two."""
    return list(pairwise(device.marks))


def _whole(device: Device) -> list[Window]:
    """All that the device ran, as one step."""
    if not device.executions:
        return []
    end_ns = max(run.end_ns for run in device.executions)
    return [(device.executions[0].start_ns, end_ns)]


def steps_of(device: Device, module: str) -> list[Window]:
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
