"""Rows of `bench/train.py`: what they count, and how they are told."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from shardwise.models import ModelConfig
from shardwise.models.weights import model_weights
from tests.benches import BENCH, imported


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`bench/train.py` as it is imported when it is run."""
    return imported(monkeypatch, "train")[0]


@pytest.mark.parametrize("size", ["10M", "100M"])
def test_parameters_are_those_of_the_model(train: Any, size: str) -> None:
    sizes = train.SIZES[size]
    model = ModelConfig.dense(n_kv_heads=sizes["n_heads"], **sizes)
    count = sum(n * weight.size for weight, n in model_weights(model))
    assert train.parameters(sizes) == count
    assert count == pytest.approx(float(size[:-1]) * 1e6, rel=0.1)


def test_a_row_of_the_table(train: Any) -> None:
    """The ratio of the turns, and both sides over the better peak."""
    rate = train.flops_of_token(train.SIZES["100M"])
    found = {
        "name": "100M bf16",
        "verdict": "measured",
        "tokens_per_s": {"ours": [1000.0, 900.0, 1100.0], "torch": [500.0, 500.0, 500.0]},
        "ratio": [2.0, 1.8, 2.2],
        "peak_flops_per_s": {"ours": 4000 * rate, "torch": 1000 * rate},
    }
    head, _, row = train.table([found]).splitlines()
    assert row == "| 100M bf16 | 1,000 | 500 | 2.00 | 1.80 to 2.20 | 25%, 12% |"
    assert max(len(head), len(row)) <= 80


LOSSES = [9.51, 8.81, 8.18]


@pytest.mark.parametrize(("dtype", "most"), [("f32", 1e-3), ("bf16", 2e-2)])
def test_sides_that_compute_something_else_fail(train: Any, dtype: str, most: float) -> None:
    near, far = LOSSES[-1] * (1 - 0.9 * most), LOSSES[-1] * (1 + 1.1 * most)
    assert train.judged(dtype, LOSSES, LOSSES) == {"verdict": "measured"}
    assert train.judged(dtype, [*LOSSES[:2], near], LOSSES) == {"verdict": "measured"}
    found = train.judged(dtype, [*LOSSES[:2], far], LOSSES)
    assert found["verdict"] == "apart"
    assert f"{far:.6g} and 8.18: apart by more than {most:g}" in found["note"]
    for ours, theirs in ((math.nan, 8.18), (8.18, math.nan), (math.inf, math.inf)):
        assert train.judged(dtype, [ours], [theirs])["verdict"] == "apart"


def test_rows_that_are_kept_computed_the_same(train: Any) -> None:
    kept = json.loads((BENCH / "train.json").read_text())
    assert list(kept) == train.ROWS
    for name, found in kept.items():
        told = train.judged(name.split()[1], *(found["losses"][n] for n in ("ours", "torch")))
        assert told["verdict"] == found["verdict"] == "measured"


def test_a_row_that_fails_is_told_and_is_the_exit_code(
    train: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"name": "10M f32", "verdict": "apart", "note": "why"}
    assert train.table([found]).splitlines()[2:] == ["", "- apart: 10M f32: why"]
    monkeypatch.setattr(train, "row", lambda name: found)
    with pytest.raises(SystemExit, match="why"):
        train.main(["--row", "10M f32"])
    assert json.loads(capsys.readouterr().out) == found
    for verdict, code in (("measured", 0), ("failed", 1)):
        rows = [{**found, "verdict": verdict}]
        monkeypatch.setattr(train, "refresh", lambda *given, rows=rows: rows)
        monkeypatch.setattr(train, "table", str)
        assert train.main([]) == code
