"""Bounds that a job with a rate gets, what is simulated before a refusal, and layouts proposed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import shardwise as sw
from shardwise.errors import DoesNotFit, NoPlan, TooManyChips
from shardwise.estimate.chip_memory import capacity_bytes
from shardwise.estimate.serving.memory import engine_memory
from shardwise.hardware.shape import MAX_CHIPS
from shardwise.plan.serving import trials
from shardwise.plan.serving.arrivals import Arrivals
from shardwise.plan.serving.build import plan
from shardwise.report.serving.reasons import loosened_text, rule_text
from shardwise.search.given import NOTHING_FIXED, fixed_of
from shardwise.search.serving.layouts import engine_meshes, has_only_pcie
from shardwise.search.serving.rule import USUAL_TPOT_S, USUAL_TTFT_S, Rule
from shardwise.strategy.serving_layout import ServeForm

LLAMA = sw.model("llama3-70b")
SMALL = sw.model("llama3-8b")


def job(**settings: float) -> sw.Serve:
    return sw.Serve(context=0, prompt=2048, output=512, **settings)  # type: ignore[arg-type]


def test_a_rate_without_bounds_gets_usual_ones() -> None:
    chosen = plan(LLAMA, sw.hardware("h100:8"), job(rate=5.0), arrivals=Arrivals())
    traffic = chosen.estimate.traffic
    assert traffic is not None
    assert traffic.holds
    assert traffic.ttft_s.p99 <= USUAL_TTFT_S
    assert traffic.tpot_s.p99 <= USUAL_TPOT_S
    assert chosen.strategy.rule.usual == ("ttft", "tpot")
    assert "usual bounds, as none is given" in rule_text(chosen.strategy.rule)


@pytest.mark.parametrize("arrivals", [None, Arrivals(at=0.9)])
def test_usual_bounds_plan_as_stated_ones_do(arrivals: Arrivals | None) -> None:
    """Separate prefill engines are compared in both cases: here they are chosen."""
    machine = sw.chip("h100")
    requests = sw.Serve(context=0, prompt=2048, output=256, rate=20.0)
    usual = plan(LLAMA, machine, requests, arrivals=arrivals)
    bounds = {"ttft_s": USUAL_TTFT_S, "tpot_s": USUAL_TPOT_S}
    stated = plan(LLAMA, machine, replace(requests, **bounds), arrivals=arrivals)
    assert usual.strategy.prefill is not None
    for part in ("mesh", "prefill", "n_chips", "servers"):
        assert getattr(usual.strategy, part) == getattr(stated.strategy, part)


def test_only_the_missing_bound_is_a_usual_one() -> None:
    chosen = plan(SMALL, sw.hardware("h100:2"), job(rate=2.0, tpot_s=0.02))
    assert (chosen.workload.ttft_s, chosen.workload.tpot_s) == (USUAL_TTFT_S, 0.02)
    assert chosen.strategy.rule.usual == ("ttft",)
    assert "of which the job gives no TTFT" in rule_text(chosen.strategy.rule)


def test_stated_bounds_stay_as_they_are() -> None:
    chosen = plan(SMALL, sw.hardware("h100:2"), job(rate=2.0, ttft_s=9.0, tpot_s=0.3))
    assert (chosen.workload.ttft_s, chosen.workload.tpot_s) == (9.0, 0.3)
    assert chosen.strategy.rule.usual == ()


def test_bounds_that_nothing_keeps_are_loosened() -> None:
    """A prompt of 100,000 tokens takes one chip longer than the usual bound."""
    long = sw.Serve(context=0, prompt=100_000, output=128, rate=0.01)
    chosen = plan(SMALL, sw.hardware("h100:1"), long)
    assert chosen.estimate.ttft_s > USUAL_TTFT_S
    assert (chosen.workload.ttft_s or 1e9) > USUAL_TTFT_S
    told = loosened_text(chosen.strategy.rule)
    assert "no deployment that was tried keeps the usual TTFT ≤ 2.00 s" in told
    assert "loosened to TTFT ≤ 8.00 s" in told or "planned without" in told
    assert loosened_text(plan(SMALL, sw.hardware("h100:1"), job(rate=1.0)).strategy.rule) == ""


@pytest.mark.parametrize("bounds", [{}, {"ttft_s": 1.0, "tpot_s": 0.03}])
@pytest.mark.parametrize("machine", ["h100", "h100:8"])
def test_a_rate_for_more_chips_than_machines_have_is_refused_before_simulation(
    machine: str, bounds: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "estimate", None)  # would fail if it was called
    hardware = sw.hardware(machine) if ":" in machine else sw.chip(machine)
    with pytest.raises(NoPlan, match="10,000,000") as error:
        plan(LLAMA, hardware, job(rate=1e9, **bounds), arrivals=Arrivals())
    (n_chips,) = re.findall(r"needs ([0-9,]+) chips", str(error.value))
    assert int(n_chips.replace(",", "")) > MAX_CHIPS


def test_the_rate_that_a_refusal_proposes_is_planned() -> None:
    """With hundreds of thousands of engines, of which few are simulated."""
    requests = sw.Serve(context=0, prompt=2048, output=256, rate=1e9)
    with pytest.raises(TooManyChips) as error:
        plan(LLAMA, sw.chip("h100"), requests, arrivals=Arrivals())
    (rate,) = re.findall(r"requests: --rate (.+)/s$", str(error.value))
    part = replace(requests, rate=float(rate))
    chosen = plan(LLAMA, sw.chip("h100"), part, arrivals=Arrivals())
    assert chosen.estimate.traffic is not None
    assert chosen.estimate.traffic.holds
    assert chosen.workload.ttft_s == USUAL_TTFT_S
    assert 0.3 * MAX_CHIPS < chosen.strategy.n_chips <= MAX_CHIPS


def test_means_do_not_refuse_what_the_simulation_grants() -> None:
    """The mean TPOT at a full batch misses the bound; that of simulated requests keeps it."""
    machine = sw.hardware("h100:4")
    bounded = job(rate=2.0, ttft_s=2.0, tpot_s=0.033)
    with pytest.raises(NoPlan):
        plan(LLAMA, machine, bounded, disaggregate=False)
    chosen = plan(LLAMA, machine, bounded, disaggregate=False, arrivals=Arrivals(at=0.5))
    assert chosen.estimate.traffic is not None
    assert chosen.estimate.traffic.holds


def test_a_fixed_batch_is_named_where_it_is_too_slow() -> None:
    rule = Rule(aim="knee", tpot_s=0.05, batch=512)
    assert "no engine generates a token of 512 sequences in 50.0 ms" in rule_text(rule)


def test_stages_inside_a_node_are_proposed_only_over_pcie() -> None:
    pipes = {}
    for where in ("h100:8", "l40s:8", "h100:16"):
        system = sw.hardware(where)
        meshes = engine_meshes(LLAMA, system, job(), NOTHING_FIXED, fills_machine=False)
        pipes[where] = {(mesh.pipe, mesh.n_chips // mesh.data) for mesh in meshes if mesh.pipe > 1}
    assert not pipes["h100:8"]
    assert (4, 8) in pipes["l40s:8"]
    assert pipes["h100:16"] == {(2, 16)}
    assert has_only_pcie(sw.chip("l40s"))
    assert not has_only_pcie(sw.chip("h100"))


def test_a_fixed_pipeline_is_planned_anywhere() -> None:
    fixed = fixed_of({"pipe": 4})
    meshes = engine_meshes(LLAMA, sw.hardware("h100:8"), job(), fixed, fills_machine=False)
    assert {mesh.pipe for mesh in meshes} == {4}


@pytest.mark.parametrize(("engine", "share"), [("vllm", 0.1), ("sglang", 0.12)])
def test_engines_leave_their_share_of_memory_free(engine: str, share: float) -> None:
    capacity = capacity_bytes(sw.chip("h100"))
    served = sw.Serve(context=4096, engine=engine)
    sizes = {"data": 1, "fsdp": 1, "tensor": 8, "context": 1, "expert": 1, "pipe": 1}
    memory = engine_memory(LLAMA, ServeForm(), sizes, served, 1, capacity)
    assert memory.margin == pytest.approx(share * capacity)


def test_tensorrt_llm_leaves_a_share_of_what_weights_leave() -> None:
    capacity = capacity_bytes(sw.chip("h100"))
    served = sw.Serve(context=4096, engine="trtllm")
    sizes = {"data": 1, "fsdp": 1, "tensor": 4, "context": 1, "expert": 1, "pipe": 1}
    memory = engine_memory(LLAMA, ServeForm(), sizes, served, 1, capacity)
    assert memory.margin == pytest.approx(0.1 * (capacity - memory.weights))


def test_lengths_are_drawn_between_limits() -> None:
    drawn = Arrivals(prompt=(512, 4096), output=(64, 512))
    requests = drawn.requests(job(), 4.0, 5000)
    assert (requests.prompt.min(), requests.prompt.max()) == (512, 4096)
    assert requests.prompt.mean() == pytest.approx(2304, rel=0.02)
    assert (requests.output.min(), requests.output.max()) == (64, 512)
    assert drawn.max_context(job()) == 4096 + 512
    assert Arrivals(output=(64, 1024)).max_context(job()) == 2048 + 1024
    equal = Arrivals().requests(job(), 4.0, 10)
    assert {*equal.prompt.tolist()} == {2048}
    assert Arrivals().max_context(job()) == 2048 + 512


def test_drawn_lengths_are_recorded_and_lengthen_the_tail() -> None:
    machine = sw.hardware("h100:1")
    mean = sw.Serve(context=0, prompt=2304, output=288, rate=4.0)
    equal = plan(SMALL, machine, mean, arrivals=Arrivals()).estimate.traffic
    drawn = plan(
        SMALL, machine, mean, arrivals=Arrivals(prompt=(512, 4096), output=(64, 512))
    ).estimate.traffic
    assert equal
    assert drawn
    assert (drawn.prompt, drawn.output) == ((512, 4096), (64, 512))
    assert equal.prompt is None
    assert drawn.ttft_s.p99 > 1.1 * equal.ttft_s.p99


@pytest.mark.parametrize("bounds", [{}, {"tpot_s": 0.02, "ttft_s": 1.0}])
def test_a_model_that_does_not_fit_is_refused_alike_with_a_rate(bounds: dict[str, float]) -> None:
    large, machine = sw.model("llama3.1-405b"), sw.hardware("h100:8")
    with pytest.raises(DoesNotFit) as alone:
        plan(large, machine, job())
    with pytest.raises(DoesNotFit) as at_rate:
        plan(large, machine, job(rate=1.0, **bounds), arrivals=Arrivals())
    assert at_rate.value.problems == alone.value.problems
    assert "94.5 GiB of weights" in alone.value.problems[0]
