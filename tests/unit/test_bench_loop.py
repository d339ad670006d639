"""Rows of `bench/loop.py`: what they plan, and how they are told."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.benches import imported


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`bench/loop.py` as it is imported when it is run."""
    (found,) = imported(monkeypatch, "loop")
    return found


def test_rows_have_names_of_their_own_and_every_number_of_devices(loop: ModuleType) -> None:
    assert len(loop.BY_NAME) == len(loop.ROWS) >= 12
    assert {row.n_devices for row in loop.ROWS} == {1, 2, 8}
    assert {row.dtype for row in loop.ROWS} == {"fp32", "bf16"}
    assert {row.remat for row in loop.ROWS} == {"none", "full"}
    roles = {part.split("=")[0] for row in loop.ROWS for part in row.mesh.split(",")}
    assert {"data", "fsdp", "tensor", "pipe"} <= roles


def test_the_table_has_the_errors(loop: ModuleType) -> None:
    steps = {"planned_s": 0.09, "measured_s": 0.1, "ratio": 0.9, "slowdown": 1.0}
    rows = [
        {"name": "one wide", **steps},
        {"name": "two data", **steps, "ratio": 1.3, "slowdown": 0.9},
        {"name": "two pipe", "verdict": "failed"},
        {"name": "eight both", **steps, "ratio": 1.2, "slowdown": 0.75},
    ]
    table = loop.table(rows).splitlines()
    assert table[2].startswith("| one wide | 1 | data=1 | 2 layers of 512, vocabulary 4,096 |")
    assert table[2].endswith("| 90 ms | 100 ms | 0.90 | 1.00 |")
    assert table[-1].startswith("Median error of 3 steps: 20% (goal: 15%); 10% if")
