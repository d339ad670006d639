"""Explanations of serving: rebuilt plans, batches, thresholds, changes that are evaluated anew."""

from __future__ import annotations

import dataclasses

import pytest

import shardwise as sw
from shardwise.errors import BadFile, BadInput
from shardwise.plan.serving.explain import ServingExplanation
from shardwise.plan.serving.rebuild import rebuild
from shardwise.plan.serving.time_parts import kv_batch
from shardwise.report.serving.changes import difference_text, engine_text

LLAMA = sw.model("llama3-70b")
DEEPSEEK = sw.model("deepseek-v3")
CHAT = sw.Serve(prompt=2048, output=256)
FP8 = sw.Serve(prompt=4096, output=1024, weights="fp8", kv="fp8", compute="fp8")


def plan(peak: bool = True, **job: object) -> sw.ServingPlan:
    """The book's LLaMA-3-70B on 16 chips."""
    asked = sw.Serve(**{"context": 8192, "batch": 32, **job})  # type: ignore[arg-type]
    return sw.plan(LLAMA, sw.hardware("v5e:4x4"), asked, peak=peak)


@pytest.fixture(scope="module")
def told() -> ServingExplanation:
    return sw.explain(plan())


@pytest.mark.parametrize(
    ("model", "hardware", "job", "disaggregate"),
    [
        (LLAMA, "v5e:4x4", CHAT, None),
        (LLAMA, "h100:16", CHAT, True),
        (LLAMA, "h100:16,hbm_bandwidth=4e12B/s", dataclasses.replace(CHAT, rate=4.0), None),
        (DEEPSEEK, "gb200:72", FP8, True),
        (DEEPSEEK, "h200:16", dataclasses.replace(FP8, drafted=2, cached=0.3), False),
    ],
)
@pytest.mark.parametrize("peak", [True, False])
def test_a_rebuilt_plan_has_the_plans_numbers(
    model: sw.ModelConfig, hardware: str, job: sw.Serve, disaggregate: bool | None, peak: bool
) -> None:
    made = sw.plan(model, sw.hardware(hardware), job, peak=peak, disaggregate=disaggregate)
    _, again = rebuild(made)
    assert again.tpot_s == pytest.approx(made.estimate.tpot_s, rel=1e-12)
    assert again.ttft_s == pytest.approx(made.estimate.ttft_s, rel=1e-12)
    assert again.tokens_per_s == pytest.approx(made.estimate.tokens_per_s, rel=1e-12)
    assert again.server.max_batch == made.estimate.decode.max_batch


def test_a_chip_without_a_size_is_rebuilt() -> None:
    job = dataclasses.replace(CHAT, rate=20.0, tpot_s=0.03, ttft_s=1.0)
    made = sw.plan(LLAMA, sw.chip("h200"), job)
    assert rebuild(made)[1].tpot_s == pytest.approx(made.estimate.tpot_s, rel=1e-12)


def test_what_cannot_be_rebuilt() -> None:
    made = plan()
    servers = dataclasses.replace(made.strategy.servers, placement={"tensor": "nowhere"})
    strategy = dataclasses.replace(made.strategy, servers=servers)
    with pytest.raises(BadFile, match="has no placement of"):
        sw.explain(dataclasses.replace(made, strategy=strategy))


def test_the_plans_own_row_is_the_plan(told: ServingExplanation) -> None:
    made = plan()
    (here,) = [row for row in told.batches if row.here]
    assert here.batch == 32
    assert here.step_s == made.estimate.decode.step_s
    assert sum(here.sides.values()) == pytest.approx(here.step_s.expected)
    first = told.changes[0]
    assert first.tpot_s == pytest.approx(made.estimate.tpot_s)
    assert first.tokens_per_s_per_chip == pytest.approx(made.estimate.tokens_per_s_per_chip)
    assert made.estimate.usd_per_million_tokens
    assert first.usd_per_million_output_tokens == pytest.approx(
        made.estimate.usd_per_million_tokens.output
    )


def test_larger_batches_serve_more_and_take_longer(told: ServingExplanation) -> None:
    tokens = [row.tokens_per_s_per_chip for row in told.batches]
    steps = [row.step_s.expected for row in told.batches]
    caches = [row.sides["kv"] / sum(row.sides.values()) for row in told.batches]
    assert tokens == sorted(tokens)
    assert steps == sorted(steps)
    assert caches == sorted(caches)
    assert told.batches[-1].batch == told.max_batch


