"""The deployment that is chosen where a job has no bound and no rate."""

from __future__ import annotations

import pytest

import shardwise as sw
from shardwise.search.serving.rule import USUAL_TPOT_S


@pytest.mark.parametrize(
    ("name", "machine"), [("llama3-8b", "h100:8"), ("llama3-70b", "v5e:4x4"), ("llama3-8b", "h100")]
)
def test_the_front_does_not_dominate_the_choice(name: str, machine: str) -> None:
    where = sw.hardware(machine) if ":" in machine else sw.chip(machine)
    plan = sw.plan(sw.model(name), where, sw.Serve(prompt=1024, output=256))
    assert plan.strategy.rule.aim == "cheapest"
    assert plan.estimate.tpot_s <= USUAL_TPOT_S
    for point in plan.pareto:
        if point.tpot_s <= USUAL_TPOT_S:
            assert point.tokens_per_s_per_chip <= plan.estimate.tokens_per_s_per_chip * (1 + 1e-9)


def test_small_engines_are_the_cheapest_for_a_small_model() -> None:
    plan = sw.plan(sw.model("llama3-8b"), sw.hardware("h100:8"), sw.Serve(prompt=1024, output=256))
    assert (plan.strategy.mesh["tensor"], plan.strategy.servers.count) == (1, 8)


def test_the_knee_where_no_engine_keeps_the_usual_time() -> None:
    system = sw.hardware("v5e:2x4,hbm_bandwidth=10GB/s")
    plan = sw.plan(sw.model("llama3-8b"), system, sw.Serve(context=8192))
    assert plan.strategy.rule.aim == "knee"
    estimate = plan.estimate
    for point in plan.pareto:
        value = point.tokens_per_s_per_chip / point.tpot_s
        assert value <= estimate.tokens_per_s_per_chip / estimate.tpot_s * (1 + 1e-9)
