"""Plans for recordings: the busiest part of long ones, and how many simulations a search takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import shardwise as sw
from shardwise.plan.serving import arrivals as arrivals_module
from shardwise.plan.serving import build
from shardwise.plan.serving.arrivals import Arrivals
from shardwise.plan.serving.rebuild import rebuild
from shardwise.plan.serving.recording import busiest_part, part_of
from shardwise.plan.serving.trials import Trials
from shardwise.report.serving.traffic import arrivals_text
from shardwise.simulate import Traffic

LLAMA = sw.model("llama3-8b")


def recording(n: int, *, prompt: int = 512, every_s: float = 0.1, burst: int = 1) -> Traffic:
    return Traffic(
        arrival_s=np.arange(n) // burst * burst * every_s,
        prompt=np.full(n, prompt),
        output=np.full(n, 16),
    )


def test_the_busiest_part_has_the_most_tokens_per_second() -> None:
    trace = recording(100)
    trace.prompt[60:70] = 4096
    assert busiest_part(trace, 10.0, 0) == (60, 70)
    assert busiest_part(trace, 10.0, 50)[1] - busiest_part(trace, 10.0, 50)[0] == 50
    assert busiest_part(trace, 100.0, 0) == (0, 100)
    part = part_of(trace, 60, 70)
    assert part.arrival_s is not None
    assert part.arrival_s[0] == 0.0
    assert part.arrival_s[-1] == pytest.approx(0.9)


def test_shared_prefixes_are_work() -> None:
    trace = recording(100)
    shared = Traffic(
        arrival_s=trace.arrival_s,
        prompt=trace.prompt,
        output=trace.output,
        prefix=["instructions"] * 100,
        shared=np.full(100, 500),
    )
    first, end = busiest_part(shared, 30.0, 0)
    assert end - first == 20


def test_a_plan_says_which_part_of_a_long_recording_was_simulated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(arrivals_module, "MAX_TRACE_WORK", 2500.0)
    trace = recording(4000)
    trace.prompt[1000:3500] = 1024
    arrivals = Arrivals(kind="trace", trace=trace, name="day.csv")
    assert arrivals.part == (1000, 3500)
    job = sw.Serve(context=1, ttft_s=1.0, tpot_s=0.05)
    plan = build.plan(LLAMA, sw.chip("h100"), job, arrivals=arrivals)
    told = plan.estimate.traffic
    assert told
    assert (told.requests, told.part, told.recorded) == (2500, (1001, 3500), 4000)
    assert plan.workload.prompt == 1024
    assert "the busiest part (requests 1,001–3,500 of 4,000) of day.csv" in arrivals_text(told)
    path = str(tmp_path / "plan.json")
    plan.save(path)
    assert sw.load(path) == plan


def test_bursts_are_served_by_engines_enough() -> None:
    """Prompts that come at once need many engines; both kinds of them are searched so far."""
    arrivals = Arrivals(kind="trace", trace=recording(2000, prompt=2048, burst=200), name="bursts")
    job = sw.Serve(context=1, ttft_s=0.5, tpot_s=0.05)
    told = build.plan(LLAMA, sw.chip("h100"), job, arrivals=arrivals).estimate.traffic
    assert told
    assert told.holds
    assert len(told.tried) > 24


def test_engines_that_miss_the_bounds_without_a_queue_are_simulated_once() -> None:
    arrivals = Arrivals(kind="trace", trace=recording(2000, prompt=8192), name="long")
    job = sw.Serve(prompt=8192, output=16, ttft_s=0.1)
    unbounded = replace(job, ttft_s=None)
    plan = sw.plan(LLAMA, sw.hardware("h100:8"), unbounded, {"data": 8}, disaggregate=False)
    trials = Trials(arrivals, 10.0)
    chosen = rebuild(plan)[1]
    chosen = replace(chosen, server=replace(chosen.server, job=job))
    assert trials.simulate(chosen) is None
    assert trials.simulate(chosen) is None
    assert len(trials.tried) == 1
    assert trials.n_whole == 0
