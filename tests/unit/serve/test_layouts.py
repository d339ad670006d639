"""In every layout an engine's greedy outputs are those of a plain loop on one device, however it
serves the requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.scripts import answer, rows, selected
from tests.unit.serve.layout_engines import LAYOUTS, MODES, NEW

QUICK = {"2D"}


@pytest.fixture(scope="module")
def runs(root: Path, request: pytest.FixtureRequest) -> Any:
    return answer(root, "tests.unit.serve.layout_engines", *selected(request))


@pytest.mark.parametrize("name", rows(LAYOUTS, QUICK))
def test_outputs_are_those_of_a_plain_loop(runs: Any, name: str) -> None:
    run = runs[name]
    assert {*run["outputs"]} == {*MODES}
    for mode, outputs in run["outputs"].items():
        assert outputs == run["plain"], mode
    assert all(len(output) == NEW for output in run["plain"])
    assert run["cached"] > 0
    assert run["preemptions"] > 0
