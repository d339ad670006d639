"""A plan beside a recorded trace and run: both sides sum to their steps, and the first line."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.compare.inputs import RunLog, read_input
from shardwise.compare.planned import planned_step
from shardwise.compare.result import StepComparison
from shardwise.errors import BadFile, BadInput
from shardwise.profile.result import MemoryPeak
from shardwise.report.compare import pair_headline, step_blocks, step_headline
from shardwise.serve.load.measurement import Measurement, measure
from shardwise.serve.load.prediction import Predictor
from shardwise.serve.load.reply import Reply
from shardwise.serve.load.schedule import Replies
from shardwise.simulate import Slo
from tests.golden.terminal import run
from tests.unit.compare.recorded_runs import FOLDER, JOB, MODEL, plan, profile
from tests.unit.serve.load.test_measurement import FAILED, reply


@pytest.fixture(scope="module")
def comparison() -> StepComparison:
    return sw.compare(plan(fsdp=2), profile(), str(FOLDER / "fsdp.jsonl"))


def test_groups_sum_to_both_steps(comparison: StepComparison) -> None:
    *groups, step = comparison.rows
    assert step.planned_s == plan(fsdp=2).step.expected
    assert step.measured_s == profile().step_s
    assert math.fsum(row.planned_s or 0 for row in groups) == pytest.approx(step.planned_s)
    assert math.fsum(row.measured_s or 0 for row in groups) == pytest.approx(step.measured_s, 1e-3)
    gaps = [(row.measured_s or 0) - (row.planned_s or 0) for row in groups]
    assert gaps == sorted(gaps, reverse=True)


@pytest.mark.parametrize("mesh", [{"tensor": 2}, {"data": 2}, {"pipe": 2}])
def test_planned_groups_sum_to_the_step(mesh: dict[str, int]) -> None:
    planned = planned_step(plan(**mesh))
    assert sum(planned.seconds.values()) == pytest.approx(planned.step_s)


def test_planned_groups_of_serving_sum_to_a_pass() -> None:
    served = sw.plan(sw.model("llama3-8b"), sw.hardware("v5e:2x4"), sw.Serve(context=2048))
    planned = planned_step(served)
    assert sum(planned.seconds.values()) == pytest.approx(planned.step_s)


def test_noise_is_no_gap(comparison: StepComparison) -> None:
    """Attention took 11 ms longer, less than steps varied by."""
    (attention,) = [row for row in comparison.rows if row.group == "attention"]
    assert comparison.run is not None
    assert comparison.run.noise == pytest.approx(0.25, abs=0.01)
    assert attention.cause is None
    alone = sw.compare(plan(fsdp=2), profile())
    (attention,) = [row for row in alone.rows if row.group == "attention"]
    assert attention.cause is not None
    assert attention.cause.kind == "slower"


@pytest.fixture
def files(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    plan(fsdp=2).save(f"{tmp_path}/plan.json")
    monkeypatch.chdir(str(tmp_path))
    return ["plan.json", str(FOLDER / "fsdp.profile.json"), str(FOLDER / "fsdp.jsonl")]


def test_the_screen(files: list[str]) -> None:
    said = run("compare", *files)
    assert said.code == 0, said.err
    assert " ".join(said.out.split("\nplan ")[0].split()) == (
        "step 413 ms measured, 476 ms planned (115 % of the planned speed). Biggest win: fsdp "
        "communication: collectives take 51.3 ms with the hidden ones, planned 9.71 ms; "
        "most at embed (37.2 ms)."
    )
    assert max(map(len, said.out.splitlines())) <= 80
    assert "  MLP matmuls              290 ms    166 ms  175 %" in said.out
    assert "  step                     476 ms    413 ms  115 %" in said.out
    document = json.loads(run("compare", *files, "--json").out)
    assert set(document["rows"][0]) == {
        "group", "planned_s", "compiled_s", "measured_s", "ratio", "cause"
    }  # fmt: skip
    assert document["step_s"] == profile().step_s
    assert document["accounted_fraction"] == profile().operations_share


@pytest.mark.parametrize(
    ("bounds", "code", "line"),
    [
        ("step=500ms", 0, ""),
        ("step=400ms", 4, "Exceeded: step 413 ms, --max step=400 ms."),
        ("step=1s,loss=3", 4, "Exceeded: loss 3.274, --max loss=3."),
    ],
)
def test_the_gate(files: list[str], bounds: str, code: int, line: str) -> None:
    said = run("compare", *files, "--max", bounds)
    assert said.code == code
    assert line in said.out


@pytest.mark.parametrize(
    ("bounds", "problem"),
    [
        ("ttft=1s", "the inputs do not have it. They have step, loss."),
        ("step", "is not NAME=VALUE"),
        ("steps=1s", 'Close: "step"'),
        ("step=5", "no unit"),
    ],
)
def test_a_gate_without_its_quantity_is_refused(
    files: list[str], bounds: str, problem: str
) -> None:
    said = run("compare", *files, "--max", bounds)
    assert said.code == 2
    assert problem in " ".join(said.err.split())


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(BadInput, match="a plan of training cannot be compared"):
        sw.compare(plan(fsdp=2))


def test_two_plans() -> None:
    pair = sw.compare(plan(fsdp=2), plan(fsdp=2, remat="full"))
    assert [setting.name for setting in pair.settings] == ["remat"]
    assert pair.rows[-1].change == pytest.approx(sum(row.change for row in pair.rows[:-1]))
    assert pair.causes[0].group == "MLP matmuls"
    memory = {row.group: row.change for row in pair.figures}
    assert memory["activations"] < 0 == memory["weights"]


def test_two_engines_are_compared_by_what_users_see() -> None:
    """A longer pass of a larger batch is no slower engine."""
    model, system = sw.model("llama3-8b"), sw.hardware("h100:8")
    small, large = (sw.plan(model, system, sw.Serve(context=2048, batch=n)) for n in (16, 128))
    pair = sw.compare(small, large)
    first = pair_headline(pair)
    assert first.startswith("B against A: TPOT ")
    assert "slower" not in first
    change = large.estimate.tokens_per_s_per_chip / small.estimate.tokens_per_s_per_chip - 1
    assert f"tokens/s/chip (+{change:.1%})".replace("%", " %") in first
    job = sw.Serve(prompt=2000, output=200, rate=8.0, ttft_s=1.0, tpot_s=0.03)
    together, apart = (sw.plan(model, system, job, disaggregate=x) for x in (False, True))
    names = {setting.name: setting for setting in sw.compare(together, apart).settings}
    assert names["prefill engines"].first == ""
    assert "h100" in names["prefill engines"].second


def test_two_traces() -> None:
    pair = sw.compare(profile(), profile("fsdp_remat"))
    assert pair.rows[-1].change == pytest.approx(sum(row.change for row in pair.rows[:-1]), 1e-3)
    again = sw.compare(profile(), profile())
    assert again.causes == ()
    back = sw.compare(profile("fsdp_remat"), profile())
    assert [cause.group for cause in back.causes] == [cause.group for cause in pair.causes]
    for there, here in zip(pair.causes, back.causes, strict=True):
        if there.kind == "grew":  # of the first and of the second
            assert (there.planned, there.measured) == (here.measured, here.planned)


def test_the_memory_of_a_trace_is_compared() -> None:
    peak = MemoryPeak(
        bytes=3 << 30,
        arguments=2 << 30,
        temporaries=1 << 30,
        instruction="",
        operation="",
        arrays=(),
    )
    traced = replace(profile(), memory=peak)
    figures = {figure.quantity: figure for figure in sw.compare(plan(fsdp=2), traced).figures}
    assert figures["memory"].compiled == 3 << 30
    pair = sw.compare(traced, replace(traced, memory=replace(peak, bytes=4 << 30)))
    (row,) = [row for row in pair.figures if row.group == "memory"]
    assert row.change == 1 << 30


def test_the_trace_of_another_program_is_refused() -> None:
    with pytest.raises(BadInput, match="has 4 devices and the plan 2"):
        sw.compare(plan(fsdp=2), replace(profile(), devices=4))


def test_a_trace_of_other_devices_is_refused() -> None:
    served = sw.plan(sw.model("llama3-8b"), sw.hardware("h100:1"), sw.Serve(context=2048))
    with pytest.raises(BadInput, match="is of a CPU, and the plan for h100:1, a GPU") as caught:
        sw.compare(served, profile())
    assert "hw measure" in caught.value.problems[1]


def test_two_runs() -> None:
    log = read_input(str(FOLDER / "fsdp.jsonl"))
    assert isinstance(log, RunLog)
    pair = sw.compare(log, log)
    assert {row.group for row in pair.figures} == {"loss", "tokens/s"}
    assert all(row.change == 0 for row in (*pair.rows, *pair.figures))
    assert pair.noise == pytest.approx(0.25, abs=0.01)


def run_log() -> RunLog:
    log = read_input(str(FOLDER / "fsdp.jsonl"))
    assert isinstance(log, RunLog)
    return log


def test_a_run_of_another_plan_is_refused() -> None:
    """A line of a run knows its tokens; a folder of a run has its plan."""
    larger = sw.plan(MODEL, sw.hardware(f"{FOLDER / 'host.toml'}:2"), replace(JOB, batch=32))
    with pytest.raises(BadInput, match="has 2,048 tokens a step and the plan 4,096: it is not a"):
        sw.compare(larger, run_log())
    with pytest.raises(BadInput, match="has fsdp 2 and the plan data 2: it is not a run of"):
        sw.compare(plan(data=2), replace(run_log(), plan=plan(fsdp=2)))
    narrow = sw.plan(
        MODEL, sw.hardware(f"{FOLDER / 'host.toml'}:2"), replace(JOB, moments="bf16"), {"fsdp": 2}
    )
    for other, said in (
        (plan(fsdp=2, remat="full"), "has remat full and the plan none"),
        (plan(fsdp=2, vocab=528), "has a small Llama of 3.* parameters and the plan a small"),
        (narrow, "has moments in bf16 and the plan fp32"),
    ):
        with pytest.raises(BadInput, match=said):
            sw.compare(plan(fsdp=2), replace(run_log(), plan=other))
    renamed = replace(plan(fsdp=2), model=replace(plan(fsdp=2).model, name="mine"))
    assert sw.compare(plan(fsdp=2), replace(run_log(), plan=renamed))
    served = sw.plan(MODEL, sw.hardware("v5e:1x1"), sw.Serve(prompt=64, output=8))
    with pytest.raises(BadInput, match="of a run of training, and the plan is of serving"):
        sw.compare(served, run_log())


def test_a_run_without_a_trace_says_nothing_of_parts() -> None:
    alone = sw.compare(plan(fsdp=2), run_log())
    assert isinstance(alone, StepComparison)
    assert step_headline(alone).endswith("Its parts were not measured: a trace has them.")


def test_rates_that_are_far_too_slow_are_doubted() -> None:
    log = run_log()
    records = [
        replace(r, step_s=r.step_s / 4, tokens_per_s=4 * r.tokens_per_s) for r in log.records
    ]
    fast = sw.compare(plan(fsdp=2), replace(log, records=tuple(records)))
    assert isinstance(fast, StepComparison)
    assert "The plan's rates are not those of this machine" in step_headline(fast)


def served_load(*replies: Reply) -> Measurement:
    return measure(Replies(replies=replies, late_s=(0.0,), lag_s=(0.0,)), Slo())


def test_a_load_is_compared_with_the_simulation_of_its_requests(tmp_path: Path) -> None:
    """All eight requests arrive at once, so that their first tokens wait for one another."""
    job = sw.Serve(prompt=1024, output=8)
    served = sw.plan(sw.model("llama3-8b"), sw.hardware("v5e:2x4"), job)
    burst = [reply(0.0, 0.5, (0.01,) * 7, prompt_tokens=1024, output_tokens=8) for _ in range(8)]
    replies = served_load(*burst, FAILED)
    alone = {figure.quantity: figure for figure in sw.compare(served, replies).figures}
    assert alone["ttft"].planned == served.estimate.ttft_s
    prediction = Predictor(served, Slo()).predict(tuple(burst))
    assert prediction is not None
    comparison = sw.compare(served, replies.beside(prediction))
    figures = {figure.quantity: figure for figure in comparison.figures}
    assert figures["ttft"].planned == prediction.simulated.ttft_s.p50
    assert figures["ttft"].planned != pytest.approx(served.estimate.ttft_s, rel=0.1)
    assert figures["ttft"].measured == 0.5
    (row,) = comparison.rows
    assert row.planned_s == prediction.simulated.tpot_s.p50
    assert row.measured_s == pytest.approx(0.01)
    headline = next(step_blocks(comparison, ()))
    assert str(headline).find("1 of 9 requests failed (HTTP 503: overloaded). Of the others: ") >= 0


def test_the_document_of_a_failed_command(tmp_path: Path) -> None:
    document = tmp_path / "failed.json"
    document.write_text(run("plan", "llama3-8b", "v5e:2x4", "--json").out)
    with pytest.raises(BadFile) as caught:
        read_input(str(document))
    assert "failed.json is the error of a command" in caught.value.problems[0]
    assert "Add --train or --serve" in caught.value.problems[1]
    document.write_text('{"error": {"message": "of another program"}}')
    with pytest.raises(BadFile, match="problems"):
        read_input(str(document))


def test_planned_products_of_experts_on_cpus_have_a_slot_for_every_token() -> None:
    """As the program computes them: a trace of the plan is not another program's."""
    config = "mixtral-8x7b,n_layers=1,d_model=64,d_ff=128,n_heads=4,n_kv_heads=2,vocab=256"
    job = sw.Train(batch=2, seq=64, weights="fp32", compute="fp32")
    case = sw.plan(sw.model(config), sw.hardware(f"{FOLDER / 'host.toml'}:1"), job)
    flops = {"router": 0.0, "experts": 0.0}
    for operation in case.operations:
        if operation.name.startswith("moe."):
            part = "router" if operation.name.startswith("moe.router") else "experts"
            flops[part] += operation.flops
    planned = planned_step(case).flops["expert matmuls"]
    assert planned == pytest.approx(flops["router"] + 4 * flops["experts"])  # of 8, 2 are chosen
