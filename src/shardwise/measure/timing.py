"""Seconds of a call, and how busy other programs kept the machine meanwhile."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

N_TRIALS = 5
TRIAL_S = 0.02  # a trial repeats the call for at least this long


def median_s(call: Callable[[], Any], n_trials: int = N_TRIALS, trial_s: float = TRIAL_S) -> float:
    """Median over some trials of the mean seconds of a call, whose result is waited for.

    A plan is for a machine as it usually is, so neither its fastest nor its slowest moment counts.
    """
    return medians_s([call], n_trials, trial_s)[0]


def medians_s(
    calls: Sequence[Callable[[], Any]], n_trials: int = N_TRIALS, trial_s: float = TRIAL_S
) -> list[float]:
    """As `median_s` of each call; trials take turns, so that all calls meet the same moments."""
    trials: list[list[float]] = [[] for _ in calls]
    for call in calls:
        jax_ready(call())
    for _ in range(n_trials):
        for times, call in zip(trials, calls, strict=True):
            times.append(_trial(call, trial_s))
    return [statistics.median(times) for times in trials]


def _trial(call: Callable[[], Any], trial_s: float) -> float:
    """Mean seconds of a call that is repeated for some time."""
    n_calls = 0
    start_s = time.perf_counter()
    while (elapsed_s := time.perf_counter() - start_s) < trial_s or not n_calls:
        jax_ready(call())
        n_calls += 1
    return elapsed_s / n_calls


def jax_ready(result: Any) -> None:
    """Wait for the arrays of a result."""
    import jax

    jax.block_until_ready(result)


class Drift:
    """How much the speed of the machine changed, by one call that is timed again and again."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._seconds: list[float] = []

    def sample(self) -> None:
        """Time the call once more."""
        self._seconds.append(median_s(self._call))

    @property
    def share(self) -> float:
        """The slowest over the fastest sample, less 1."""
        return max(self._seconds) / min(self._seconds) - 1


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
