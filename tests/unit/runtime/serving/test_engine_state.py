"""What an engine answers is what a plain forward pass over the same text says, on any mesh."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.scripts import answer, rows, selected
from tests.unit.runtime.serving_cases import ENGINES, GROUPED

LOGIT = 1e-4  # in fp32; logits have a standard deviation of 1

EXACT = (
    "one",
    "tensor 2",
    "tensor 8, copied",
    "tensor 8, batch",
    "two engines, tensor 4, batch",
    "window, tensor 8, sequence",
)

# Root mean square error of a logit. The seven products of each of two layers err by themselves.
# An int8 number is off by a step / sqrt(12), a step being 1/127 of the largest of 64 or so numbers,
# at most 4 standard deviations: 0.9 %, times sqrt(14) for the weights and sqrt(28) where inputs are
# in int8 too. An fp8 number has 3 bits behind its first one: off by 2.6 %. A bf16 number has 7:
# 0.16 %, but nearly a hundred arrays are rounded on the way.
NARROW = {
    "int8 weights": 0.034,
    "int8 on eight": 0.048,
    "fp8 weights and cache": 0.026 * 28**0.5,
    "bf16": 0.0016 * 100**0.5,
}


QUICK = {
    "tensor 8, copied",
    "window, tensor 8, sequence",
    "int8 on eight",
    "int4, groups of 128 on eight",
}


@pytest.fixture(scope="module")
def runs(root: Path, request: pytest.FixtureRequest) -> Any:
    return answer(root, "serving_cases", *selected(request))


def test_every_engine_is_tested() -> None:
    assert {*ENGINES} == {*EXACT, *NARROW}


@pytest.mark.parametrize("name", rows(EXACT, QUICK & {*EXACT}))
def test_logits_are_those_of_a_plain_forward_pass(runs: Any, name: str) -> None:
    assert runs[name]["most"] < LOGIT


@pytest.mark.parametrize("name", rows(GROUPED, QUICK & {*GROUPED}))
def test_weights_in_groups_are_the_numbers_that_they_stand_for(runs: Any, name: str) -> None:
    assert runs[name]["most"] < LOGIT


@pytest.mark.parametrize("name", rows(NARROW, QUICK & {*NARROW}))
def test_narrow_numbers_err_as_much_as_their_steps_say(runs: Any, name: str) -> None:
    assert LOGIT < runs[name]["rms"] < NARROW[name]
