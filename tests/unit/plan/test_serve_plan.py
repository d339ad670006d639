"""A serving plan: the figures of the book, sums of its parts, round trips, refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest

import shardwise as sw
from shardwise.errors import BadFile, BadInput, DoesNotFit, NotDivisible, UnknownName
from shardwise.plan.schema.json_io import decode
from shardwise.plan.schema.json_output import encode
from shardwise.plan.schema.serving_reasons import CriticalBatch
from shardwise.plan.serving.build import search
from shardwise.plan.serving.rebuild import rebuild
from shardwise.report.serving.reasons import reason_text
from shardwise.search.serving.rule import USUAL_TTFT_S

LLAMA = sw.model("llama3-70b")
CHAT = sw.Serve(prompt=2048, output=256)


def served(hardware: str, dtype: str, batch: int | None = 32, **more: object) -> sw.ServingPlan:
    """The book's LLaMA-3-70B at a context of 8,192, at peak rates."""
    compute = dtype if dtype in sw.hardware(hardware).chip.peak_flops_per_s else "bf16"
    job = sw.Serve(context=8192, batch=batch, weights=dtype, kv=dtype, compute=compute)
    return sw.plan(LLAMA, sw.hardware(hardware), job, peak=True, **more)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("hardware", "dtype"), [("v5e:4x4", "bf16"), ("v5e:2x4", "int8"), ("v5e:2x2", "int4")]
)
def test_the_books_step_of_17_ms(hardware: str, dtype: str) -> None:
    # Book, section 8: 17 ms on the smallest slice of each dtype with 32 sequences.
    plan = served(hardware, dtype)
    assert plan.step.lower == pytest.approx(17e-3, rel=0.04)
    assert plan.step.lower <= plan.step.expected <= plan.step.upper


def test_twice_the_chips_halve_the_books_step() -> None:
    assert served("v5e:4x4", "int8").step.lower == pytest.approx(8.5e-3, rel=0.04)


def test_the_books_prompt_of_910_ms() -> None:
    prefill = served("v5e:4x4", "bf16").estimate.prefill
    assert prefill.at_mfu.step_s == pytest.approx(0.91, rel=0.01)
    assert prefill.step_s.lower < prefill.at_mfu.step_s


def test_the_books_three_engines_for_prompts() -> None:
    # 0.91 s a prompt against 32 sequences of 512 tokens at 17 ms: the book says about 3 to 1.
    job = sw.Serve(prompt=8192, output=512, batch=32)
    fixed = {"tensor": 16, "kv": "batch"}
    plan = sw.plan(LLAMA, sw.hardware("v5e:4x4"), job, fixed, peak=True)
    assert plan.estimate.prefill.at_mfu.servers == pytest.approx(3, abs=0.5)


def test_throughput_per_chip_of_the_book() -> None:
    # 32 tokens in 17 ms on 16, 8 and 4 chips.
    each = [
        32 / plan.step.lower / plan.strategy.n_chips
        for plan in (
            served("v5e:4x4", "bf16"),
            served("v5e:2x4", "int8"),
            served("v5e:2x2", "int4"),
        )
    ]
    assert each == pytest.approx([116, 232, 465], rel=0.05)


@pytest.mark.parametrize(
    ("model", "hardware", "job"),
    [
        ("llama3-70b", "v5e:4x8", CHAT),
        ("mixtral-8x7b", "h100:8", CHAT),
        ("deepseek-v3", "gb200:72", sw.Serve(prompt=4096, output=512, weights="fp8", kv="fp8")),
        ("gemma3-27b", "h100:4", sw.Serve(context=32768, batch=4)),
    ],
)
@pytest.mark.parametrize("peak", [True, False])
def test_parts_and_operations_add_up(model: str, hardware: str, job: sw.Serve, peak: bool) -> None:
    plan = sw.plan(sw.model(model), sw.hardware(hardware), job, peak=peak)
    told = plan.estimate
    assert sum(told.decode.parts.values()) == pytest.approx(told.decode.step_s.expected)
    assert sum(told.prefill.parts.values()) == pytest.approx(told.prefill.step_s.expected)
    assert told.tpot_parts
    assert sum(told.tpot_parts.values()) == pytest.approx(told.tpot_s)
    memory = plan.memory
    assert memory.weights + memory.kv_cache + memory.other == pytest.approx(memory.total)
    assert memory.total + memory.margin <= memory.capacity
    for phase, step in (("decode", told.decode.step_s), ("prefill", told.prefill.step_s)):
        assert step.lower <= step.expected * (1 + 1e-12)
        assert step.expected <= step.upper * (1 + 1e-12)
        seconds = sum(op.time_s for op in plan.operations if op.phase == phase)
        if peak:
            assert seconds == pytest.approx(step.expected)
        assert seconds >= step.lower * (1 - 1e-9)


