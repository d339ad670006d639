"""Two ways to count one thing agree: the derived step against the model's own counts."""

from __future__ import annotations

import functools

import pytest

from shardwise.estimate.training.gradient_sync import gradient_groups
from shardwise.estimate.training.memory.peak import step_memory
from shardwise.models import ModelConfig, Moe, count, load, names
from shardwise.ops.program import Step, training_step
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from shardwise.strategy.rules import TRAIN, only
from shardwise.strategy.stages import stages
from shardwise.workload import Train

BATCH, SEQ = 8, 512
EVERY = pytest.mark.parametrize("name", names())


@functools.cache
def model(name: str) -> ModelConfig:
    return load(name)


@functools.cache
def step(name: str, remat: str = "none") -> Step:
    return training_step(model(name), BATCH, SEQ, TRAIN, remat=remat)


def flops(name: str, mesh: dict[str, int], remat: str = "none", *phases: str) -> float:
    works = [m for m in step(name, remat).matmuls if not phases or m.phase in phases]
    return sum(float(m.flops(mesh)) for m in works)


@EVERY
def test_flops_of_a_step_on_one_chip(name: str) -> None:
    expected = count.model_flops_per_token(model(name), SEQ) * BATCH * SEQ
    assert flops(name, {}) == pytest.approx(float(expected), rel=1e-12)


@EVERY
def test_the_backward_pass_is_two_forward_passes(name: str) -> None:
    forward = flops(name, {}, "none", "forward")
    assert flops(name, {}, "none", "backward") == pytest.approx(2 * forward, rel=1e-12)


@EVERY
def test_full_remat_runs_the_layers_once_more_but_for_what_nothing_reads(name: str) -> None:
    """The product that ends a layer is added to the residual; only a norm behind it reads it."""
    config = model(name)
    unread = 0
    for group in config.groups:
        layer, ffn = group.layer, group.layer.ffn
        if layer.norms in ("post", "both"):
            continue
        widths = [ffn.d_ff]
        if isinstance(ffn, Moe):
            widths = [ffn.d_ff * ffn.experts_per_token, ffn.d_ff_shared]
        if layer.parallel:
            widths.append(layer.attention.n_heads * layer.attention.d_head_v)
        unread += group.count * 2 * config.d_model * sum(widths) * BATCH * SEQ
    counts = count.flops(config, SEQ)
    layers = float(counts.forward - counts.unembedding) * BATCH * SEQ
    again = flops(name, {}, "full") - flops(name, {})
    assert again == pytest.approx(layers - unread, rel=1e-12)


@EVERY
def test_what_the_layers_keep_is_what_the_model_says(name: str) -> None:
    kept = sum(k.elements({}) for k in step(name).saved)
    assert kept == count.activation_bytes(model(name), BATCH * SEQ, element=1)
    inputs = sum(k.elements({}) for k in step(name).layer_inputs)
    assert inputs == count.activation_bytes(model(name), BATCH * SEQ, "full", element=1)


@EVERY
def test_nothing_is_sent_on_one_chip(name: str) -> None:
    rules = only(TRAIN, {"data": 1, "tensor": 1})
    assert training_step(model(name), BATCH, SEQ, rules, remat="none").transfers == ()
    assert step(name).transfers


@pytest.mark.parametrize(
    "name", ["llama3-70b", "llama2-7b", "gemma2-9b", "gpt2-xl", "gpt3-175b", "palm-540b"]
)
@pytest.mark.parametrize("role", ["data", "fsdp", "tensor", "context"])
def test_chips_together_do_the_work_of_one(name: str, role: str) -> None:
    n = 2 if role != "tensor" or model(name).n_heads % 2 == 0 else 1
    together = n * flops(name, {role: n})
    assert together >= flops(name, {}) * (1 - 1e-12)
    one_key_head = role == "tensor" and model(name).n_kv_heads == 1
    odd_vocab = role == "tensor" and model(name).vocab % n
    if not one_key_head and not odd_vocab:
        assert together == pytest.approx(flops(name, {}), rel=1e-12)


def test_all_four_roles_together() -> None:
    mesh = {"data": 2, "fsdp": 2, "tensor": 4, "context": 2}
    assert 32 * flops("llama3-70b", mesh) == pytest.approx(flops("llama3-70b", {}), rel=1e-12)


@EVERY
def test_parameters_of_a_job_are_those_of_the_model(name: str) -> None:
    """What a chip holds, what it sums gradients of, and what the model counts."""
    config, one, job = model(name), Layout(mesh=Mesh()), Train(batch=BATCH, seq=SEQ)
    total = count.parameters(config).total
    summed = gradient_groups(config, one, stages(config.n_layers, one))
    assert sum(group.elements for group in summed) == total
    assert step_memory(config, job, step(name), one, 1.0).weights == 2 * total
    assert job.state_bytes == 2 + 4 + (8 + 4)  # weights, gradients, moments with an fp32 master
