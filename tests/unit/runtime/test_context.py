"""A step that cuts sequences over chips, or copies KV heads, is the step on one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.distance import beyond
from tests.unit.runtime.parity_context import CASES
from tests.unit.runtime.scripts import answer, rows, selected

QUICK = ("two heads, tensor 4, ring",)


@pytest.fixture(scope="module")
def runs(root: Path, request: pytest.FixtureRequest) -> Any:
    return answer(root, "parity_context", *selected(request))


@pytest.mark.parametrize("name", rows(CASES, QUICK))
def test_numbers_are_those_of_one_device(runs: Any, name: str) -> None:
    run = runs[name]
    assert run["one"][0] != run["one"][1]
    assert beyond(run) == {}
