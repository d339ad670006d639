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
    assert report.step_line([RECORD], 0.5).split() == [
        *("40/200", "3.4123", "0.812", "0.0003", "613", "ms", "×1.2", "12.3k", "79", "2.33", "2m"),
    ]


def test_several_steps_have_their_mean_time_and_the_last_loss() -> None:
    slow = replace(RECORD, step=39, loss=9.9, step_s=3 * RECORD.step_s)
    assert report.step_line([slow, RECORD], 0.613).split() == [
        *("40/200", "3.4123", "0.812", "0.0003", "1.23", "s", "×2.0", "6,172", "39", "2.33", "2m"),
    ]


@pytest.mark.parametrize(
    "record",
    [
        RECORD,
        replace(RECORD, step=9_998, steps=9_999, step_s=12.4, eta_s=3e6, learning_rate=2.8e-5),
        replace(RECORD, loss=float("nan"), grad_norm=float("inf"), bad=True, memory_bytes=None),
        replace(RECORD, tokens_per_s=1.5e7, grad_norm=1234.5, loss=12345.6),
        replace(RECORD, tokens_per_s=2840.0, mfu=0.00047, memory_bytes=1e12),
        replace(RECORD, step=999_999, steps=1_000_000, step_s=0.00047),
    ],
)
def test_lines_fit_and_columns_stand_under_their_names(record: StepRecord) -> None:
    line = report.step_line([record], 0.0123)
    heads = report.step_headers(record.steps)
    assert len(line) == len(heads) <= 80
    words = heads.replace("MFU %", "MFU%").split()
    if not record.memory_bytes:
        words.remove("GiB")
    cells = line.replace(" ms", "ms").replace(" us", "us").replace(" s ", "s ").split()
    assert len(cells) == len(words), "columns do not touch"
    assert cells[0] in (f"{record.step}/{record.steps}", str(record.step))


def test_a_bad_step_says_so() -> None:
    assert "bad" in report.step_line([replace(RECORD, bad=True, loss=float("nan"))], 0.5)


def test_a_sample_cannot_drive_the_terminal() -> None:
    assert report.printable("def f():\n\x1b[2J\tx") == "def f():\n?[2J\tx"


def test_the_change_of_the_loss_is_one_of_means() -> None:
    assert report._loss_change([3.0, 9.0, 1.0]) == "the loss went from 3.0000 to 1.0000"
    losses = [4.0, 6.0] + [5.0] * 18 + [1.0, 3.0]
    assert report._loss_change(losses) == "the loss went from 5.0000 to 2.0000 (means of 2 steps)"
