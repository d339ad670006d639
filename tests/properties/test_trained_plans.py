"""Whatever a search chooses by itself, the trainer runs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.errors import BadInput, NoPlan
from shardwise.plan.schema.training_reasons import NotTrained
from shardwise.plan.training.limit_text import limit_text
from shardwise.plan.training.rebuild import rebuild
from shardwise.runtime.training.programs import unsupported
from shardwise.train.checks import check_plan

# Of every way in which layers follow one another, attend and mix; of few layers.
MODELS = [
    "llama3.2-1b,n_layers=6",
    "gemma2-2b,n_layers=6",
    "gemma3-1b,n_layers=8",
    "gpt-oss-20b,n_layers=4",
    "gpt2,n_layers=4,n_positions=8192",
    "qwen1.5-moe-a2.7b,n_layers=4",
    "deepseek-v2-lite,n_layers=4",
    "llama4-scout,n_layers=4",
    "falcon-7b,n_layers=4",
]
MACHINES = ["v5e:4x4", "7x:2x2x4", "v3:2x2", "h100:16", "mi300x:8", "v5p:2x4x4"]
JOBS = [
    sw.Train(batch=16, seq=8192),
    sw.Train(batch=6, seq=4096, reduce="int8"),
    sw.Train(batch=32, seq=2048, optimizer="adafactor"),
    sw.Train(batch=32, seq=2048, offload=("activations",)),
]


@settings(max_examples=12)
@given(st.sampled_from(MODELS), st.sampled_from(MACHINES), st.sampled_from(JOBS))
def test_the_trainer_runs_every_plan_of_a_search(model: str, machine: str, job: sw.Train) -> None:
    try:
        plans = sw.search(sw.model(model), sw.hardware(machine), job, n=4)
    except NoPlan:
        return
    for plan in plans:
        case = rebuild(plan)
        assert unsupported(case) == []
        check_plan(case)


def not_trained(plan: sw.Plan) -> list[NotTrained]:
    return [reason for reason in plan.why if isinstance(reason, NotTrained)]


def test_a_faster_layout_that_is_not_trained_is_left_to_those_who_ask_for_it() -> None:
    work = sw.model("gemma3-27b"), sw.hardware("h100:64"), sw.Train(batch=256, seq=8192)
    chosen = sw.plan(*work)
    fastest = sw.plan(*work, any_layout=True)
    assert fastest.step.expected < chosen.step.expected
    assert not_trained(chosen) == []
    assert "ring_window" in [reason.limit.kind for reason in not_trained(fastest)]
    assert rebuild(fastest).fixed.any_layout


def test_a_job_that_is_not_trained_is_planned_and_refused() -> None:
    job = sw.Train(batch=64, seq=4096, compute="fp8")
    plan = sw.plan(sw.model("llama3-8b"), sw.hardware("h100:16"), job)
    (reason,) = not_trained(plan)
    with pytest.raises(BadInput) as refusal:
        check_plan(rebuild(plan))
    assert list(refusal.value.problems) == [limit_text(reason.limit)]
