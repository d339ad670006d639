"""Seconds of calls that take turns, and how busy other programs kept the machine meanwhile."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

Call = Callable[[], Any]
Result = TypeVar("Result")
# A part of a measurement: it yields functions that prepare the calls to be timed, once, and
# receives the seconds of each call.
Part: TypeAlias = Generator[Sequence[Callable[[], Call]], list[float], Result]

MIN_ROUNDS, MAX_ROUNDS = 5, 15
ROUNDS_S = 15.0  # until which more than `MIN_ROUNDS` begin
TRIAL_S = 0.01  # a trial repeats the call for at least this long
LEFT_OUT = 0.1  # share of trials that are left out at either end
MOST = 2.0  # times the median that a slow trial counts


class Turns(NamedTuple):
    """What a measurement in turns has found.

    Args:
        results: of its parts.
        drift: by how much a call that was timed in each round was slower in a slow round than in a
            fast one, as a fraction.
    """

    results: list[Any]
    drift: float


def take_turns(
    parts: Sequence[Part[Any]], reference: Call, on_stage: Callable[[str], None]
) -> Turns:
    """Time all calls of some parts in rounds, so that all meet the same moments.

    The speed of a shared machine changes from one second to the next: what is timed in one go is
    fast or slow by chance.
    """
    wanted = [next(part) for part in parts]
    preparations = list(chain(*wanted))
    on_stage(f"compiling {len(preparations)} operations")
    # XLA compiles one program with several threads: on few cores, several programs take longer.
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as threads:
        calls = list(threads.map(lambda prepare: prepare(), preparations))
    on_stage(f"{len(calls)} operations in turns")
    reference_trials, *trials = trials_of([reference, *calls])
    seconds = iter(map(usual, trials))
    results = []
    for part, of_part in zip(parts, wanted, strict=True):
        try:
            part.send([next(seconds) for _ in of_part])
        except StopIteration as end:
            results.append(end.value)
    usual_trials = _without_extremes(reference_trials)
    return Turns(results, usual_trials[-1] / usual_trials[0] - 1)


def trials_of(calls: Sequence[Call]) -> list[list[float]]:
    """Mean seconds of each call in some trials; the calls take turns. Results are waited for."""
    trials: list[list[float]] = [[] for _ in calls]
    for call in calls:
        jax_ready(call())
    start_s = time.perf_counter()
    for i in range(MAX_ROUNDS):
        if i >= MIN_ROUNDS and time.perf_counter() - start_s > ROUNDS_S:
            break
        for times, call in zip(trials, calls, strict=True):
            times.append(_trial(call))
    return trials


def usual(trials: Sequence[float]) -> float:
    """Mean of the trials without the slowest and the fastest ones.

    A plan is for a machine as it usually is: its slow moments count, a single one does not. Where
    another program took the processors, a trial counts as twice the usual one.
    """
    most_s = MOST * statistics.median(trials)
    return statistics.fmean(min(trial, most_s) for trial in _without_extremes(trials))


def _without_extremes(trials: Sequence[float]) -> list[float]:
    """The trials in their order of size, without `LEFT_OUT` of them at either end."""
    n_left_out = round(LEFT_OUT * len(trials))
    return sorted(trials)[n_left_out : len(trials) - n_left_out]


def _trial(call: Call) -> float:
    """Mean seconds of a call that is repeated for some time."""
    n_calls = 0
    start_s = time.perf_counter()
    while (elapsed_s := time.perf_counter() - start_s) < TRIAL_S or not n_calls:
        jax_ready(call())
        n_calls += 1
    return elapsed_s / n_calls


def jax_ready(result: Any) -> None:
    """Wait for the arrays of a result."""
    import jax

    jax.block_until_ready(result)


class OtherLoad:
    """Measures the processor time of other processes since it was created, on Linux."""

    def __init__(self) -> None:
        self._start = _processor_seconds()

    def share(self) -> float | None:
        """The time of others divided by that of all processors; None if it is unknown."""
        stop = _processor_seconds()
        if self._start is None or stop is None:
            return None
        total_s, busy_s, own_s = (
            now - before for now, before in zip(stop, self._start, strict=True)
        )
        if total_s <= 0:
            return None
        return max(0.0, busy_s - own_s) / total_s


def _processor_seconds() -> tuple[float, float, float] | None:
    """Seconds of all processors since the start: in total, busy, and busy with this process."""
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split()[1:9]]
    except (OSError, ValueError):
        return None
    _, _, _, idle, waiting, *_ = ticks
    per_second = os.sysconf("SC_CLK_TCK")
    total = sum(ticks)
    return total / per_second, (total - idle - waiting) / per_second, time.process_time()
