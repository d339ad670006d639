"""A step that cuts sequences over chips, or copies KV heads, is the step on one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.scripts import answer

LOSS, WEIGHT = 1e-5, 1e-4  # in fp32

NAMES = (
    "gather, tensor, fsdp",
    "ring, tensor, fsdp, dots",
    "ulysses, tensor, fsdp, full remat",
    "ring 8, full remat",
    "ring 4, zero 2, accumulated, chunks of the loss",
    "ulysses 8, heads copied",
    "one head, tensor 4, fsdp",
    "two heads, tensor 8",
    "two heads, tensor 4, ring",
)


@pytest.fixture(scope="module")
def runs(root: Path) -> Any:
    return answer(root, "parity_context")


def test_every_layout_ran(runs: Any) -> None:
    assert set(runs) == {*NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_losses_and_weights_are_those_of_one_device(runs: Any, name: str) -> None:
    run = runs[name]
    assert run["one"][0] != run["one"][1]
    assert run["losses"] == pytest.approx(run["one"], abs=LOSS)
    assert run["apart"] < WEIGHT
