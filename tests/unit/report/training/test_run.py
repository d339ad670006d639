"""The lines of a run: in 80 columns, whatever the numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwise.report.training import run as report
from shardwise.train.metrics import StepRecord

RECORD = StepRecord(
    step=40,
    steps=200,
    loss=3.41234,
    grad_norm=0.8123,
    learning_rate=3e-4,
    bad=False,
    step_s=0.613,
    lower=0.48,
    upper=0.87,
    tokens_per_s=12345.0,
    mfu=0.787,
    memory_bytes=2.5e9,
    eta_s=98.0,
)


def test_a_step_beside_its_plan() -> None:
    assert report.step_line(RECORD).split() == [
        *("40/200", "3.4123", "0.812", "613", "ms", "(480–870)", "12.3k", "79", "%"),
        *("2.33", "GiB", "2m"),
    ]


@pytest.mark.parametrize(
    "record",
    [
        RECORD,
        replace(RECORD, step=9_998, steps=9_999, step_s=12.4, eta_s=3e6),
        replace(RECORD, loss=float("nan"), grad_norm=float("inf"), bad=True, memory_bytes=None),
        replace(RECORD, lower=0.0009, upper=1.12, tokens_per_s=1.5e7, grad_norm=1234.5),
    ],
)
def test_lines_fit_and_columns_stand_under_their_names(record: StepRecord) -> None:
    line, heads = report.step_line(record), report.step_headers(record.steps)
    assert len(line) == len(heads) <= 80
    assert line.split()[0] == f"{record.step}/{record.steps}", "columns do not touch"


def test_a_bad_step_says_so() -> None:
    assert "bad" in report.step_line(replace(RECORD, bad=True, loss=float("nan")))


def test_a_sample_cannot_drive_the_terminal() -> None:
    assert report.printable("def f():\n\x1b[2J\tx") == "def f():\n?[2J\tx"
