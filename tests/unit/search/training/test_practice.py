"""Layouts that published runs use: which they are, and when one is taken over a faster one."""

from __future__ import annotations

from dataclasses import replace

import pytest

import shardwise as sw
from shardwise.estimate.calibration import PEAK, calibration
from shardwise.search.given import NOTHING_FIXED
from shardwise.search.training import practice
from shardwise.search.training.rank import Ranking, rank
from shardwise.strategy.mesh import Mesh
from shardwise.validate import Run, load

LLAMA = sw.model("llama3-70b")
SHORT = sw.Train(batch=1024, seq=8192)
CASES = [("llama3-70b", "h100:256", SHORT), ("gpt3-175b", "a100:1024", SHORT)]


def within(machine: str, job: sw.Train = SHORT, model: str = "llama3-70b", **sizes: int) -> bool:
    return bool(
        practice.is_in_practice(sw.model(model), sw.hardware(machine), job, Mesh(**sizes).sizes)
    )


def search(model: str, machine: str, job: sw.Train) -> Ranking:
    system = sw.hardware(machine)
    return rank(sw.model(model), system, job, calibration(system.chip))


def test_every_published_layout_is_in_the_file() -> None:
    """Each run of the core is within practice on its own machine."""
    runs = [run for run in load() if isinstance(run, Run) and run.tier == "core"]
    assert len(runs) > 700
    for run in runs:
        assert practice.layout_in_practice(run.config, run.system, run.job, run.layout), run.id


def test_what_no_run_combines_is_outside() -> None:
    assert within("h100:256", tensor=8, pipe=4, data=8)
    assert not within("h100:256", context=2, fsdp=64, pipe=2)  # nobody shards these three alone
    assert not within("h100:256", tensor=8, pipe=7, data=4)  # nor has anybody seven stages
    assert not within("h100:256", tensor=8, expert=4, data=8)  # nor experts of a dense model


def test_scale_and_length_count() -> None:
    assert within("h100:2048", fsdp=2048)
    assert not within("h100:16384", fsdp=16384)  # four times as many chips as any run, and more
    assert within("h100:256", tensor=8, context=2, pipe=4, data=4)
    short = sw.Train(batch=1024, seq=2048)
    assert not within("h100:256", short, tensor=8, context=2, pipe=4, data=4)


@pytest.mark.parametrize(("model", "machine", "job"), CASES)
def test_the_chosen_is_within_practice_or_clearly_faster(
    model: str, machine: str, job: sw.Train
) -> None:
    ranking = search(model, machine, job)
    chosen = ranking.candidates[0]
    problem = (sw.model(model), sw.hardware(machine), job)
    rival = ranking.rival
    if practice.layout_in_practice(*problem, chosen.layout):
        limit = float(chosen.time.step_s)
        assert rival is None or limit / 1.02 <= float(rival.time.step_s) < limit
    else:
        assert rival
        assert practice.layout_in_practice(*problem, rival.layout)
        assert float(rival.time.step_s) > 1.02 * float(chosen.time.step_s)
    assert all(c.rank >= chosen.rank for c in ranking.candidates)


def test_a_layout_within_practice_is_taken_over_one_hardly_faster() -> None:
    ranking = search("llama3-70b", "h100:256", SHORT)
    assert ranking.rival
    assert float(ranking.rival.time.step_s) < float(ranking.candidates[0].time.step_s)
    plan = sw.plan(LLAMA, sw.hardware("h100:256"), SHORT)
    assert plan.practice
    assert plan.practice.within
    assert plan.practice.rival
    assert plan.practice.rival.mesh == ranking.rival.mesh.sizes
    assert plan.step.expected > plan.practice.rival.step_s


def test_outside_practice_the_spread_is_wider_and_the_usual_layout_is_named() -> None:
    machine, job = sw.hardware("h100:16384"), sw.Train(batch=2048, seq=8192)
    plan = sw.plan(sw.model("llama3-405b"), machine, job)
    assert plan.practice
    assert not plan.practice.within
    assert plan.practice.rival
    assert plan.estimate.rates.spread > calibration(machine.chip).spread
    assert plan.practice.rival.mesh["tensor"] == 8  # that of the published run


def test_at_peak_rates_the_fastest_is_taken() -> None:
    system = sw.hardware("h100:256")
    free = rank(LLAMA, system, SHORT, PEAK)
    assert free.rival is None
    limited = replace(NOTHING_FIXED, in_practice=practice.schedules_in_practice(LLAMA, system))
    usual = rank(LLAMA, system, SHORT, PEAK, limited)
    assert float(usual.candidates[0].time.step_s) > float(free.candidates[0].time.step_s)
