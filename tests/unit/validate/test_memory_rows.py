"""Peak memory against what sources publish."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from shardwise.estimate.chip_memory import DRIVER_BYTES
from shardwise.validate import Run, SkippedRecord, load
from shardwise.validate.training.memory import (
    FROM_NVIDIA_SMI,
    MemoryRow,
    check_memory,
    is_calibration_group,
    medians,
    memory_rows,
)
from shardwise.validate.training.score import validate


@functools.cache
def rows() -> tuple[MemoryRow, ...]:
    return tuple(memory_rows(load()))


def test_every_published_peak_is_predicted() -> None:
    stated = [r.id for r in load() if isinstance(r, Run) and r.memory_bytes and r.task != "lora"]
    assert [row.id for row in rows()] == stated
    assert len(stated) > 90
    for row in rows():
        assert row.err == row.predicted / row.measured - 1
        assert row.unit == "bytes"


def test_the_margin_is_added_where_a_driver_was_read() -> None:
    run = next(
        r for r in load() if isinstance(r, Run) and r.source in FROM_NVIDIA_SMI and r.memory_bytes
    )
    (driver,) = memory_rows([run])
    moved = dataclasses.replace(run, source="bigscience-workshop/other")
    (allocator,) = memory_rows([moved])
    assert driver.predicted > allocator.predicted + DRIVER_BYTES


def test_peaks_are_part_of_a_validation() -> None:
    some = [r for r in load() if isinstance(r, Run) and r.memory_bytes][:3]
    timed = next(r for r in load() if isinstance(r, Run) and not r.memory_bytes)
    found = validate([*some, timed])
    assert found is not None
    assert found.memory == check_memory(some)
    assert found.memory is not None
    assert found.memory.n == 3
    assert found.memory.median_abs_err == sorted(abs(r.err) for r in found.memory.rows)[1]
    assert found.memory.bias == sorted(r.err for r in found.memory.rows)[1]
    without = validate([timed, SkippedRecord(id="x", source="s", reason="no global batch: none.")])
    assert without is not None
    assert without.memory is None


def test_errors_stay_where_they_are() -> None:
    found = medians(rows())
    assert found["held_back"].n > 20
    assert found["held_back"].median < 0.065
    assert found["held_back"].mean < 0.07
    assert found["chosen"].median < 0.035
    every = check_memory(load())
    assert every is not None
    assert every.median_abs_err < 0.04
    assert abs(every.bias) < 0.01


def test_long_contexts_are_exact_where_the_software_is_known() -> None:
    """Four layouts of one recipe, 32k to 256k tokens: logits in operation by operation."""
    errors = [abs(row.err) for row in rows() if row.group == "tt|llama3-8b|cp"]
    assert len(errors) == 4
    assert max(errors) < 0.01


def test_no_prediction_is_far_off_but_of_one_row() -> None:
    for row in rows():
        if row.id != "bloom-634":  # more at two sequences than its neighbour at four
            assert abs(row.err) < 0.14, row.id


def test_a_peak_is_what_was_stated() -> None:
    for run in (r for r in load() if isinstance(r, Run) and r.memory_bytes and r.task != "lora"):
        (row,) = memory_rows([run])
        assert row.measured == run.memory_bytes


def test_a_group_is_in_one_half() -> None:
    halves = {row.group: is_calibration_group(row.group) for row in rows()}
    assert set(halves.values()) == {True, False}


def test_a_prediction_knows_no_measurement() -> None:
    run = next(r for r in load() if isinstance(r, Run) and r.memory_bytes)
    (one,) = memory_rows([run])
    (two,) = memory_rows([dataclasses.replace(run, id="b", group="h", memory_bytes=1.0)])
    assert one.predicted == two.predicted
    assert two.err == pytest.approx(two.predicted - 1)
