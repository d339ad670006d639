"""Logits of every dense family are those of the plain forward pass in NumPy, which is itself held
against the transformers library; steps on eight devices are those on one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.model_cases import CASES, QUICK, TRAINED
from tests.unit.runtime.scripts import answer, rows, selected

LOGIT, LOSS, GRADIENT = 1e-4, 1e-5, 1e-4  # in fp32, of numbers of a few units


@pytest.fixture(scope="module")
def runs(root: Path, request: pytest.FixtureRequest) -> Any:
    return answer(root, "families", *selected(request))


@pytest.mark.parametrize("name", rows(CASES, ("llama", *QUICK)))
def test_logits_are_those_of_the_plain_forward_pass(runs: Any, name: str) -> None:
    assert runs[name]["largest"] > 1.0
    assert runs[name]["one"] < LOGIT
    assert runs[name]["eight"] < LOGIT


@pytest.mark.parametrize("name", rows(TRAINED, QUICK))
def test_a_step_on_eight_devices_is_that_on_one(runs: Any, name: str) -> None:
    assert runs[name]["losses"] < LOSS
    assert runs[name]["gradients"] < GRADIENT
