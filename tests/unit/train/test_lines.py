"""Which steps of a run get a line, and what a line of several steps says."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from shardwise.cli.verbs.train import RunLines
from tests.unit.report.training.test_run import RECORD


def steps_of(monkeypatch: pytest.MonkeyPatch, every: int | None, bad: int = 0) -> list[int]:
    """The steps that get a line, of twenty that take 0.3 seconds each."""
    plan: Any = SimpleNamespace(step=SimpleNamespace(expected=0.1))
    lines: list[str] = []
    monkeypatch.setattr(RunLines, "_write", lambda self, text: lines.append(text))
    run_lines = RunLines(plan, 20, quiet=False, every=every)
    for step in range(1, 21):
        run_lines.step(replace(RECORD, step=step, steps=20, step_s=0.3, bad=step == bad))
    assert lines[0].split()[0] == "step"
    return [int(line.split("/")[0]) for line in lines[1:]]


def test_a_line_every_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert steps_of(monkeypatch, None) == [1, 8, 15, 20]


def test_a_line_every_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    assert steps_of(monkeypatch, 6) == [1, 6, 12, 18, 20]
    assert steps_of(monkeypatch, 1) == list(range(1, 21))


def test_a_bad_step_gets_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert steps_of(monkeypatch, None, bad=4) == [1, 4, 11, 18, 20]
