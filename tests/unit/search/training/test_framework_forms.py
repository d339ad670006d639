"""A named framework is planned with what it runs."""

from __future__ import annotations

import pytest

from shardwise.errors import BadInput
from shardwise.estimate.calibration import calibration
from shardwise.estimate.training.framework_profiles import framework_of
from shardwise.hardware import catalog_chip, parse_system
from shardwise.models import load
from shardwise.search.given import fixed_of
from shardwise.search.training import rank
from shardwise.search.training.framework_forms import CONTEXT, SCHEDULES, runs
from shardwise.strategy import schedules
from shardwise.vocabulary import CONTEXT_KINDS, FRAMEWORKS, UNKNOWN_FRAMEWORK
from shardwise.workload import Train

MODEL, SYSTEM = load("llama3-8b,n_layers=8"), parse_system("h100:16,hbm=24GB")


def candidates(framework: str, fixed: dict[str, str | int] | None = None) -> list[rank.Candidate]:
    job = Train(batch=64, seq=4096, framework=framework)
    cal = calibration(SYSTEM.chip, framework or UNKNOWN_FRAMEWORK)
    found = rank.rank(MODEL, SYSTEM, job, cal, fixed_of(fixed or {}, any_layout=True))
    return list(found.candidates)


def test_tables_name_every_framework_and_legal_words() -> None:
    assert {*SCHEDULES} == {*CONTEXT} == {*FRAMEWORKS} - {UNKNOWN_FRAMEWORK}
    assert {word for words in SCHEDULES.values() for word in words} <= {*schedules.names()}
    assert {word for words in CONTEXT.values() for word in words} <= {*CONTEXT_KINDS}


@pytest.mark.parametrize("framework", ["", "llm-foundry", "deepspeed", "megatron", "maxtext"])
def test_the_search_takes_only_what_the_framework_runs(framework: str) -> None:
    ranked = candidates(framework)
    assert ranked
    for candidate in ranked:
        layout = candidate.layout
        if layout.is_pipelined:
            assert runs(framework, "schedule", layout.schedule)
        if layout.sizes["context"] > 1:
            assert runs(framework, "context_kind", layout.context_kind)


def test_what_the_user_fixes_is_kept() -> None:
    best = candidates("llm-foundry", {"pipe": 2, "schedule": "1f1b"})[0]
    assert (best.layout.sizes["pipe"], best.layout.schedule) == (2, "1f1b")


def test_a_framework_of_gpus_is_refused_on_a_tpu() -> None:
    job = Train(batch=8, seq=128, framework="megatron")
    assert framework_of(job, catalog_chip("h100")) == "megatron"
    with pytest.raises(BadInput, match=r"megatron has no published runs on TPUs.*maxtext"):
        framework_of(job, catalog_chip("v5p"))
    assert framework_of(Train(batch=8, seq=128), catalog_chip("v5p")) == "maxtext"
