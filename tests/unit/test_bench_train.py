"""Rows of `bench/train.py`: what they count, and how they are told."""

from __future__ import annotations

from typing import Any

import pytest

from shardwise.models import ModelConfig
from shardwise.models.weights import model_weights
from tests.benches import imported


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
        "tokens_per_s": {"ours": [1000.0, 900.0, 1100.0], "torch": [500.0, 500.0, 500.0]},
        "ratio": [2.0, 1.8, 2.2],
        "peak_flops_per_s": {"ours": 4000 * rate, "torch": 1000 * rate},
    }
    head, _, row = train.table([found]).splitlines()
    assert row == "| 100M bf16 | 1,000 | 500 | 2.00 | 1.80 to 2.20 | 25%, 12% |"
    assert max(len(head), len(row)) <= 80
