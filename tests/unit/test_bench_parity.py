"""Rows of `bench/parity.py`: every pair is there once, and the table says what was found."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.benches import imported


@pytest.fixture
def parity(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return imported(monkeypatch, "parity")[0]


def test_every_row_is_a_layout_of_the_whole_batch(parity: ModuleType) -> None:
    rows = list(parity.rows())
    assert len({row.name for row in rows}) == len(rows) > 200
    for row in rows:
        assert row.layout.global_batch == parity.BATCH, row.name
        assert len(row.ways) > 2 or row.layout.mesh.n_chips in (2, 4, 8), row.name
    assert max(row.layout.mesh.n_chips for row in rows) == 64


def test_what_is_not_equal_is_seen(parity: ModuleType) -> None:
    numbers = {"loss": 1e-7, "gradient": 1e-6, "weight": 1e-6, "differences": []}
    found = [
        {"name": "dense: data x fsdp", "verdict": "equal", "collectives": "as planned", **numbers},
        {"name": "dense: data x ring", "verdict": "apart", "collectives": "more", **numbers},
        {"name": "dense: data x full", "verdict": "refused", "note": "why"},
    ]
    assert [parity.mark(one) for one in found] == ["=", "A", "R"]
    lines = parity.table(found).splitlines()
    assert lines[0].startswith("dense: 1 of 3 layouts give the numbers of one device")
    assert lines[-1] == "- dense: data x full: refused: why"
    assert "- dense: data x ring: apart" in lines[-2]
