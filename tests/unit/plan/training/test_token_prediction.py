"""Layers of multi-token prediction (MTP) in plans: what they take, and who runs them."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

import shardwise as sw
from shardwise.errors import BadInput
from shardwise.frameworks import registry, replan
from shardwise.models.token_prediction import mtp_parameters
from shardwise.plan.schema.training_reasons import TokenPrediction
from shardwise.plan.training.validate import plan_problems
from shardwise.search.training import rank
from shardwise.search.training.runtime_limits import limits
from shardwise.validate.training.predict import Prediction, predict
from shardwise.validate.training.runs import Run, load

PUBLISHED = "mb-26.08-deepseek-v3-gb300-mxfp8-256"
# D 7168: latent attention of 128 heads, 256 + 1 experts of width 2048, router, 4 norms of a layer;
# the projection [2D -> D] and three norms beside it.
DEEPSEEK_ATTENTION = (
    7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
)
DEEPSEEK_EXPERTS = 257 * 3 * 7168 * 2048 + 7168 * 256
DEEPSEEK_NORMS = 2 * 7168 + 1536 + 512
# D 4096: 32 query and 8 KV heads of width 128, F 14336, two norms.
LLAMA_LAYER = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096


def joint(d_model: int) -> int:
    return 2 * d_model * d_model + 3 * d_model


LLAMA_MTP = LLAMA_LAYER + joint(4096)


@functools.cache
def published() -> Run:
    return next(run for run in load() if isinstance(run, Run) and run.id == PUBLISHED)


@functools.cache
def llama(mtp_layers: int, **sizes: int | str) -> sw.Plan:
    job = sw.Train(batch=64, seq=4096, mtp_layers=mtp_layers)
    mesh = {name: n for name, n in sizes.items() if name in ("data", "pipe", "fsdp", "tensor")}
    words = {name: word for name, word in sizes.items() if name not in mesh}
    return sw.evaluate(sw.model("llama3-8b"), sw.hardware("h100:8"), job, sw.Mesh(**mesh), words)


def state(plan: sw.Plan) -> float:
    return plan.memory.weights + plan.memory.gradients + plan.memory.optimizer


def test_parameters_by_hand() -> None:
    by_hand = DEEPSEEK_ATTENTION + DEEPSEEK_EXPERTS + DEEPSEEK_NORMS + joint(7168)
    assert mtp_parameters(sw.model("deepseek-v3")) == by_hand
    assert mtp_parameters(sw.model("llama3-8b")) == LLAMA_MTP


def test_a_plan_of_a_published_run_is_its_prediction() -> None:
    """That of DeepSeek-V3 with its MTP layer on 256 GB300; without the layer it is faster."""
    run = published()
    prediction = predict(run)
    assert isinstance(prediction, Prediction)
    kernels = ("cuda_graphs", "fp8_attention")
    job = replace(run.job, framework="nemo", kernels=kernels)
    assert job.mtp_layers == 1
    plan = sw.evaluate(sw.model("deepseek-v3"), run.system, job, run.layout)
    assert plan.step.expected == pytest.approx(prediction.predicted, rel=0.01)
    plain = sw.evaluate(sw.model("deepseek-v3"), run.system, replace(job, mtp_layers=0), run.layout)
    assert plan.step.expected > 1.03 * plain.step.expected


@pytest.mark.parametrize("n", [1, 2])
def test_state_is_that_of_the_parameters(n: int) -> None:
    """18 bytes for each: bf16 weights, fp32 gradients, moments and master copy."""
    added = state(llama(n, data=8, zero=0)) - state(llama(0, data=8, zero=0))
    assert added == pytest.approx(18 * n * LLAMA_MTP)
    sharded = state(llama(n, fsdp=8)) - state(llama(0, fsdp=8))
    assert sharded == pytest.approx(18 * n * LLAMA_MTP / 8)
    # ZeRO-1 shards 12 of the 18 bytes.
    added = state(llama(n, data=8, zero=1)) - state(llama(0, data=8, zero=1))
    assert added == pytest.approx((6 + 12 / 8) * n * LLAMA_MTP)


def test_the_last_stage_has_the_layer_and_a_copy_of_the_embedding() -> None:
    """Of 32 layers in 4 stages of 8, with the unembedding: 128,256 x 4,096."""
    plan = llama(1, data=2, pipe=4, schedule="1f1b", zero=0)
    embedding = 128256 * 4096
    parameters = 9 * LLAMA_LAYER + joint(4096) + 2 * embedding + 4096
    assert state(plan) == pytest.approx(18 * parameters)


def test_a_place_without_a_layer_is_filled_first() -> None:
    """30 layers in 4 stages: 8, 8, 8 and 6; of three MTP layers one is beyond the largest stage."""
    model, system = sw.model("llama3-8b,n_layers=30"), sw.hardware("h100:8")
    words = {"data": 2, "pipe": 4, "schedule": "1f1b", "zero": 0}
    states = []
    for n in (1, 2, 3):
        job = sw.Train(batch=64, seq=4096, mtp_layers=n)
        plan = sw.evaluate(model, system, job, sw.Mesh(data=2, pipe=4), words)
        states.append(state(plan))
    assert states[1] - states[0] == pytest.approx(18 * joint(4096))
    assert states[2] - states[1] == pytest.approx(18 * LLAMA_MTP)


@pytest.mark.parametrize(("remat", "width"), [("none", 4), ("full", 2)])
def test_activations_are_those_of_a_layer_and_of_its_projection(remat: str, width: int) -> None:
    """Two residuals of a sequence in 16 bits, and both normed unless remat norms them again."""
    fixed: dict[str, int | str] = {"fsdp": 8, "remat": remat, "micro_batch": 1}
    plain, plan = llama(0, **fixed), llama(1, **fixed)
    layer = plain.memory.activations / 32
    added = plan.memory.activations - plain.memory.activations
    assert added == pytest.approx(layer + width * 4096 * 4096 * 2)
    assert plan.memory.other >= plain.memory.other  # two heads


def test_flops_of_mfu_include_the_layer_and_its_head() -> None:
    """6 a matmul parameter: of the layer, the projection and the head; 6 D seq of causal scores."""
    plan, plain = llama(1, fsdp=8), llama(0, fsdp=8)
    peak = sw.hardware("h100:8").chip.peak("bf16")
    flops = [p.estimate.mfu * p.step.expected * 8 * peak / (64 * 4096) for p in (plain, plan)]
    matmuls = LLAMA_LAYER - 2 * 4096 + 2 * 4096 * 4096 + 128256 * 4096
    assert flops[1] - flops[0] == pytest.approx(6 * matmuls + 6 * 4096 * 4096)
    assert plan.step.expected > plain.step.expected


def test_a_plan_says_what_the_layers_add() -> None:
    sizes: dict[str, int | str] = {"data": 2, "pipe": 4, "schedule": "1f1b", "zero": 1}
    plan, plain = llama(1, **sizes), llama(0, **sizes)
    (reason,) = [reason for reason in plan.why if isinstance(reason, TokenPrediction)]
    assert reason.step_s == pytest.approx(plan.step.expected - plain.step.expected)
    assert reason.memory_bytes == pytest.approx(plan.memory.total - plain.memory.total)
    assert (reason.layers, reason.on_last_stage) == (1, True)
    assert not plan_problems(plan)
    assert not any(isinstance(reason, TokenPrediction) for reason in plain.why)


def test_the_runtime_has_none() -> None:
    plan = llama(1, fsdp=8)
    kinds = [limit.kind for limit in limits(sw.model("llama3-8b"), plan.job, plan.layout,
                                             sw.hardware("h100:8").chip)]  # fmt: skip
    assert kinds == ["mtp"]


@pytest.mark.parametrize("n", [-1, 17, 1.5])
def test_other_numbers_are_refused(n: float) -> None:
    with pytest.raises(BadInput, match=f"mtp {n} is no whole number from 0 to 16"):
        sw.Train(batch=1, seq=1, mtp_layers=n)  # type: ignore[arg-type]


def test_a_search_finds_the_best_of_all() -> None:
    config, system = sw.model("deepseek-v2-lite"), sw.hardware("h100:16")
    for n in (1, 4):
        job = sw.Train(batch=64, seq=2048, mtp_layers=n, framework="megatron")
        rates = rank.PEAK
        fixed = rank.NOTHING_FIXED.change(tensor=1)
        best, whole = (
            rank.rank(config, system, job, rates, fixed, keep=1, exhaustive=exhaustive)
            for exhaustive in (False, True)
        )
        assert best.candidates[0].rank == pytest.approx(whole.candidates[0].rank)


@pytest.mark.parametrize("framework", ["megatron", "megatron-bridge", "nemo", "maxtext"])
@pytest.mark.parametrize("n", [0, 2])
def test_the_layers_come_back_from_a_file(framework: str, n: int) -> None:
    model, system = sw.model("deepseek-v2-lite"), sw.hardware("h100:16")
    fixed = {"expert": 8, "pipe": 1, "remat": "full"}
    fixed |= {"fsdp": 2} if framework == "maxtext" else {"zero": 1}
    job = sw.Train(batch=64, seq=4096, mtp_layers=n)
    plan = sw.plan(model, system, job, fixed, any_layout=True)
    written = registry.export(plan, framework)
    options = ("--mtp-num-layers 2", "mtp_num_layers: 2", "mtp_num_layers=2")
    assert any(option in written.text for option in options) == (n == 2)
    name = {"megatron": "a.sh", "nemo": "a.sh", "maxtext": "a.yml"}.get(framework, "a.yaml")
    launch = registry.read(written.text, name, framework).launch
    assert replan.training_plan(launch, model, system).job.mtp_layers == n


def test_a_layout_that_is_written_out_counts_its_layers() -> None:
    text = (
        "torchrun --nproc-per-node 8 pretrain_gpt.py --bf16 --pipeline-model-parallel-size 4 "
        '--pipeline-model-parallel-layout "Et*4|(t*4|)*6t*3mL" --micro-batch-size 1'
    )
    assert registry.read(text, "a.sh").launch.mtp_layers == 1  # type: ignore[union-attr]
