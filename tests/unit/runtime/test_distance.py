"""The measure of parity passes equal runs and fails wrong ones."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.runtime.distance import BOUNDS, beyond, distance
from tests.unit.runtime.scripts import answer
from tests.unit.runtime.steps import Trained

ARRAYS = [np.full((2, 3), 1e-3), np.full(4, 10.0)]
RUN = Trained(losses=[5.0, 4.0], gradients=ARRAYS, weights=ARRAYS)


def changed(arrays: list[np.ndarray[Any, Any]], i: int, to: float) -> list[np.ndarray[Any, Any]]:
    """One entry of the i-th array is another number."""
    copies = [array.copy() for array in arrays]
    copies[i].flat[-1] = to
    return copies


def test_equal_runs_are_within_every_bound() -> None:
    assert distance(RUN, RUN) == dict.fromkeys(BOUNDS, 0.0)
    assert beyond(distance(RUN, RUN)) == {}


@pytest.mark.parametrize("number", [1e-3 * (1 + 1e-4), math.nan, math.inf])
@pytest.mark.parametrize("i", [0, 1])
def test_one_wrong_number_is_beyond_its_bound(i: int, number: float) -> None:
    wrong = changed(ARRAYS, i, number)
    for name, run in {
        "gradient": replace(RUN, gradients=wrong),
        "weight": replace(RUN, weights=wrong),
        "loss": replace(RUN, losses=[5.0, number]),
    }.items():
        assert list(beyond(distance(RUN, run))) == [name]


@pytest.fixture(scope="module")
def runs(root: Path) -> Any:
    return answer(root, "parity_broken")


@pytest.mark.oracle
def test_a_step_without_a_mistake_is_within_every_bound(runs: Any) -> None:
    assert beyond(runs["none"]) == {}


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["norms not summed", "means for sums"])
def test_a_mistake_in_a_sum_of_gradients_is_seen(runs: Any, name: str) -> None:
    assert {"gradient", "weight"} <= {*beyond(runs[name])}
