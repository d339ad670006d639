"""Files that `compare` is given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwise.compare.inputs import read_input
from shardwise.errors import BadFile


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
