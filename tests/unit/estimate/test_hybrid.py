"""Hybrid models through the algebra, memory, step time and search."""

from __future__ import annotations

import numpy as np
import pytest

from shardwise.estimate.training.chip_rates import Rates
from shardwise.estimate.training.gradient_sync import gradient_groups
from shardwise.estimate.training.layout_step import LayoutStep
from shardwise.estimate.training.memory.peak import step_memory
from shardwise.estimate.training.microbatch import elementwise_bytes
from shardwise.hardware import parse_chip, parse_system
from shardwise.models import ModelConfig, count
from shardwise.ops.program import training_step
from shardwise.plan import plan
from shardwise.plan.training.rebuild import rebuild
from shardwise.search.model_sizes import tensor_widths
from shardwise.search.training.legal import problems
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from shardwise.strategy.rules import TRAIN
from shardwise.strategy.stages import stages
from shardwise.workload import Train
from tests.hybrid import LATENT, hybrid, paired

BATCH, SEQ = 8, 512
MODELS = {"hybrid": hybrid(), "latent": hybrid(LATENT), "paired": paired()}
EVERY = pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)


def step(config: ModelConfig, remat: str = "none"):
    return training_step(config, BATCH, SEQ, TRAIN, remat=remat)


def flops(config: ModelConfig, mesh, remat: str = "none"):
    return sum(m.flops(mesh) for m in step(config, remat).matmuls)


@EVERY
def test_flops_of_a_step_are_those_of_the_model(config: ModelConfig) -> None:
    expected = count.model_flops_per_token(config, SEQ) * BATCH * SEQ
    assert flops(config, {}) == pytest.approx(float(expected), rel=1e-12)


@EVERY
@pytest.mark.parametrize("role", ["data", "fsdp", "tensor", "context"])
def test_chips_together_do_the_work_of_one(config: ModelConfig, role: str) -> None:
    n = 2
    whole = sum(
        (1 - 1 / n) * m.flops({})  # whole on every chip of tensor: routers work on every token
        for m in step(config).matmuls
        if role == "tensor" and m.flops({role: n}) == m.flops({})
    )
    assert n * (flops(config, {role: n}) - whole) == pytest.approx(flops(config, {}), rel=1e-12)


def test_a_projection_and_its_scan_are_split_by_heads() -> None:
    for matmul in step(MODELS["hybrid"]).matmuls:
        if matmul.name.startswith("mamba."):
            assert matmul.flops({"tensor": 4}) == matmul.flops({}) / 4


def test_chunks_of_a_sequence_that_does_not_divide_are_whole() -> None:
    works = training_step(MODELS["paired"], 1, 320, TRAIN, remat="none").matmuls
    assert {m.sizes["Z"] for m in works if m.name.startswith("mamba.")} == {3}


def test_full_remat_runs_all_but_the_last_product_of_a_layer() -> None:
    config = MODELS["hybrid"]
    again = {m.name for m in step(config, "full").matmuls if m.phase == "remat"}
    assert {"mamba.in", "mamba.scores", "mamba.read", "attn.q", "moe.up"} <= again
    assert not {"mamba.out", "attn.out", "moe.down"} & again
    assert "mamba.out" in {m.name for m in step(paired(), "full").matmuls if m.phase == "remat"}
    latent = {m.name for m in step(MODELS["latent"], "full").matmuls if m.phase == "remat"}
    assert {"moe.latent_down", "moe.down"} <= latent
    assert "moe.latent_up" not in latent


@EVERY
def test_what_the_layers_keep_is_what_the_model_says(config: ModelConfig) -> None:
    kept = sum(k.elements({}) for k in step(config).saved)
    assert kept == count.activation_bytes(config, BATCH * SEQ, element=1)


@EVERY
def test_parameters_of_a_job_are_those_of_the_model(config: ModelConfig) -> None:
    one, job = Layout(mesh=Mesh()), Train(batch=BATCH, seq=SEQ)
    total = count.parameters(config).total
    summed = gradient_groups(config, one, stages(config.n_layers, one))
    assert sum(group.elements for group in summed) == total
    memory = step_memory(config, job, step(config), one, 1.0)
    assert memory.weights == 2 * total
    kept = count.activation_bytes(config, BATCH * SEQ, element=2)
    assert memory.activations == kept


