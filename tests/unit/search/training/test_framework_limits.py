"""A named framework is planned with what it runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

import shardwise
from shardwise.errors import BadInput
from shardwise.estimate.calibration import calibration
from shardwise.estimate.training.framework_profiles import framework_of
from shardwise.formulas.experts import places_hit
from shardwise.hardware import catalog_chip, parse_system
from shardwise.models import ModelConfig, Moe, load
from shardwise.search.given import Fixed, fixed_of
from shardwise.search.training import rank
from shardwise.search.training.framework_limits import (
    CONTEXT,
    SCHEDULES,
    limit_of,
    remat_policies,
)
from shardwise.search.training.runtime_limits import limits
from shardwise.strategy import schedules
from shardwise.vocabulary import CONTEXT_KINDS, FRAMEWORKS, UNKNOWN_FRAMEWORK
from shardwise.workload import Train

MODEL, SYSTEM = load("llama3-8b,n_layers=8"), parse_system("h100:16,hbm=24GB")


def candidates(framework: str, fixed: dict[str, str | int] | None = None) -> list[rank.Candidate]:
    job = Train(batch=64, seq=4096, framework=framework)
    cal = calibration(SYSTEM.chip, framework or UNKNOWN_FRAMEWORK)
    found = rank.rank(MODEL, SYSTEM, job, cal, fixed_of(fixed or {}))
    return list(found.candidates)


def with_open_routing(model: ModelConfig) -> ModelConfig:
    """The model with a router that chooses among all experts."""
    groups = []
    for group in model.groups:
        ffn = group.layer.ffn
        if isinstance(ffn, Moe):
            routing = replace(ffn.routing, n_groups=1, top_groups=1)
            layer = replace(group.layer, ffn=replace(ffn, routing=routing))
            group = replace(group, layer=layer)
        groups.append(group)
    return replace(model, groups=tuple(groups))


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
        assert limit_of(framework, MODEL, SYSTEM.chip, layout) is None
        assert layout.policy in remat_policies(framework, MODEL)
        if layout.is_pipelined and framework:
            assert layout.schedule in SCHEDULES[framework]
        if layout.sizes["context"] > 1 and framework:
            assert layout.context_kind in CONTEXT[framework]


def test_what_the_user_fixes_is_kept() -> None:
    best = candidates("llm-foundry", {"pipe": 2, "schedule": "1f1b"})[0]
    assert (best.layout.sizes["pipe"], best.layout.schedule) == (2, "1f1b")


def test_a_framework_of_gpus_is_refused_on_a_tpu() -> None:
    job = Train(batch=8, seq=128, framework="megatron")
    assert framework_of(job, catalog_chip("h100")) == "megatron"
    with pytest.raises(BadInput, match=r"megatron runs on GPUs.*maxtext"):
        framework_of(job, catalog_chip("v5p"))
    assert framework_of(Train(batch=8, seq=128), catalog_chip("v5p")) == "maxtext"


def test_a_named_framework_has_its_own_limits() -> None:
    """Layouts that this package's trainer does not run are planned for another framework."""
    model, system = shardwise.model("deepseek-v3"), shardwise.hardware("h800:2048")
    job = Train(batch=15360, seq=4096, compute="fp8", framework="megatron")
    pipelined = Fixed((("pipe", 8),))
    cal = calibration(system.chip, "megatron")
    best = rank.rank(model, system, job, cal, pipelined, keep=1).candidates[0]
    assert [limit.kind for limit in limits(model, job, best.layout, system.chip)] == [
        "dtype",
        "stages",
    ]


def test_experts_by_framework() -> None:
    """Node-limited routing: tokens reach fewer nodes where they are sent once to each."""
    model, system = shardwise.model("deepseek-v3"), shardwise.hardware("h800:2048")
    layout = shardwise.Mesh(pipe=16, expert=64, data=2)
    seconds = {}
    for framework in ("unknown", "megatron", "hai-llm"):
        job = Train(batch=15360, seq=4096, compute="fp8", framework=framework)
        plan = shardwise.evaluate(model, system, job, layout, {"remat": "full", "zero": 1})
        seconds[framework] = plan.estimate.comm_s["expert"]
    assert seconds["hai-llm"] < seconds["megatron"] < seconds["unknown"]
    open_routing = with_open_routing(model)
    job = Train(batch=15360, seq=4096, compute="fp8", framework="megatron")
    plan = shardwise.evaluate(open_routing, system, job, layout, {"remat": "full", "zero": 1})
    # 4 nodes of 8 instead of all: 8 experts are on 3.6 of 4 nodes, or on 5.25 of 8.
    assert plan.estimate.comm_s["expert"] / seconds["megatron"] == pytest.approx(
        places_hit(8, 8) / places_hit(4, 8), rel=0.01
    )
