"""A forward pass over a paged cache has the logits of a pass over whole sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.paged_cases import FAMILIES, LAYOUTS, NARROW
from tests.unit.runtime.scripts import answer, rows, selected

LOGIT = 1e-4  # in fp32; logits have a standard deviation of about 1
INT8 = 0.034  # root mean square; see test_engine_state
TOKENS_READ = 22 + 23 + 22

QUICK = {"gemma3", "odd", "falcon, ALiBi", "deepseek", "tensor 8, sequence"}


@pytest.fixture(scope="module")
def runs(root: Path, request: pytest.FixtureRequest) -> Any:
    return answer(root, "paged_cases", *selected(request))


@pytest.mark.parametrize("name", rows([*FAMILIES, *LAYOUTS], QUICK))
def test_logits_are_those_of_a_pass_over_whole_sequences(runs: Any, name: str) -> None:
    assert runs[name]["n"] == TOKENS_READ
    assert runs[name]["most"] < LOGIT


@pytest.mark.parametrize("name", rows(NARROW, {"int8 cache, tensor 8, sequence"}))
def test_int8_errs_as_much_as_its_steps_say(runs: Any, name: str) -> None:
    assert LOGIT < runs[name]["rms"] < INT8
