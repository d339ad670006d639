"""Which steps of a loop are recorded, and when the trace starts and ends."""

from __future__ import annotations

import pytest

from shardwise.runtime import recording
from shardwise.runtime.recording import Recorder


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    monkeypatch.setattr(recording, "start_recording", lambda folder, plan: calls.append("start"))
    monkeypatch.setattr(recording, "stop_recording", lambda: calls.append("stop"))
    return calls


def test_the_steps_after_the_first_are_recorded(calls: list[str]) -> None:
    recorder = Recorder("trace", first=2, steps=3, on_done=lambda: calls.append("done"))
    due = []
    for step in range(1, 8):
        if recorder.is_due:
            due.append(step)
        recorder.count()
        calls.append(str(step))
    recorder.close()
    assert due == [2, 5]
    assert calls == ["1", "start", "2", "3", "4", "stop", "done", "5", "6", "7"]
    assert recorder.has_recorded


@pytest.mark.parametrize(
    ("steps", "expected"), [(1, []), (2, ["start", "stop"]), (3, ["start", "stop"])]
)
def test_a_loop_that_ends_early(steps: int, expected: list[str], calls: list[str]) -> None:
    recorder = Recorder("trace", first=2, steps=5)
    for _ in range(steps):
        recorder.count()
    recorder.close()
    assert calls == expected
    assert recorder.has_recorded == (steps > 2)


def test_nothing_is_recorded_without_a_folder(calls: list[str]) -> None:
    recorder = Recorder()
    for _ in range(20):
        assert not recorder.is_due
        recorder.count()
    recorder.close()
    assert not calls
    assert not recorder.has_recorded
