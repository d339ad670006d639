"""Tiny serving plans through the TPU's compiler, from Python and from the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.check.compiling.environment import installed_compilers
from shardwise.check.serving import ServingVerdict, planned_numbers
from shardwise.cli import main
from shardwise.errors import BadInput
from shardwise.plan.schema.serving import ServingPlan

needs_tpu = pytest.mark.skipif("tpu" not in installed_compilers(), reason="libtpu is not installed")

MODEL = sw.ModelConfig.dense(
    n_layers=2, d_model=512, d_ff=1024, n_heads=4, n_kv_heads=2, vocab=2048
)
JOB = sw.Serve(
    context=8192, prompt=256, output=7936, batch=8, weights="int8", kv="int8", compute="int8"
)


def planned(model: sw.ModelConfig = MODEL, **fixed: int | str) -> ServingPlan:
    return sw.plan(model, sw.hardware("v5e:2x2"), JOB, fixed, peak=True)


@pytest.fixture(scope="module")
def verdict(tmp_path_factory: pytest.TempPathFactory) -> ServingVerdict:
    trace = tmp_path_factory.mktemp("trace") / "decode.json"
    found = sw.check(planned(tensor=4, kv="batch"), trace=trace, cache=False)
    assert json.loads(trace.read_text())["traceEvents"]
    return found


def test_a_step_is_compared_with_the_memory_of_its_own_pass() -> None:
    """A plan has room for a pass of 8,192 tokens; a decode step has 8, a prefill 256."""
    plan = sw.plan(MODEL, sw.hardware("v5e:2x2"), JOB, {"tensor": 4})
    kept = plan.estimate.memory_bytes_per_chip.total
    decode, prefill = (planned_numbers(plan, step).peak_bytes for step in ("decode", "prefill"))
    # Three residuals, and a quarter of the hidden layer and of the heads, twice, in 2 bytes.
    width = 2 * (3 * 512 + (2 * 1024 + 2 * 4 * 128) / 4)
    assert kept - decode == pytest.approx((8192 - 8) * width, abs=2)
    assert kept - prefill == pytest.approx((8192 - 256) * width, abs=2)


@needs_tpu
@pytest.mark.parametrize("step", ["decode", "prefill"])
def test_both_steps_send_what_is_planned(verdict: ServingVerdict, step: str) -> None:
    found = getattr(verdict, step)
    assert (found.compiler, found.fits) == ("tpu", True)
    # Of so small a model what plans leave out counts: scales of weights, copies of queries.
    assert found.verdict == "differs"
    differing = {deviation.quantity for deviation in found.deviations}
    assert differing >= ({"memory", "time"} if step == "decode" else {"time"})
    rows = {(r.role, r.kind): r for r in found.collectives}
    sums = rows["tensor", "all_reduce"]
    assert sums.planned_n == 2 * MODEL.n_layers + 1
    outputs = 0
    if step == "decode":  # the outputs that two chips share, 8 x 2 x 128 numbers in each layer
        outputs = MODEL.n_layers
    assert sums.compiled_n == sums.planned_n + outputs
    expected = sums.planned_bytes + outputs * 2 * 8 * 2 * 128 * 2 / 2
    assert sums.compiled_bytes == pytest.approx(expected, rel=0.02)


@needs_tpu
def test_chips_with_the_same_head_share_the_tokens_of_each_sequence(
    verdict: ServingVerdict,
) -> None:
    rows = {(r.role, r.kind): r for r in verdict.decode.collectives}
    gathered = rows["tensor", "all_gather"]
    assert gathered.compiled_n == 2 * MODEL.n_layers
    # Two chips share each KV head: a chip receives the other's 8 x 1 x 128 numbers of 2 bytes,
    # and for two query heads the log-sum-exps of 8 sequences in 4 bytes.
    assert gathered.compiled_bytes == MODEL.n_layers * (8 * 128 * 2 + 8 * 2 * 4)


@needs_tpu
def test_products_are_as_planned_and_caches_stay_in_place(verdict: ServingVerdict) -> None:
    prefill = verdict.prefill
    assert prefill.compiled is not None
    assert prefill.compiled.flops == pytest.approx(prefill.planned.flops, rel=0.01)
    plan = planned(tensor=4, kv="batch")
    decode = verdict.decode
    assert decode.compiled is not None
    # The kernel is counted over whole caches, the plan over the mean length of its sequences.
    attention = sum(op.flops for op in plan.operations if op.name == "attn.caches")
    whole = attention * plan.workload.context / plan.estimate.decode.context
    expected = decode.planned.flops - attention + whole
    assert decode.compiled.flops == pytest.approx(expected, rel=0.01)
    assert decode.compiled.temporaries_bytes is not None
    assert decode.compiled.temporaries_bytes < plan.memory.kv_cache / 10


@needs_tpu
@pytest.mark.oracle
def test_the_command_tells_both_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    planned(tensor=2).save(str(path))
    assert main(["check", str(path), "--no-cache"]) == 4
    told = " ".join(capsys.readouterr().out.split())
    assert "the decode step of" in told
    assert "the prefill step of" in told
    assert "HBM traffic" in told


@needs_tpu
@pytest.mark.oracle
def test_experts_are_read_without_a_copy() -> None:
    model = sw.model("qwen3-30b-a3b,n_layers=2,vocab=2048")
    different = {"tensor": 4, "expert_tensor": 1}  # experts on each chip
    job = sw.Serve(context=4096, batch=4)
    plan = sw.plan(model, sw.hardware("v6e:2x2"), job, different, peak=True)
    prefill = sw.check(plan).prefill
    assert prefill.compiled is not None
    assert prefill.compiled.hbm_bytes is not None
    # The plan counts weights once, and activations that the compiler keeps in VMEM. Copies of the
    # experts would be read and written beside.
    assert prefill.compiled.hbm_bytes < prefill.planned.hbm_bytes


@needs_tpu
@pytest.mark.oracle
def test_2d_weights_send_what_is_planned() -> None:
    model = sw.ModelConfig.dense(
        n_layers=2, d_model=2048, d_ff=4096, n_heads=16, n_kv_heads=4, vocab=8192
    )
    fixed = {"fsdp": 2, "tensor": 2, "weights": "2d"}
    plan = sw.plan(model, sw.hardware("v5e:2x2"), replace(JOB, batch=64), fixed, peak=True)
    verdict = sw.check(plan, cache=False)
    for found in (verdict.decode, verdict.prefill):
        assert (found.fits, found.sends_as_planned) == (True, True)
        rows = {(row.role, row.kind): row for row in found.collectives}
        for key in (("tensor", "all_gather"), ("tensor", "reduce_scatter"), ("fsdp", "all_reduce")):
            assert rows[key].planned_bytes > 0
            assert rows[key].compiled_bytes == pytest.approx(rows[key].planned_bytes, rel=0.02)


@pytest.mark.usefixtures("builds_here")
def test_a_width_that_2d_weights_do_not_divide_is_refused() -> None:
    model = sw.ModelConfig.dense(
        n_layers=2, d_model=514, d_ff=1024, n_heads=4, n_kv_heads=2, d_head=128, vocab=2048
    )
    plan = planned(model, fsdp=2, tensor=2, weights="2d")
    with pytest.raises(BadInput, match=r"d_model 514 over fsdp 2 x tensor 2: .* does not yet"):
        sw.check(plan, cache=False)


def test_what_is_not_served_is_refused_in_words() -> None:
    plan = planned(sw.model("mixtral-8x7b,n_layers=2"), context=2, pipe=2)
    with pytest.raises(BadInput, match="the runtime does not yet"):
        sw.check(plan, cache=False)
