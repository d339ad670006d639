"""The steps of a trace: executions of the program that takes most of the time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from shardwise.profile.devices import Device


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
