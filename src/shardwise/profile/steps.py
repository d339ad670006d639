"""The steps of a trace: executions of the program that takes most of the time.

Where many programs run and none takes most of it, as when a step is not compiled as one, steps are
those that the trace marks (jax.profiler.StepTraceAnnotation); without marks the whole trace is one.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from shardwise.profile.devices import Device

MANY = 10  # programs, of which one has to take at least a half of the time to be the step
HALF = 0.5
SLOW = 1.5  # times the median step: a slow one, if at most
SLOW_SHARE = 0.25  # of the steps are
Window = tuple[float, float]  # start and end of a step


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of a trace.

    Args:
        module: the program whose executions they are; empty if no program is the step.
        n_programs: number of those that ran, and the name of that which ran most often.
        are_marked: whether they are marked steps of many programs.
        windows: of each device, none if it ran no step.
        slow: steps that `windows` does not have, of the first device that ran steps.
    """

    module: str
    n_programs: int
    most_frequent: str
    are_marked: bool
    windows: tuple[list[Window], ...]
    slow: tuple[Window, ...] = ()

    def without_slow(self) -> Steps:
        """The steps that a mean is of: a few steps that something else disturbed are left out.

        A step is slow if it takes `SLOW` times the median on a device. If more than `SLOW_SHARE`
        of the steps are, that is how the program runs, and all are kept.
        """
        ran = [windows for windows in self.windows if windows]
        if len({len(windows) for windows in ran}) != 1:
            return self
        longest = [max(end - start for start, end in step) for step in zip(*ran, strict=True)]
        least = SLOW * statistics.median(longest)
        slow = {number for number, duration in enumerate(longest) if duration > least}
        if len(slow) > SLOW_SHARE * len(longest):
            return self
        usual = [[w for number, w in enumerate(ws) if number not in slow] for ws in self.windows]
        return replace(
            self, windows=tuple(usual), slow=tuple(ran[0][number] for number in sorted(slow))
        )


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
