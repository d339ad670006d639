"""Plans under simulated traffic: closed forms, bursts, capacity, recordings, round trips."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.errors import BadFile, BadInput, NoStrategy
from shardwise.plan.schema.json_io import decode
from shardwise.plan.schema.json_output import encode
from shardwise.plan.serving import build
from shardwise.plan.serving.arrivals import Arrivals, prefix_hit_share, read_arrivals
from shardwise.plan.serving.rebuild import rebuild
from shardwise.plan.serving.traffic import (
    CAPACITY_STEP,
    estimate,
    largest_rate,
)
from shardwise.simulate import read_trace

LLAMA = sw.model("llama3-8b")
NODE = sw.hardware("h100:8")


def chat(**more: object) -> sw.Serve:
    asked = {"prompt": 2048, "output": 256, "rate": 20.0, "ttft_s": 0.5, "tpot_s": 0.03} | more
    return sw.Serve(**asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "rate", "disaggregate"),
    [
        # At 20/s (3 engines of up to 178 sequences) the mean is 1.3 % below the closed form.
        ("llama3-8b", 15.0, False),
        ("llama3-8b", 30.0, False),
        ("llama3-8b", 20.0, True),
        ("llama3-70b", 4.0, False),
        ("mixtral-8x7b", 10.0, True),
    ],
)
def test_constant_arrivals_agree_with_the_closed_form(
    model: str, rate: float, disaggregate: bool
) -> None:
    job = sw.Serve(prompt=2048, output=512, rate=rate)
    plan = sw.plan(sw.model(model), NODE, job, disaggregate=disaggregate)
    told = sw.simulate(plan, "constant")
    closed = told.mean_field.tpot_at_rate_s
    assert told.tpot_s.mean == pytest.approx(closed, rel=0.01)
    assert told.tpot_s.p50 == pytest.approx(closed, rel=0.01)
    assert told.tpot_s.p99 == pytest.approx(closed, rel=0.01)
    assert told.holds
    assert told.goodput == told.requests_per_s == rate


def test_bursts_need_more_chips_than_equal_distances() -> None:
    job = chat(rate=60.0)
    chips = {}
    for traffic in ("constant", "poisson", "bursty:4"):
        plan = sw.plan(LLAMA, sw.chip("h100"), job, traffic=traffic)
        told = plan.estimate.traffic
        assert told
        assert told.holds
        assert told.within >= 0.99
        chips[traffic] = plan.strategy.n_chips
    assert chips["constant"] <= chips["poisson"] <= chips["bursty:4"]
    assert chips["constant"] < chips["bursty:4"]


def test_a_stricter_percentile_needs_no_fewer_chips() -> None:
    chips = [
        sw.plan(LLAMA, sw.chip("h100"), chat(), traffic="bursty:3", at=at).strategy.n_chips
        for at in (0.5, 0.9, 0.99)
    ]
    assert chips == sorted(chips)


@pytest.mark.oracle
def test_capacity_falls_with_bursts_and_grows_with_bounds() -> None:
    short = {"output": 64}  # a simulation takes as long as its answers are
    plan = sw.plan(LLAMA, NODE, chat(**short), {"tensor": 2}, disaggregate=False)
    _, chosen = rebuild(plan)

    def most(traffic: str) -> float:
        found, told = largest_rate(chosen, read_arrivals(traffic, 0.9))
        assert told.capacity == found
        rates = [rate for rate, _ in found.tried]
        assert min(rates) <= found.rate <= max(rates)
        assert found.rate <= 1.05 * found.mean_field_rate
        return found.rate

    # Both are found to within a step.
    assert most("constant") >= (1 - CAPACITY_STEP) * most("poisson")
    assert most("poisson") > most("bursty:3")

    strict = sw.plan(LLAMA, NODE, chat(ttft_s=0.2, **short), {"tensor": 2}, disaggregate=False)
    loose = sw.plan(LLAMA, NODE, chat(ttft_s=2.0, **short), {"tensor": 2}, disaggregate=False)
    arrivals = read_arrivals("poisson", 0.9)
    few, many = (largest_rate(rebuild(p)[1], arrivals)[0].rate for p in (strict, loose))
    each = few / strict.strategy.servers.count, many / loose.strategy.servers.count
    assert each[0] < each[1]


@pytest.mark.parametrize("disaggregate", [True, False])
def test_a_plan_with_traffic_comes_back_equal(disaggregate: bool, tmp_path: Path) -> None:
    plan = sw.plan(LLAMA, NODE, chat(), disaggregate=disaggregate, traffic="poisson")
    assert plan.estimate.traffic
    path = str(tmp_path / "plan.json")
    plan.save(path)
    assert sw.load(path) == plan == decode(encode(plan))


def test_what_was_simulated_can_be_simulated_again() -> None:
    plan = sw.plan(LLAMA, NODE, chat(), traffic="poisson")
    told, again = plan.estimate.traffic, sw.simulate(decode(encode(plan)), "poisson")
    assert told
    assert again.ttft_s == told.ttft_s
    assert again.tpot_s == told.tpot_s
    assert sw.simulate(plan, "poisson", seed=1).ttft_s != told.ttft_s


def test_more_requests_wait_longer() -> None:
    plan = sw.plan(LLAMA, NODE, chat(), {"tensor": 2}, disaggregate=False)
    told = [sw.simulate(plan, "poisson", rate) for rate in (5.0, 15.0, 60.0, 200.0)]
    assert [t.ttft_s.p99 for t in told] == sorted(t.ttft_s.p99 for t in told)
    assert [t.within for t in told] == sorted((t.within for t in told), reverse=True)
    assert told[0].holds
    assert not told[-1].holds
    assert told[-1].requests_per_s < 200


def test_engine_techniques_reach_the_simulation() -> None:
    same = {"tensor": 2, "data": 2}  # as many engines, which drafts would need fewer of
    plain = sw.simulate(sw.plan(LLAMA, NODE, chat(), same, disaggregate=False))
    faster = sw.simulate(sw.plan(LLAMA, NODE, chat(drafted=3), same, disaggregate=False))
    assert faster.tokens_per_pass == pytest.approx(1 + 0.7 + 0.49 + 0.343, rel=1e-3)
    assert faster.tpot_s.mean < plain.tpot_s.mean
    known = sw.plan(LLAMA, NODE, chat(cached=0.5), {"tensor": 2}, disaggregate=False)
    reused = sw.simulate(known)
    assert reused.hit_rate == pytest.approx(0.5, abs=0.01)
    assert sw.simulate(known, prefix_cache=False).hit_rate == 0
    assert sw.simulate(known, prefix_cache=False).ttft_s.mean > reused.ttft_s.mean
    assert not sw.simulate(known, chunked=False).chunked


def test_a_recording_gives_lengths_prefixes_and_rate(tmp_path: Path) -> None:
    path = tmp_path / "day.csv"
    rows = [f"{i * 0.1:.1f},{1024 + 32 * (i % 3)},{64 + i % 5},chat,512" for i in range(200)]
    path.write_text("\n".join(["arrival,prompt,output,prefix,shared", *rows]) + "\n")
    trace = read_trace(path)
    assert prefix_hit_share(trace) == pytest.approx(512 * 199 / trace.prompt.sum())
    plan = sw.plan(LLAMA, NODE, sw.Serve(context=1, ttft_s=0.5), traffic=str(path))
    told = plan.estimate.traffic
    assert told
    assert (told.kind, told.source) == ("trace", "day.csv")
    assert told.requests >= 2000  # the recording is repeated
    assert plan.workload.prompt == round(trace.prompt.mean())
    assert plan.workload.rate == pytest.approx(trace.rate)
    assert plan.workload.cached == pytest.approx(prefix_hit_share(trace, warm=True))
    assert told.hit_rate == pytest.approx(plan.workload.cached, rel=0.01)


def test_a_recording_that_is_repeated_finds_no_text_of_its_last_copy(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    lines = []
    for i in range(100):  # each text comes twice
        ids = list(range(8 * (i // 2), 8 * (i // 2) + 8))
        row = {"timestamp": 1000 * i, "input_length": 4096, "output_length": 4, "hash_ids": ids}
        lines.append(json.dumps(row))
    path.write_text("\n".join(lines))
    job = sw.Serve(context=1, ttft_s=0.5)
    told = sw.plan(LLAMA, sw.hardware("h100:1"), job, traffic=str(path)).estimate.traffic
    assert told
    assert told.requests >= 2000
    assert told.hit_rate <= prefix_hit_share(read_trace(path)) < 0.5
    assert told.hit_rate == pytest.approx(0.5, abs=0.01)


def test_a_machine_is_used_to_its_last_engine() -> None:
    """The engines that serve the rate on any number of chips do so on a machine of as many."""
    job = sw.Serve(prompt=2048, output=512, rate=20.0, ttft_s=1.0, tpot_s=0.05)
    model = sw.model("llama3-70b")
    anywhere = sw.plan(model, sw.chip("h100"), job, disaggregate=False)
    n_chips = anywhere.strategy.n_chips
    assert n_chips > 8
    given = sw.plan(model, sw.hardware(f"h100:{n_chips}"), job, disaggregate=False)
    assert given.strategy.servers.mesh == anywhere.strategy.servers.mesh


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="unknown traffic"):
        read_arrivals("poison")
    with pytest.raises(BadInput, match="above 1"):
        read_arrivals("bursty:0.5")
    with pytest.raises(BadFile, match="cannot read"):
        read_arrivals(str(tmp_path / "none.csv"))
    with pytest.raises(BadInput, match="share"):
        Arrivals(at=1.0)
    plan = sw.plan(LLAMA, NODE, sw.Serve(prompt=512, output=64))
    with pytest.raises(BadInput, match="traffic needs a rate"):
        sw.simulate(plan)
    with pytest.raises(BadInput, match="needs a rate"):
        sw.plan(LLAMA, NODE, sw.Serve(prompt=512, output=64), traffic="poisson")
    with pytest.raises(BadInput, match=r"pass an sw\.Serve"):
        sw.plan(LLAMA, NODE, sw.Train(batch=8, seq=64), traffic="poisson")  # type: ignore[call-overload]
    with pytest.raises(NoStrategy, match=r"comes nearest with \d"):
        sw.plan(LLAMA, sw.hardware("h100:2"), chat(rate=15.0), traffic="bursty:20")


def test_the_highest_rate_is_that_of_the_whole_machine() -> None:
    # The best deployment by means serves 84 requests/s; others of the machine serve more.
    model = sw.model("mixtral-8x7b")
    job = chat(prompt=512, output=64, rate=None)
    told = build.plan(model, NODE, job, arrivals=Arrivals(), largest=True).estimate.traffic
    assert told
    assert told.capacity
    assert told.holds
    assert told.rate == told.capacity.rate
    stated = replace(job, rate=1.2 * 84)
    assert build.plan(model, NODE, stated, arrivals=Arrivals()).estimate.traffic.holds
    assert told.rate > stated.rate
    with pytest.raises(NoStrategy):
        build.plan(model, NODE, replace(job, rate=1.05 * told.rate), arrivals=Arrivals())


def test_engines_that_still_fill_do_not_pass_for_engines_that_keep_up() -> None:
    # Runs whose start lasts as long as a request of the closed form find every bound kept at 35/s,
    # while the number of sequences, and with it the TPOT, still grows.
    job = chat(prompt=1024, output=1024, ttft_s=1.0, tpot_s=0.06, rate=30.0)
    job = replace(job, engine="sglang", weights="mxfp4")
    plan = sw.plan(sw.model("gpt-oss-120b"), sw.hardware("h200:8"), job, {"expert": 2})
    chosen = replace(rebuild(plan)[1], batch=192)
    assert estimate(chosen, Arrivals(), 32.0).holds
    assert not estimate(chosen, Arrivals(), 35.0).holds
    assert not estimate(chosen, Arrivals(), 35.0, n=6000).holds


@pytest.mark.parametrize("disaggregate", [True, False])
def test_averages_of_the_load_are_of_the_time_in_which_requests_arrive(disaggregate: bool) -> None:
    job = chat(rate=10.0, output=1024)  # an answer takes as long as hundreds of requests arrive
    chosen = rebuild(sw.plan(LLAMA, NODE, job, disaggregate=disaggregate))[1]
    told = estimate(chosen, Arrivals(seed=1), 10.0)
    assert told.holds
    assert told.in_system == pytest.approx(10.0 * told.latency_s.mean, rel=0.02)
    longer = estimate(chosen, Arrivals(seed=1), 10.0, n=20_000)  # whose start and end are short
    assert told.kv_use == pytest.approx(longer.kv_use, rel=0.05)
    assert told.running == pytest.approx(longer.running, rel=0.05)
    if not disaggregate:
        assert told.prefill_utilisation is None
        return
    assert told.prefill_utilisation is not None
    assert told.prefill_kv_use is not None
    assert 0 < told.prefill_utilisation < told.utilisation
    assert told.prefill_kv_use < told.kv_use


def test_rates_below_the_highest_of_a_machine_are_served() -> None:
    # Means refuse these rates, and the search by them starts from other deployments.
    job = chat(prompt=4000, output=1000, ttft_s=2.0, tpot_s=0.05, rate=None)
    job = replace(job, engine="vllm", weights="mxfp4", kv="bf16", compute="fp8")
    model, machine = sw.model("gpt-oss-120b"), sw.hardware("b200:8")
    highest = build.plan(model, machine, job, arrivals=Arrivals(), largest=True).estimate.traffic
    assert highest
    stated = replace(job, rate=0.97 * highest.rate)
    assert build.plan(model, machine, stated, arrivals=Arrivals()).estimate.traffic.holds
    with pytest.raises(NoStrategy):
        build.plan(model, machine, replace(job, rate=1.1 * highest.rate), arrivals=Arrivals())


def test_fewer_chips_whose_means_miss_the_bounds_are_simulated() -> None:
    job = sw.Serve(prompt=2000, output=500, rate=5.1)
    free = build.plan(sw.model("llama3-70b"), sw.chip("gb200"), job, arrivals=Arrivals())
    given = build.plan(sw.model("llama3-70b"), sw.hardware("gb200:2"), job, arrivals=Arrivals())
    assert free.strategy.n_chips == given.strategy.n_chips == 2
    assert free.estimate.traffic.holds
