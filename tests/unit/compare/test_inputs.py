"""Files that `compare` is given."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from shardwise.compare.inputs import RunLog, read_input
from shardwise.compare.pairs import compare_runs
from shardwise.errors import BadFile
from shardwise.train.metrics import StepRecord


def lines(path: Path, *documents: dict[str, object]) -> str:
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return str(path)


def test_steps_of_another_trainer_need_a_number_and_a_time(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    run = read_input(lines(metrics, *({"step": n, "step_s": 0.5, "lr": 1} for n in (1, 2))))
    assert isinstance(run, RunLog)
    assert [(record.step, record.step_s) for record in run.records] == [(1, 0.5), (2, 0.5)]
    (row,) = [*compare_runs(run, run).rows, *compare_runs(run, run).figures]
    assert (row.group, row.first) == ("step", 0.5)  # neither logs its loss or tokens
    with pytest.raises(BadFile, match=r"its steps lack step_s\.$"):
        read_input(lines(metrics, {"step": 1, "loss": 2.0}))
    with pytest.raises(BadFile, match=r'line 1 .* lines as \{"step": 1, "step_s": 2\.5\}'):
        read_input(lines(metrics, {"step": 1, "step_s": "fast"}))


def test_a_file_without_steps_says_how_they_are_written(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(json.dumps({"saved": 3}) + "\n")
    with pytest.raises(BadFile, match=r"has no steps\. shardwise train --log FILE"):
        read_input(str(metrics))


@pytest.mark.parametrize("step_s", [-1, 0, "nan", "inf"])
def test_a_step_of_no_time_is_refused(tmp_path: Path, step_s: float | str) -> None:
    record = {field.name: 1 for field in fields(StepRecord)} | {"bad": False, "step_s": step_s}
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(json.dumps(record) + "\n")
    with pytest.raises(BadFile, match=rf"line 1: a step takes {step_s} seconds \(step_s\)\.$"):
        read_input(str(metrics))
