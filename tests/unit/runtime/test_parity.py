"""A step on eight devices is the step on one: its losses, gradients, and the weights after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.distance import beyond
from tests.unit.runtime.parity import LAYOUTS
from tests.unit.runtime.scripts import answer, rows, selected

# Between them roles within a layer and a schedule with a backward pass in parts.
QUICK = ("zero 2, tensor", "one sequence a chip", "zb-v, tensor")


@pytest.fixture(scope="module")
def runs(root: Path, request: pytest.FixtureRequest) -> Any:
    return answer(root, "parity", *selected(request))


def test_one_device_learns_something(runs: Any) -> None:
    losses = runs["one"]["losses"]
    assert losses[0] > 5.0
    assert losses[0] != losses[1] != losses[2]


@pytest.mark.parametrize("name", rows(LAYOUTS, QUICK))
def test_numbers_are_those_of_one_device(runs: Any, name: str) -> None:
    assert beyond(runs[name]) == {}