def test_parts_of_tpot_between_passes() -> None:
    fixed = {"tensor": 8}
    job = replace(CHAT, batch=64)
    told = sw.plan(LLAMA, sw.hardware("h100:8"), job, fixed, disaggregate=False).estimate
    assert told.tpot_parts
    assert told.tpot_parts["prompts"] == pytest.approx(told.tpot_s - told.decode.step_s.expected)
    assert told.tpot_parts["prompts"] == pytest.approx(told.prefill.busy * told.tpot_s)
    # Without an output length nothing is known of other requests' prompts.
    one = sw.plan(LLAMA, sw.hardware("h100:8"), sw.Serve(context=4096, batch=64), fixed).estimate
    assert one.tpot_parts == pytest.approx(one.decode.parts)
    drafted = replace(job, drafted=3, draft_cost=0.1)
    told = sw.plan(LLAMA, sw.hardware("h100:8"), drafted, fixed, disaggregate=False).estimate
    assert told.tpot_parts
    assert told.tpot_parts["drafts"] == pytest.approx(
        0.3 * told.decode.step_s.expected / told.decode.tokens_per_pass
    )
    assert sum(told.tpot_parts.values()) == pytest.approx(told.tpot_s)


def test_parts_of_simulated_tpot() -> None:
    job = replace(CHAT, rate=2.0, ttft_s=2.0, tpot_s=0.1)
    for disaggregate, name in ((False, "prompts"), (True, "waiting")):
        plan = sw.plan(
            LLAMA, sw.hardware("h100:8"), job, traffic="poisson", disaggregate=disaggregate
        )
        told = plan.estimate
        assert told.traffic
        assert told.tpot_parts
        assert name in told.tpot_parts
        assert sum(told.tpot_parts.values()) == pytest.approx(told.traffic.tpot_s.mean)
        assert decode(encode(plan)) == plan


def test_a_plan_of_an_earlier_version_has_no_parts_of_tpot() -> None:
    plan = sw.plan(LLAMA, sw.hardware("h100:8"), CHAT, disaggregate=False)
    earlier = encode(replace(plan, estimate=replace(plan.estimate, tpot_parts=None)))
    read = decode(earlier)
    assert isinstance(read, sw.ServingPlan)
    assert read.estimate.tpot_parts is None
    wrong = {**(plan.estimate.tpot_parts or {}), "prompts": 1.0}
    text = encode(replace(plan, estimate=replace(plan.estimate, tpot_parts=wrong)))
    with pytest.raises(BadFile, match=r"tpot_s is .*; the sum of its tpot_parts"):
        decode(text)


def test_dollars_are_those_of_the_hour() -> None:
    plan = sw.plan(LLAMA, sw.hardware("v5e:4x8"), CHAT)
    told = plan.estimate
    money = told.usd_per_million_tokens
    assert money
    assert money.input
    assert told.requests_per_s
    each = 2048 * money.input + 256 * money.output
    assert told.requests_per_s * 3600 * each / 1e6 == pytest.approx(told.usd_per_hour)


@pytest.mark.parametrize("disaggregate", [True, False])
def test_a_saved_plan_comes_back_equal(disaggregate: bool, tmp_path: object) -> None:
    plan = sw.plan(LLAMA, sw.hardware("h100:16"), CHAT, disaggregate=disaggregate)
    assert plan.strategy.disaggregated == disaggregate
    path = f"{tmp_path}/plan.json"
    plan.save(path)
    assert sw.load(path) == plan
    assert decode(encode(plan)) == plan


@pytest.mark.parametrize(
    ("model", "hardware", "job", "disaggregate"),
    [
        ("llama3-70b", "v5e:4x8", CHAT, None),
        ("llama3-70b", "h100:16", CHAT, True),
        ("mixtral-8x7b", "h100", sw.Serve(prompt=2048, output=256, rate=20.0, tpot_s=0.05), None),
        ("llama3-70b", "v5e", sw.Serve(prompt=2048, output=256, rate=20.0, tpot_s=0.05), True),
    ],
)
def test_a_plan_gives_its_inputs_back(
    model: str, hardware: str, job: sw.Serve, disaggregate: bool | None
) -> None:
    where = sw.hardware(hardware) if ":" in hardware else sw.chip(hardware)
    plan = sw.plan(sw.model(model), where, job, disaggregate=disaggregate)
    asked, chosen = rebuild(decode(encode(plan)))
    # Of a job with a rate and no bound on TTFT, with the usual one that the plan kept.
    bounded = replace(job, ttft_s=USUAL_TTFT_S) if job.rate and not job.ttft_s else job
    assert asked.job == bounded
    assert asked.hardware == where
    assert chosen.tpot_s == pytest.approx(plan.estimate.tpot_s)
    assert chosen.ttft_s == pytest.approx(plan.estimate.ttft_s)
    assert chosen.tokens_per_s == pytest.approx(plan.estimate.tokens_per_s)
    assert chosen.server.memory(chosen.batch).total == plan.memory.total


