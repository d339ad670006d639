"""Files that `compare` is given."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from shardwise.compare.inputs import read_input
from shardwise.errors import BadFile
from shardwise.train.metrics import StepRecord


def test_steps_of_another_program_lack_fields_that_are_named(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(json.dumps({"step": 1, "loss": 2.0, "step_s": 0.5}) + "\n")
    with pytest.raises(BadFile, match=r"its steps lack bad, eta_s, .*, upper\.$"):
        read_input(str(metrics))


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