@pytest.mark.parametrize(
    ("model", "hardware", "job"),
    [
        (LLAMA, "v5e:4x4", sw.Serve(context=8192, batch=32)),
        (DEEPSEEK, "h200:8", dataclasses.replace(FP8, context=0)),
    ],
)
def test_caches_outweigh_products_from_there_on(
    model: sw.ModelConfig, hardware: str, job: sw.Serve
) -> None:
    server = rebuild(sw.plan(model, sw.hardware(hardware), job, peak=True))[1].server
    at = kv_batch(server)
    assert at
    for batch, outweigh in ((at - 1, False), (at, True)):
        took = server.decode(batch)
        assert bool(took.decode_attention >= took.matmuls + took.head) is outweigh


def test_short_contexts_outweigh_at_no_batch() -> None:
    job = sw.Serve(context=512, batch=1)
    made = sw.plan(sw.model("llama3-8b"), sw.hardware("h100:1"), job, peak=True)
    # At 512 tokens FLOPs grow faster with the batch than caches: 2 P W / (C kv) is 415 in bf16 ...
    assert made.estimate.decode.kv_batch
    short = dataclasses.replace(job, context=128)
    made = sw.plan(sw.model("llama3-8b"), sw.hardware("h100:1"), short, peak=True)
    assert made.estimate.decode.kv_batch is None  # ... and 128 is below it


def test_each_change_is_the_plan_of_the_changed_job(told: ServingExplanation) -> None:
    found = {difference_text(change.differs): change for change in told.changes}
    engine = {"tensor": 16, "kv": "batch", "fsdp": 1, "expert": 1, "pipe": 1, "context": 1}
    for name, job in (
        ("int8 weights", {"weights": "int8", "compute": "int8"}),
        ("int8 KV cache", {"kv": "int8"}),
        ("half the context", {"context": 4096}),
        ("3 drafted tokens, 70% accepted", {"drafted": 3}),
    ):
        asked = sw.Serve(**{"context": 8192, "batch": 32, **job})  # type: ignore[arg-type]
        alone = sw.plan(LLAMA, sw.hardware("v5e:4x4"), asked, engine, peak=True)
        assert found[name].tpot_s == pytest.approx(alone.estimate.tpot_s, rel=1e-9)
        assert found[name].max_batch == alone.estimate.decode.max_batch
        assert found[name].tpot_s < told.changes[0].tpot_s


def test_fewer_heads_read_less_and_fsdp_is_a_mistake(told: ServingExplanation) -> None:
    found = {difference_text(change.differs): change for change in told.changes}
    first = told.changes[0]
    assert found["1 KV head"].tpot_s < found["4 KV heads"].tpot_s < first.tpot_s
    assert found["1 KV head"].max_batch > 7 * first.max_batch
    assert found["FSDP, as in training"].tpot_s > 50 * first.tpot_s
    twice = found["twice the chips"]
    assert engine_text(twice) == "tensor 32, v5e:4x8"
    assert first.tpot_s / 2 < twice.tpot_s < first.tpot_s


def test_critical_batches_of_a_mixture_grow_by_experts() -> None:
    dense = sw.explain(sw.plan(LLAMA, sw.hardware("h200:8"), CHAT, peak=True)).critical
    mixed = sw.explain(sw.plan(DEEPSEEK, sw.hardware("h200:8"), FP8, peak=True)).critical
    there = {(c.weights, c.compute): c.batch for c in dense}
    for c in mixed:
        if (c.weights, c.compute) in there:
            assert c.batch == pytest.approx(there[c.weights, c.compute] * 256 / 8)


def test_what_if() -> None:
    twice = sw.explain(plan(), {"hbm_bandwidth": 2.0}).what_if
    assert twice
    made = plan()
    read = made.estimate.decode.parts["weights"] + made.estimate.decode.parts["kv"]
    read += made.estimate.decode.parts["unembedding"]
    assert twice.same.tpot_s == pytest.approx(made.estimate.tpot_s - read / 2)
    assert twice.best
    assert twice.best.tpot_s <= twice.same.tpot_s * 1.5
    half = sw.explain(plan(), {"ici": 0.25}).what_if
    assert half
    assert half.same.tpot_s > made.estimate.tpot_s
    with pytest.raises(BadInput):
        sw.explain(plan(), {"ici": -1.0})


def test_the_path_has_the_questions_of_the_book(told: ServingExplanation) -> None:
    steps = [decision.step for decision in told.path]
    assert steps == ["chip", "machine", "tensor", "kv", "batch", "context"]
    mixed = sw.explain(sw.plan(DEEPSEEK, sw.hardware("h200:16"), FP8, disaggregate=True))
    assert {"expert", "prompts"} <= {decision.step for decision in mixed.path}
    assert mixed.disaggregated


def test_sensitivity_is_of_training() -> None:
    with pytest.raises(BadInput, match="takes training plans"):
        sw.sensitivity(plan())  # type: ignore[arg-type]
