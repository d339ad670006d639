"""A step of training of an architecture, against transformers and PyTorch's AdamW.

Compared are the number of parameters, the loss, the gradients and the weights after the step; these
are then exported, and transformers loads them without a missing key and has the same loss.

Architectures whose layers differ are compared, and all 39 with SHARDWISE_FAMILIES=all in the
environment. Logits and files of all of them are always compared (`test_runtime`,
`test_checkpoints`).
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from shardwise.models import count, load
from shardwise.workload import Train
from tests.oracle import xla
from tests.oracle.test_checkpoints import CASES, scrambled_model, write_config

pytestmark = pytest.mark.oracle

BATCH, SEQ, RATE, DECAY = 2, 24, 1e-3, 0.1
# Both sides compute in fp32, and their sums differ in order: losses and gradients of a few units by
# their rounding. AdamW divides a gradient by its size, so that noise about 0 becomes whole steps:
# weights are compared where the gradient is above that noise.
LOSS, GRADIENT, WEIGHT, NOISE = 1e-5, 1e-4, 2e-6, 1e-6
# XLA spends most of a row's time on optimizations that a tiny step does not need.
COMPILER_OPTIONS = {
    "xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}  # fmt: skip

ARCHITECTURES = {kind: name for name, (kind, _) in reversed(CASES.items())}  # type -> first case
# Between them every kind of attention, norm, feed-forward layer, router, factor and fused weight.
DIFFERENT = (
    "cohere2", "deepseek_v2", "deepseek_v3", "exaone4", "falcon", "gemma2", "gemma3_text", "glm4",
    "gpt2", "gpt_neox", "gpt_oss", "granite", "granitemoeshared", "llama", "llama4_text", "mixtral",
    "nemotron", "olmo", "olmoe", "phi3", "qwen2_moe", "stablelm",
)  # fmt: skip
COMPARED = sorted(ARCHITECTURES) if os.environ.get("SHARDWISE_FAMILIES") == "all" else DIFFERENT


def test_architectures_that_are_compared():
    assert len(ARCHITECTURES) == 39
    assert set(DIFFERENT) < set(ARCHITECTURES)


@pytest.fixture(scope="module", params=COMPARED)
def trained(request, tmp_path_factory):
    """Weights, gradients and weights after a step of PyTorch, as transformers saves them."""
    torch = pytest.importorskip("torch")
    name = ARCHITECTURES[request.param]
    folder = tmp_path_factory.mktemp("trained")
    model = scrambled_model(name)
    text = torch.randint(3, 90, (BATCH, SEQ + 1), generator=torch.Generator().manual_seed(1))
    update = torch.optim.AdamW(
        model.parameters(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=DECAY
    )
    save(model, folder / "before")
    loss = loss_of(model, text)
    loss.backward()
    update.step()
    save(model, folder / "after")
    with torch.no_grad():
        later_loss = float(loss_of(model, text))
        for parameter in model.parameters():
            parameter.copy_(
                torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            )
    save(model, folder / "gradients")
    write_config(folder / "before", name)
    n_parameters = sum(p.numel() for p in model.parameters())
    return SimpleNamespace(
        name=name, folder=folder, text=text, loss=loss.item(), later_loss=later_loss,
        n_parameters=n_parameters,
    )  # fmt: skip


def save(model, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder)


def loss_of(model, text):
    import torch

    logits = model(text[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


def keeping(step):
    """The optimizer of the runtime, whose state also has the gradients that it was given."""
    import optax

    from shardwise.runtime.training.optimizers import optimizer

    return optax.chain(
        optax.trace(0.0), optimizer("adamw", RATE, step.infos, b1=0.9, b2=0.95, decay=DECAY)
    )


def one_step(config, folder, text):
    """(step, loss, gradients, weights after it) of the runtime on one device."""
    jax = xla.load()
    import jax.numpy as jnp

    from shardwise.runtime.weights.published_weights import load_weights
    from shardwise.strategy.layout import Layout
    from shardwise.strategy.mesh import Mesh
    from tests.unit.runtime.steps import step_on

    job = Train(
        batch=BATCH, seq=SEQ, weights="fp32", compute="fp32", gradients="fp32", moments="fp32",
        master=None,
    )  # fmt: skip
    step = step_on(config, job, Layout(mesh=Mesh(), micro_batch=BATCH), keeping)
    weights = load_weights(folder, config, step.table, jnp.float32)
    shapes, batch = step.shapes()
    state = {"weights": weights, "moments": step.optimizer.init(weights)}
    tokens = {"tokens": text[:, :-1], "targets": text[:, 1:]}
    given = {k: jnp.asarray(x, jnp.int32).reshape(batch[k].shape) for k, x in tokens.items()}
    compiled = jax.jit(step.function()).lower(shapes, batch).compile(COMPILER_OPTIONS)
    state, loss = compiled(state, given)
    return step, float(loss), state["moments"][0].trace, state["weights"]


def test_a_step_and_its_export_equal_transformers(trained, tmp_path):
    jax = xla.load()
    import jax.numpy as jnp

    from shardwise.runtime.weights.published_weights import load_weights, save_weights

    config = load(trained.folder / "before")
    assert config.unused_keys == ()
    assert count.parameters(config).total == trained.n_parameters
    step, loss, gradients, weights = one_step(
        config, trained.folder / "before", trained.text.numpy()
    )
    assert abs(loss - trained.loss) < LOSS * trained.loss
    compared = 0
    wanted = [
        load_weights(trained.folder / part, config, step.table, jnp.float32)
        for part in ("gradients", "after")
    ]
    for (path, g), w, wanted_g, wanted_w in zip(
        jax.tree_util.tree_leaves_with_path(gradients),
        *(jax.tree.leaves(tree) for tree in (weights, *wanted)),
        strict=True,
    ):
        if "router_correction" in str(path):  # a running statistic, which no step changes
            assert np.array_equal(w, wanted_w)
            continue
        largest = np.abs(wanted_g).max()
        assert np.abs(g - wanted_g).max() <= GRADIENT * max(largest, NOISE / GRADIENT), path
        is_clear = (np.abs(wanted_g) > NOISE) | ((wanted_g == 0) & (g == 0))
        compared += int(is_clear.sum())
        assert np.abs(w - wanted_w)[is_clear].max(initial=0) < WEIGHT, path
    assert compared > 0.9 * trained.n_parameters
    exported_model_has_the_loss(trained, config, weights, tmp_path, save_weights)


@pytest.mark.parametrize("trained", ["granite"], indirect=True)
def test_a_wrong_factor_shows(trained):
    config = dataclasses.replace(load(trained.folder / "before"), residual_scale=1.0)
    _, loss, _, _ = one_step(config, trained.folder / "before", trained.text.numpy())
    assert abs(loss - trained.loss) > 10 * LOSS * trained.loss


def exported_model_has_the_loss(trained, config, weights, folder, save_weights):
    import torch
    from transformers import AutoModelForCausalLM

    save_weights(folder, config, weights)
    write_config(folder, trained.name)
    way = "sdpa" if CASES[trained.name][1].get("alibi") else "eager"
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, attn_implementation=way
    )
    problems = {key: sorted(map(str, keys)) for key, keys in report.items() if keys}
    assert problems == {}
    with torch.no_grad():
        loss = float(loss_of(model.eval(), trained.text))
    assert abs(loss - trained.later_loss) < LOSS * loss
