"""Calls whose times are compared take turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from shardwise.measure import timing
from shardwise.measure.timing import Call, Part


class Clock:
    """A clock that calls of known seconds move.

    Args:
        called: names of the calls in the order in which they ran.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.called: list[str] = []

    def call(self, name: str, *seconds: float) -> Call:
        """A call that takes these seconds, one after the other."""
        remaining = iter(seconds)

        def run() -> None:
            self.called.append(name)
            self.now_s += next(remaining)

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of `timing`; a trial is one call, and there are three of each."""
    clock = Clock()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock.now_s)
    for name, value in (("TRIAL_S", 0.5), ("MIN_ROUNDS", 3), ("MAX_ROUNDS", 3)):
        monkeypatch.setattr(timing, name, value)
    return clock


def part(name: str, prepared: Sequence[Callable[[], Call]]) -> Part[tuple[str, list[float]]]:
    """A part that returns its name and the seconds of its calls."""
    seconds = yield prepared
    return name, seconds


def test_parts_take_turns_and_each_receives_its_seconds(clock: Clock) -> None:
    a, b, c, reference = (
        clock.call("a", 9, 1, 5, 3),
        clock.call("b", 9, 4, 3, 8),
        clock.call("c", 9, 2, 2, 2),
        clock.call("reference", 9, 4, 6, 5),
    )
    stages: list[str] = []
    parts = [part("two", [lambda: a, lambda: b]), part("one", [lambda: c])]
    turns = timing.take_turns(parts, reference, stages.append)
    assert turns.results == [("two", [3, 5]), ("one", [2])]
    assert turns.drift == pytest.approx(6 / 4 - 1)
    assert clock.called == ["reference", "a", "b", "c"] * 4  # the first of each is not timed
    assert stages == ["compiling 3 operations", "3 operations in turns"]


def test_rounds_end_when_their_time_is_over(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "MAX_ROUNDS", 100)
    monkeypatch.setattr(timing, "ROUNDS_S", 10.0)
    (trials,) = timing.trials_of([clock.call("a", *[4.0] * 101)])
    assert len(trials) == 3  # 12 s; the least number of rounds are 3
    monkeypatch.setattr(timing, "ROUNDS_S", 13.0)
    (trials,) = timing.trials_of([clock.call("a", *[4.0] * 101)])
    assert len(trials) == 4


def test_single_slow_trials_do_not_count() -> None:
    trials = [1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 50.0, 0.01]
    assert timing.usual(trials) == pytest.approx(1.5)
    assert timing.usual([4.0]) == 4.0


def test_trials_beside_another_program_count_as_twice_the_usual() -> None:
    trials = [*[1.0] * 7, 40.0, 50.0, 60.0]
    assert timing.usual(trials) == pytest.approx((6 * 1.0 + 2 * 2.0) / 8)