def test_remat_of_projections_drops_the_projected_input() -> None:
    config, job = paired(), Train(batch=BATCH, seq=SEQ)
    norms = ("norms", "activation")
    held = {
        parts: step_memory(
            config,
            job,
            step(config),
            Layout(mesh=Mesh(), recomputed=parts),
            1.0,
        ).activations
        for parts in ((), norms, ("q", *norms))
    }
    projected = 4 * BATCH * SEQ * 2 * config.mambas[0][0].d_projected
    assert held[norms] - held["q", *norms] == projected
    normed = 4 * BATCH * SEQ * 2 * config.mambas[0][0].d_inner
    assert held[()] - held[norms] >= normed


@EVERY
def test_arrays_of_meshes_take_what_each_mesh_takes(config: ModelConfig) -> None:
    sizes = [
        {"tensor": t, "context": c, "fsdp": f} for t in (1, 2, 4) for c in (1, 2) for f in (1, 4)
    ]
    many = {role: np.array([one[role] for one in sizes]) for role in sizes[0]}
    works = step(config)
    for parts in (works.matmuls, works.saved, works.transfers):
        for part in parts:
            name = "flops" if part in works.matmuls else "elements"
            together = np.broadcast_to(getattr(part, name)(many), len(sizes))
            assert list(together) == [getattr(part, name)(one) for one in sizes]


def test_element_wise_steps_by_hand() -> None:
    job, one = Train(batch=1, seq=SEQ), Layout(mesh=Mesh())
    rates = Rates(chip=parse_chip("h100"), job=job)
    m = paired().mambas[0][0]
    states = 4 * m.d_inner * m.d_state / m.chunk
    layer = 10 * 256 + 3 * 512 + 2 * m.d_scanned + 3 * m.d_inner + states
    assert elementwise_bytes(paired(), one, rates) == SEQ * 4 * layer * 2
    single = ModelConfig(
        name="s", d_model=256, vocab=8, groups=hybrid().groups[2:]
    )  # two layers of attention alone: one norm and one sum in each
    assert elementwise_bytes(single, one, rates) == SEQ * 2 * (5 * 256 + 2 * 12 * 32) * 2


def test_states_are_sent_over_context() -> None:
    system, job = parse_system("h100:8"), Train(batch=BATCH, seq=SEQ)
    layout = Layout(mesh=Mesh(context=8), micro_batch=BATCH)
    works = LayoutStep(paired(), system, job, layout)
    sent = works.time().traffic_s["context"]
    m = paired().mambas[0][0]
    n_bytes = BATCH * m.d_inner * m.d_state * 2 * 8
    each = works.costs.price("all_gather", ("context",)).time_s(n_bytes)
    assert sent == pytest.approx(2 * 4 * each, rel=1e-12)
    alone = LayoutStep(
        paired(), parse_system("h100:1"), job, Layout(mesh=Mesh(), micro_batch=BATCH)
    )
    assert alone.time().traffic_s.get("context", 0.0) == 0


def test_experts_on_a_latent_send_less() -> None:
    system, job = parse_system("h100:8"), Train(batch=BATCH, seq=SEQ)
    layout = Layout(mesh=Mesh(expert=8))
    narrow, wide = (
        LayoutStep(config, system, job, layout).time().traffic_s["expert"]
        for config in (MODELS["latent"], MODELS["hybrid"])
    )
    assert narrow < wide / 2


def test_what_tensor_parallelism_splits() -> None:
    assert tensor_widths(MODELS["hybrid"]) == {"n_heads": 8, "d_ff": 256, "n_groups": 4}
    assert tensor_widths(paired()) == {"n_heads": 16, "d_ff": 512, "n_groups": 4}
    system, job = parse_system("h100:8"), Train(batch=BATCH, seq=SEQ)
    assert problems(paired(), system, job, {"tensor": 4}, whole=False) == []
    assert "n_groups 4 (/8 = 0.5)" in problems(paired(), system, job, {"tensor": 8}, whole=False)[0]


@EVERY
def test_the_search_plans_a_hybrid_and_the_plan_gives_its_numbers(config: ModelConfig) -> None:
    found = plan(config, parse_system("h100:16"), Train(batch=32, seq=SEQ))
    case = rebuild(found)
    assert case.model == config
    assert float(case.evaluate().time.step_s) == found.step.expected
