"""Prefill and decode on meshes of different sizes, of eight devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.scripts import answer
from tests.unit.serve.disaggregated_meshes import CASES, FIXED

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def answers(root: Path) -> Any:
    return answer(root, "tests.unit.serve.disaggregated_meshes")


@pytest.mark.parametrize("case", CASES)
def test_outputs_are_those_of_a_plain_loop(answers: Any, case: str) -> None:
    assert answers[case]["apart"] == answers["plain"]
    assert answers[case]["blocks_used"] == 0


@pytest.mark.parametrize("plan", FIXED)
def test_a_plan_is_launched(answers: Any, plan: str) -> None:
    assert answers[plan]["apart"] == answers[plan]["together"]
    assert answers[plan]["blocks_used"] == 0
    assert (
        "chips of one machine. Plan for such a machine: shardwise plan" in answers[plan]["refusal"]
    )
