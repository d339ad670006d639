"""A forward pass over a paged cache has the logits of a pass over whole sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.paged_cases import (
    BY_LAYER,
    FAMILIES,
    GROUPED,
    LAYOUTS,
    NARROW,
    SHARDED,
)
from tests.unit.runtime.scripts import answer, rows, selected

LOGIT = 1e-4  # in fp32; logits have a standard deviation of about 1
# Root mean square error of a logit. The seven products of each of two layers err by themselves.
# An int8 number is off by a step / sqrt(12), a step being 1/127 of the largest of 64 or so numbers,
# at most 4 standard deviations: 0.9 %, times sqrt(14) for the weights and sqrt(28) where inputs are
# in int8 too. An fp8 number has 3 bits behind its first one: off by 2.6 %. A bf16 number has 7:
# 0.16 %, but nearly a hundred arrays are rounded on the way.
ERRORS = {
    "int8 weights": 0.034,
    "int8 cache, tensor 8, sequence": 0.034,
    "int8 on eight": 0.048,
    "int8 experts": 0.048,
    "fp8 weights and cache": 0.026 * 28**0.5,
    "bf16": 0.0016 * 100**0.5,
}
TOKENS_READ = 22 + 23 + 22

QUICK = {"deepseek", "tensor 8, sequence"}


@pytest.fixture(scope="module")
def runs(root: Path, request: pytest.FixtureRequest) -> Any:
    return answer(root, "paged_cases", *selected(request))


@pytest.mark.parametrize("name", rows([*FAMILIES, *LAYOUTS], QUICK))
def test_logits_are_those_of_a_pass_over_whole_sequences(runs: Any, name: str) -> None:
    _, mesh, _, _, *chosen = (FAMILIES | LAYOUTS)[name]
    n_pools = mesh.data * mesh.expert * (mesh.fsdp if chosen == ["gathered"] else 1)
    assert runs[name]["n"] == TOKENS_READ * n_pools
    assert runs[name]["most"] < LOGIT


@pytest.mark.parametrize("name", rows(BY_LAYER, ()))
def test_layers_with_arrays_of_their_own_on_several_gpus(runs: Any, name: str) -> None:
    assert runs[name]["most"] < LOGIT


@pytest.mark.parametrize("name", rows(SHARDED, {"tokens sharded, tensor 8, sequence"}))
def test_prompts_whose_tokens_are_sharded_over_tensor(runs: Any, name: str) -> None:
    assert runs[name]["most of last"] < LOGIT
    if name == "tokens sharded, int8":
        assert LOGIT < runs[name]["rms"] < ERRORS["int8 on eight"]
    else:
        assert runs[name]["most"] < LOGIT


@pytest.mark.parametrize("name", rows(GROUPED, ()))
def test_weights_in_groups_are_the_numbers_that_they_stand_for(runs: Any, name: str) -> None:
    assert runs[name]["most"] < LOGIT


def test_every_narrow_dtype_is_tested() -> None:
    assert {*NARROW} == {*ERRORS}


@pytest.mark.parametrize("name", rows(NARROW, {"int8 on eight"}))
def test_narrow_numbers_err_as_much_as_their_steps_say(runs: Any, name: str) -> None:
    assert LOGIT < runs[name]["rms"] < ERRORS[name]
