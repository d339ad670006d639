"""Calls whose times are compared take turns."""

from __future__ import annotations

import pytest

from shardwise.measure import timing


def test_calls_take_turns_and_their_medians_are_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    clock = 0.0
    seconds = {"a": iter([9.0, 1.0, 5.0, 2.0]), "b": iter([9.0, 4.0, 3.0, 8.0])}

    def call(name: str) -> None:
        nonlocal clock
        called.append(name)
        clock += next(seconds[name])

    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock)
    calls = [lambda: call("a"), lambda: call("b")]
    assert timing.medians_s(calls, n_trials=3, trial_s=0.5) == [2.0, 4.0]
    assert called == ["a", "b"] * 4  # the first of each compiles