def test_an_unknown_key_is_told() -> None:
    text = encode(served("v5e:4x4", "bf16")).decode().replace('"tpot_s"', '"tpott_s"', 1)
    with pytest.raises(BadFile):
        decode(text)


def test_deployments_of_different_engines_are_listed() -> None:
    plans = search(LLAMA, sw.hardware("h100:8"), CHAT, n=3)
    assert len({str(p.strategy.servers) for p in plans}) == 3
    assert plans[0].alternatives[0].tpot_s == plans[1].estimate.tpot_s


def test_a_chip_finds_its_slice() -> None:
    job = sw.Serve(context=8192, weights="int8", kv="int8", compute="int8", tpot_s=0.015)
    plan = sw.plan(sw.model("llama3.1-405b"), sw.chip("v5e"), job, peak=True)
    assert plan.estimate.tpot_s <= 0.015
    assert plan.hardware.name.startswith("v5e:")


def test_reasons_have_the_numbers_of_the_plan() -> None:
    plan = served("v5e:4x4", "bf16")
    told = {r.constraint: r for r in plan.why}
    assert {"decode", "batch", "tensor", "gathered", "chips", "prefill"} <= set(told)
    assert told["gathered"].margin > 2  # FSDP is a mistake here
    assert isinstance(told["batch"], CriticalBatch)
    assert told["batch"].max_batch == plan.estimate.decode.max_batch
    assert f"{plan.estimate.decode.max_batch} fit" in reason_text(told["batch"])


def test_refusals() -> None:
    system = sw.hardware("v5e:4x4")
    with pytest.raises(NotDivisible, match="tensor 12 does not divide"):
        sw.plan(LLAMA, system, CHAT, {"tensor": 12})
    with pytest.raises(UnknownName, match="tenor"):
        sw.plan(LLAMA, system, CHAT, {"tenor": 12})
    with pytest.raises(BadInput, match="prompt and output"):
        sw.plan(LLAMA, system, sw.Serve(context=8192, rate=2.0))
    with pytest.raises(BadInput, match="separate prefill engines"):
        sw.plan(LLAMA, system, sw.Serve(context=8192), disaggregate=True)
    with pytest.raises(DoesNotFit, match=r"Smallest that fit: .*int8 v5e:4x8"):
        sw.plan(sw.model("llama3.1-405b"), system, CHAT)
    with pytest.raises(DoesNotFit) as refusal:  # the sizes are at fault, not the machine
        sw.plan(
            LLAMA,
            sw.hardware("h100:2"),
            sw.Serve(context=4096),
            {"tensor": 1, "fsdp": 1, "pipe": 1},
        )
    assert refusal.value.problems[1].startswith("Smallest that fit: fp8 h100:1 ")
    assert "fit with tensor and fsdp and pipe left free: bf16 h100:2." in refusal.value.problems[2]
    with pytest.raises(DoesNotFit, match="room for"):
        sw.plan(LLAMA, system, sw.Serve(context=8192, batch=1000))
    with pytest.raises(BadInput, match="disaggregate"):
        sw.plan(LLAMA, system, sw.Train(batch=8, seq=64), disaggregate=True)  # type: ignore[call-overload]


def test_a_partly_filled_machine_is_read_again(tmp_path: object) -> None:
    job = sw.Serve(prompt=2048, output=512, engine="vllm", weights="fp8", kv="fp8")
    plan = sw.plan(sw.model("deepseek-v3"), sw.hardware("gb200:72"), job)
    assert plan.strategy.engine_chips < plan.strategy.n_chips == 72
    path = f"{tmp_path}/plan.json"
    plan.save(path)
    assert sw.load(path) == plan
    strategy = replace(plan.strategy, n_chips=73)
    replace(plan, strategy=strategy).save(path)
    with pytest.raises(BadFile, match="n_chips is 73"):
        sw.load(path)
