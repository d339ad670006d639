"""Engines with pools generate what a plain loop does; what happens in one pool stays there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.scripts import answer, rows, selected
from tests.unit.serve.pooled_engines import BLOCK_TOKENS, CASES, NEW, PLAN, SHORT, TOKENS

QUICK = {"experts 2, tensor 2"}
SCRIPT = "tests.unit.serve.pooled_engines"


@pytest.fixture(scope="module")
def runs(root: Path, request: pytest.FixtureRequest) -> Any:
    return answer(root, SCRIPT, *selected(request))


@pytest.mark.parametrize("name", rows(CASES, QUICK))
def test_outputs_are_those_of_a_plain_loop(runs: Any, name: str) -> None:
    run = runs[name]
    mesh = CASES[name].case[1]
    n_pools = mesh.expert * mesh.fsdp
    assert run["ids"] == run["plain"]
    assert [len(ids) for ids in run["ids"]] == [NEW] * (2 * n_pools) + [4]
    assert run["preemptions"][0] > 0
    assert run["preemptions"][1:] == run["used"][1:] == [0] * (n_pools - 1)
    assert run["used"][0] == 0
    # The last token was never written.
    assert run["cached"] == (SHORT + 1 + NEW - 1) // BLOCK_TOKENS * BLOCK_TOKENS


@pytest.mark.oracle
def test_a_plan_is_served_by_its_pools(root: Path) -> None:
    run = answer(root, SCRIPT, PLAN)[PLAN]
    assert run["ids"] == run["plain"]
    assert run["limits"][:2] == [2, TOKENS]  # sequences and tokens of a pass, in each pool
    assert run["blocks"] == 4 * run["limits"][2]
