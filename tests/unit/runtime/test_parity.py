"""A step on eight devices is the step on one: its losses, and the weights after it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.scripts import answer

LOSS, WEIGHT = 1e-5, 1e-4  # in fp32

SETS = {
    "dense": (
        "zero 1",
        "zero 2, tensor",
        "tensor, sequence",
        "data, fsdp, tensor",
        "one sequence a chip",
        "fsdp, tensor, accumulated, full remat, chunks of the loss",
        "fsdp, tensor, norms again",
        "fsdp, tensor passes on, norms again",
    ),
    "pipeline": (
        "interleaved, fsdp",
        "zb-v, tensor",
        "1f1b, fsdp, tensor, chunks of the loss",
        "zb-h1, zero 2, tensor",
    ),
}


@pytest.fixture(scope="module")
def runs(root: Path) -> Callable[[str], Any]:
    return functools.cache(lambda name: answer(root, "parity", name))


@pytest.mark.parametrize("name", SETS)
def test_every_layout_ran(runs: Callable[[str], Any], name: str) -> None:
    assert set(runs(name)) == {"one", *SETS[name]}


def test_one_device_learns_something(runs: Callable[[str], Any]) -> None:
    losses = runs("dense")["one"]["losses"]
    assert losses[0] > 5.0
    assert losses[0] != losses[1] != losses[2]


@pytest.mark.parametrize(("of", "name"), [(s, name) for s, names in SETS.items() for name in names])
def test_losses_and_weights_are_those_of_one_device(
    runs: Callable[[str], Any], of: str, name: str
) -> None:
    found = runs(of)
    assert found[name]["losses"] == pytest.approx(found["one"]["losses"], abs=LOSS)
    assert found[name]["apart"] < WEIGHT
