"""The default precision trains: fp32 masters that every update reaches, kept through a break."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.train.command import printed


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What `mixed` printed of runs on one device."""
    return printed("mixed", tmp_path_factory.mktemp("learned"), "learned")


def test_every_norm_and_nearly_every_entry_of_a_matrix_moves(learned: Any) -> None:
    """With weights in bf16 alone no norm ever leaves 1.0, and most updates are rounded away."""
    unmoved = learned["bf16"]["unmoved"]
    assert sum("norm" in name for name in unmoved) == 3
    assert len(unmoved) == 12
    assert all(share < 0.01 for share in unmoved.values()), unmoved


def test_it_learns_what_fp32_learns(learned: Any) -> None:
    losses = {dtype: told["losses"] for dtype, told in learned.items()}
    assert len(losses["bf16"]) == 50
    assert losses["bf16"][-1] < losses["bf16"][0] / 3
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.01)


@pytest.mark.oracle
def test_masters_go_through_a_break_and_are_published(tmp_path: Path) -> None:
    told = printed("mixed", tmp_path, "resumed")
    assert told["failed"] == {"kind": "nothing"}
    assert told["masters"] == 12
    assert told["equal"], "a run that goes on has the bits of one that was not broken off"
    assert told["dtypes"] == ["float32", "bfloat16", "float32"]
    assert told["rounded"], "weights are the master in bf16"
    assert told["exact"], "the master is what is published"
    assert told["dtype"] == "float32"
