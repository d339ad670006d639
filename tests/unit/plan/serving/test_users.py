"""Plans for users in a closed loop: idle engines, Little's law, fixed points, round trips."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.errors import BadInput, NoStrategy, TooManyChips
from shardwise.plan.schema.traffic import TrafficEstimate
from shardwise.plan.serving import build
from shardwise.plan.serving.arrivals import CLOSED_LOOP
from shardwise.plan.serving.choice import choose
from shardwise.plan.serving.rebuild import rebuild
from shardwise.plan.serving.resize import resized
from shardwise.plan.serving.traffic import estimate
from shardwise.search.serving.candidate import Candidate
from shardwise.serve.load.prediction import Predictor
from shardwise.serve.load.reply import Reply
from shardwise.simulate import Slo
from shardwise.validate import load_serving
from shardwise.validate.serving.predict import MIN_LENGTH_RATIO, job_of, predict
from shardwise.validate.serving.runs import MEAN_LENGTH_RATIO, ServeRun

LLAMA = sw.model("llama3-8b")
NODE = sw.hardware("h100:8")
CHIP = sw.hardware("h100:1")


def chat(users: int | None = 64, **more: object) -> sw.Serve:
    asked = {"prompt": 2048, "output": 256, "users": users, "ttft_s": 0.5, "tpot_s": 0.03} | more
    return sw.Serve(**asked)  # type: ignore[arg-type]


def planned(
    job: sw.Serve, machine: sw.System = NODE, *, disaggregate: bool = False
) -> tuple[Candidate, TrafficEstimate]:
    plan = sw.plan(LLAMA, machine, job, disaggregate=disaggregate, traffic="closed")
    assert plan.estimate.traffic
    return rebuild(plan)[1], plan.estimate.traffic


def with_users(chosen: Candidate, users: int) -> Candidate:
    job = replace(chosen.job, users=users)
    server = replace(chosen.server, job=job)
    return replace(chosen, server=server, simulated_rate=None)


def test_one_user_has_an_idle_engine() -> None:
    plan = sw.plan(LLAMA, CHIP, chat(1), traffic="closed")
    told = plan.estimate.traffic
    assert told
    prefill_s = plan.estimate.prefill.step_s.expected
    server_s = rebuild(plan)[1].first_token_delay_s
    assert told.ttft_s.mean == pytest.approx(prefill_s + server_s, rel=1e-3)
    assert told.ttft_s.p99 == pytest.approx(told.ttft_s.p50, rel=1e-6)
    assert told.tpot_s.mean == pytest.approx(plan.estimate.decode.step_s.expected, rel=1e-3)
    assert told.queue_s.p99 == pytest.approx(0.0, abs=1e-9)
    # Answers are of 230 to 282 tokens, 256 on average.
    latency_s = told.ttft_s.mean + 255 * told.tpot_s.mean
    assert told.rate == pytest.approx(1 / latency_s, rel=5e-3)


def test_more_users_make_more_requests_until_the_bounds_are_missed() -> None:
    chosen, _ = planned(chat(), CHIP)
    rows = [estimate(with_users(chosen, n), CLOSED_LOOP, 0.0) for n in (1, 4, 16, 64, 96, 128, 256)]
    n_good = sum(row.holds for row in rows)
    assert 4 <= n_good < len(rows)
    assert [row.holds for row in rows] == [True] * n_good + [False] * (len(rows) - n_good)
    rates = [row.rate for row in rows[:n_good]]
    assert rates == sorted(rates)
    times = [row.tpot_s.mean for row in rows[:n_good]]
    assert times == sorted(times)
    # A fourth of the users that an engine has room for does not make a fourth of the requests.
    assert rows[2].rate > 16 / 64 * rows[3].rate


@pytest.mark.parametrize("disaggregate", [True, False])
@pytest.mark.parametrize("users", [5, 64, 500])
def test_littles_law(users: int, disaggregate: bool) -> None:
    """The rate is that of finished requests, the latency that of judged ones: not one number."""
    _, told = planned(chat(users), disaggregate=disaggregate)
    assert told.users == users
    assert told.rate == told.requests_per_s
    assert told.rate * told.latency_s.mean == pytest.approx(users, rel=0.02)


def test_means_are_a_fixed_point() -> None:
    plan = sw.plan(LLAMA, sw.chip("h100"), chat(300))
    _, chosen = rebuild(plan)
    rate = 300 / (chosen.ttft_s + 255 * chosen.tpot_s)
    assert plan.estimate.requests_per_s == pytest.approx(rate)
    assert plan.estimate.tokens_per_s == pytest.approx(256 * rate)

    def decoding(batch: int) -> float:
        other = replace(chosen, batch=batch, simulated_rate=None)
        return other.requests_per_s * 256 * other.tpot_s / chosen.server.count

    assert decoding(chosen.batch) <= chosen.batch
    assert decoding(chosen.batch - 1) > chosen.batch - 1


def test_no_engine_is_superfluous() -> None:
    chosen, told = planned(chat(400))
    n_engines = chosen.server.count
    assert told.holds
    assert n_engines > 1
    fewer = resized(chosen, n_engines - 1, 0, 0.0, NODE)
    assert not estimate(fewer, CLOSED_LOOP, 0.0).holds


@pytest.mark.parametrize(("n_engines", "users"), [(2, 40), (75, 7)])
def test_users_are_spread_evenly(n_engines: int, users: int) -> None:
    """Twice the engines with twice the users make twice the requests, at the same latencies."""
    chosen, _ = planned(chat(users), CHIP)
    one = estimate(chosen, CLOSED_LOOP, 0.0)
    more = resized(with_users(chosen, n_engines * users), n_engines, 0, 0.0, None)
    all_engines = estimate(more, CLOSED_LOOP, 0.0)
    assert all_engines.rate == pytest.approx(n_engines * one.rate)
    assert all_engines.tpot_s == one.tpot_s


@pytest.mark.parametrize("disaggregate", [True, False])
def test_a_plan_comes_back_equal_and_runs_the_same_loop(disaggregate: bool, tmp_path: Path) -> None:
    plan = sw.plan(LLAMA, NODE, chat(), disaggregate=disaggregate, traffic="closed")
    path = str(tmp_path / "plan.json")
    plan.save(path)
    loaded = sw.load(path)
    assert loaded == plan
    assert isinstance(loaded, sw.ServingPlan)
    told = plan.estimate.traffic
    again = sw.simulate(loaded)
    assert told
    assert (again.kind, again.users) == ("closed", 64)
    assert again.ttft_s == told.ttft_s
    assert again.rate == told.rate == plan.estimate.requests_per_s
    assert rebuild(loaded)[1].tokens_per_s == plan.estimate.tokens_per_s
    at_rate = sw.simulate(loaded, rate=2.0)
    assert (at_rate.kind, at_rate.rate, at_rate.users) == ("poisson", 2.0, 0)


def test_lengths_that_were_drawn_are_drawn_again() -> None:
    drawn = replace(CLOSED_LOOP, prompt=(1024, 3072), output=(128, 384))
    plan = build.plan(LLAMA, NODE, chat(), arrivals=drawn)
    assert plan.estimate.traffic
    assert sw.simulate(plan).ttft_s == plan.estimate.traffic.ttft_s


def test_bench_predicts_by_such_a_plan() -> None:
    plan = sw.plan(LLAMA, NODE, chat(), traffic="closed")
    reply = Reply(send_s=0.0, end_s=1.0, prompt_tokens=2048, output_tokens=64, expected_tokens=64)
    prediction = Predictor(plan, Slo()).predict((reply,) * 40, users=2)
    assert prediction
    assert prediction.simulated.requests == 40


def test_the_cheapest_chip_for_users() -> None:
    chips = [sw.chip("h100"), sw.chip("mi300x")]
    choice = choose(LLAMA, chips, lambda chip: [chat()], arrivals=CLOSED_LOOP)
    assert choice.users == 64
    assert [row.cost for row in choice.machines] == [row.usd_per_hour for row in choice.machines]
    assert all(row.simulated for row in choice.machines)


# InferenceX rows of different engines, and one of NVIDIA NIM.
ROWS = {
    "aic-minimax-m2.5-h100-vllm-fp8-i1024o8192-tp4dp1ep4-c16": 0.01,
    "aic-glm-5-b200-sglang-fp8-i1024o1024-tp8dp1ep1-c16": 0.01,
    "aic-gpt-oss-120b-h200-vllm-mxfp4-i1024o8192-tp8dp1ep1-c16": 0.01,
    "nim-llama3.3-70b-h100x2-i5000o500-c25": 0.05,
}


@pytest.mark.parametrize(("name", "tolerance"), ROWS.items())
def test_published_closed_loops_are_priced_as_validate_predicts_them(
    name: str, tolerance: float
) -> None:
    """Of TTFT, `validate` also counts the queue of a benchmark that starts all users at once."""
    (run,) = (run for run in load_serving() if run.id == name)
    assert isinstance(run, ServeRun)
    job = replace(job_of(run), users=run.concurrency, ttft_s=60.0, tpot_s=1.0)
    arrivals = CLOSED_LOOP
    if "lengths" in run.assumed:
        ratios = (MIN_LENGTH_RATIO / MEAN_LENGTH_RATIO, 1 / MEAN_LENGTH_RATIO)
        prompt, output = (
            (round(ratios[0] * mean), round(ratios[1] * mean))
            for mean in (run.prompt_tokens, run.output_tokens)
        )
        arrivals = replace(arrivals, prompt=prompt, output=output)
    fixed: dict[str, int | str] = {"weights": "stationary", "kv": "copied"}
    fixed |= {role: run.mesh.sizes[role] for role in ("tensor", "expert", "pipe", "fsdp")}
    plan = build.plan(run.config, run.system, job, fixed, arrivals=arrivals, disaggregate=False)
    told = plan.estimate.traffic
    assert told
    predicted = predict(run)
    assert told.tpot_s.mean == pytest.approx(predicted["tpot_s"].expected, rel=tolerance)
    assert told.ttft_s.mean < 1.05 * predicted["ttft_s"].expected
    if "tokens_per_s" in predicted:
        rate = predicted["tokens_per_s"].expected
        assert told.output_tokens_per_s == pytest.approx(rate, rel=0.02)


def test_refusals() -> None:
    for users, problem in (
        (0, "between 1 and"),
        (-1, "between 1 and"),
        (1.5, "whole number"),
        (10**9, "between 1 and 100,000,000"),
    ):
        with pytest.raises(BadInput, match=f"users .*{problem}"):
            sw.Serve(prompt=8, output=8, users=users)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="give one"):
        chat(64, rate=2.0)
    with pytest.raises(BadInput, match="users need the lengths"):
        sw.plan(LLAMA, NODE, sw.Serve(context=1024, users=4))
    with pytest.raises(BadInput, match="needs users"):
        sw.plan(LLAMA, NODE, chat(None, rate=2.0), traffic="closed")
    with pytest.raises(BadInput, match='traffic="closed"'):
        sw.plan(LLAMA, NODE, chat(), traffic="poisson")
    with pytest.raises(TooManyChips, match=r"Plan a part of the users: --users \d"):
        sw.plan(sw.model("llama3-405b"), sw.chip("h100"), chat(10**8, tpot_s=0.05))


def refused(job: sw.Serve, **more: object) -> tuple[str, ...]:
    with pytest.raises(NoStrategy) as refusal:
        sw.plan(LLAMA, CHIP, job, **more)  # type: ignore[call-overload]
    return refusal.value.problems


@pytest.mark.parametrize("traffic", ["closed", "off"])
def test_too_many_users_for_a_machine(traffic: str) -> None:
    problems = refused(chat(2000), traffic=None if traffic == "off" else traffic)
    found = re.fullmatch(r"h100:1 holds about (\d+) users, not 2,000, with .*", problems[0])
    assert found
    assert ("p99" in problems[0]) == (traffic == "closed")
    held = int(found[1])
    arrivals = None if traffic == "off" else traffic
    plan = sw.plan(LLAMA, CHIP, chat(held), traffic=arrivals)
    assert plan.workload.users == held
    with pytest.raises(NoStrategy, match="holds about"):
        sw.plan(LLAMA, CHIP, chat(int(1.1 * held)), traffic=arrivals)
    assert sum("a token" in text for text in problems) == 1
    assert problems[1].startswith("What holds 2,000 users on average: ")


def test_a_bound_that_no_user_meets() -> None:
    problems = refused(chat(2000, tpot_s=0.001), traffic="closed")
    assert problems[0].startswith("no deployment meets --tpot 1.00 ms: the fastest takes")
    assert problems[0].endswith("batch 1), with one user.")
    assert sum("the fastest" in text for text in problems) == 1


def test_the_usual_bound_is_named() -> None:
    problems = refused(chat(2000, ttft_s=None), traffic="closed")
    assert "TTFT ≤ 2.00 s and TPOT ≤ 30.0 ms, of which the job gives no TTFT" in problems[0]


def test_a_bound_that_nothing_meets_is_told_once() -> None:
    with pytest.raises(NoStrategy) as refusal:
        sw.plan(LLAMA, sw.chip("h100"), chat(ttft_s=0.01), traffic="closed")
    told = [text for text in refusal.value.problems if text.startswith("no deployment meets")]
    assert len(told) == 1
