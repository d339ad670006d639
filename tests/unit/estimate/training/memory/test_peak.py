"""Memory of a step on layouts whose bytes can be worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest

from shardwise.estimate.chip_memory import DRIVER_BYTES, Memory
from shardwise.estimate.training.memory.framework import LOSS_IN_PLACE, FrameworkMemory
from shardwise.estimate.training.memory.peak import FRAGMENTATION, step_memory
from shardwise.estimate.training.memory.stages import FP8_COPIES
from shardwise.models import ModelConfig, count, load
from shardwise.models.weights import layer_weights
from shardwise.ops.program import training_step
from shardwise.strategy.layout import Layout, table
from shardwise.strategy.mesh import Mesh
from shardwise.vocabulary import LAYER
from shardwise.workload import Train

MIXED = Train(batch=8, seq=1024, gradients="fp32", master="fp32")
H100 = 80e9
PLANNED = FrameworkMemory()


def memory(
    config: ModelConfig,
    layout: Layout,
    job: Train = MIXED,
    software: FrameworkMemory = PLANNED,
    capacity: float = H100,
) -> Memory:
    batch = layout.micro_batch * layout.data_shards
    step = training_step(config, batch, job.seq, table(layout), remat=layout.policy)
    return step_memory(config, job, step, layout, capacity, software)


def test_state_of_one_chip() -> None:
    config = load("llama3.2-1b")
    total = count.parameters(config).total
    found = memory(config, Layout(mesh=Mesh(), micro_batch=2))
    assert found.weights == 2 * total
    assert found.gradients == 4 * total
    assert found.optimizer == 12 * total
    assert found.activations == count.activation_bytes(config, 2048)
    head_input = 2 * 2048 * config.d_model * 2  # and its gradient
    assert found.other == 8 * 2048 * config.vocab + head_input
    assert found.margin == DRIVER_BYTES + FRAGMENTATION * found.total


@pytest.mark.parametrize(
    ("zero", "mesh", "shares"),
    [
        (0, Mesh(data=8), (1, 1, 1)),
        (1, Mesh(data=8), (1, 1, 8)),
        (2, Mesh(data=4, context=2), (1, 8, 8)),
        (3, Mesh(fsdp=4, context=2), (8, 8, 8)),
        (3, Mesh(data=2, fsdp=4), (4, 4, 4)),
    ],
)
def test_what_zero_shards(zero: int, mesh: Mesh, shares: tuple[int, int, int]) -> None:
    config = load("llama3-8b")
    total = count.parameters(config).total
    found = memory(config, Layout(mesh=mesh, zero=zero))
    assert found.weights == 2 * total / shares[0]
    assert found.gradients == 4 * total / shares[1]
    assert found.optimizer == 12 * total / shares[2]


def test_experts_are_dealt_out_and_all_else_is_sharded_over_them_too() -> None:
    config = load("mixtral-8x7b")
    parameters = count.parameters(config).total
    experts = sum(
        w.size * g.count
        for g in config.groups
        for w in layer_weights(config, g.layer)
        if w.dims[0] == "E"
    )
    dense = parameters - experts
    found = memory(config, Layout(mesh=Mesh(data=2, expert=4), zero=1))
    assert found.weights == 2 * (dense + experts / 4)
    assert found.optimizer == 12 * (dense / 8 + experts / 4 / 2)


def test_whole_experts_on_tensor() -> None:
    """Experts split or whole over `tensor`: the same weights, fewer tokens sent to each chip."""
    config = load("mixtral-8x7b")
    split = Layout(mesh=Mesh(data=2, tensor=4), sequence_parallel=True)
    whole = dataclasses.replace(split, expert_tensor=1)
    a, b = memory(config, split), memory(config, whole)
    assert a.weights == b.weights
    assert a.activations > b.activations


def test_stages_of_1f1b() -> None:
    """The first stage holds p microbatches of its layers, and the embedding."""
    config = ModelConfig.dense(n_layers=8, d_model=256, d_ff=1024, n_heads=4, vocab=512)
    piped = Layout(mesh=Mesh(pipe=4), n_microbatches=8, schedule="1f1b")
    layer = sum(w.size for w in layer_weights(config, config.main_layer))
    found = memory(config, piped)
    one = count.activation_bytes(config, 1024)
    assert found.weights == 2 * (2 * layer + 512 * 256)
    assert found.activations == 4 * one / 4
    few = dataclasses.replace(piped, n_microbatches=2)
    assert memory(config, few).activations == 2 * one / 4


def test_the_last_stage_is_the_fullest_of_a_wide_vocabulary() -> None:
    config = ModelConfig.dense(n_layers=4, d_model=256, d_ff=512, n_heads=4, vocab=500_000)
    found = memory(config, Layout(mesh=Mesh(pipe=4), n_microbatches=4, schedule="1f1b"))
    assert found.activations == count.activation_bytes(config, 1024) / 4  # one in flight
    assert found.other > 8 * 1024 * config.vocab


def test_uneven_layers_fill_a_stage() -> None:
    config = ModelConfig.dense(n_layers=9, d_model=256, d_ff=1024, n_heads=4, vocab=512)
    layer = sum(w.size for w in layer_weights(config, config.main_layer))
    piped = Layout(mesh=Mesh(pipe=2), n_microbatches=4, schedule="interleaved", virtual=2)
    assert memory(config, piped).weights == 2 * (6 * layer + 512 * 256)  # ceil(9 / 4) x 2


def test_the_fullest_stage_has_the_largest_kind_of_layer() -> None:
    """3 dense and 58 routed layers on 16 stages of 4: one stage has routed layers only."""
    config = load("deepseek-v3")
    found = memory(config, Layout(mesh=Mesh(pipe=16), n_microbatches=16, schedule="1f1b"))
    routed = max(sum(w.size for w in layer_weights(config, g.layer)) for g in config.groups)
    ends = config.vocab * config.d_model
    assert found.weights == 2 * (4 * routed + ends)


def test_stages_of_equal_work() -> None:
    """8 layers and a head as heavy as 2 of them: over half of 10 is 6 layers, and 3 the rest."""
    config = ModelConfig.dense(n_layers=8, d_model=256, d_ff=1024, n_heads=4, vocab=8192)
    layer = sum(w.size for w in layer_weights(config, config.main_layer))
    assert 2 * layer == pytest.approx(config.vocab * config.d_model, rel=1e-3)
    piped = Layout(mesh=Mesh(pipe=2), n_microbatches=64, micro_batch=8, schedule="gpipe")
    found = memory(config, piped, software=FrameworkMemory(stages_by_work=True))
    assert found.weights == 2 * (6 * layer + config.vocab * config.d_model)
    assert memory(config, piped).weights == 2 * (4 * layer + 8192 * 256 + 256)


def test_the_root_unit_is_gathered_as_one() -> None:
    config = load("llama3-8b")
    layout = Layout(mesh=Mesh(fsdp=8), zero=3, micro_batch=4, recomputed=(LAYER,))
    own, root = (
        memory(config, layout),
        memory(config, layout, software=FrameworkMemory(root_unit=True)),
    )
    embedding, final_norm = config.vocab * config.d_model, config.d_model
    assert root.other - own.other == (2 + 4) * (embedding + final_norm)


def test_dualpipe_holds_its_layers_twice_and_both_ends() -> None:
    config = ModelConfig.dense(n_layers=8, d_model=256, d_ff=1024, n_heads=4, vocab=512)
    total = count.parameters(config).total
    layer = sum(w.size for w in layer_weights(config, config.main_layer))
    found = memory(config, Layout(mesh=Mesh(pipe=4), n_microbatches=8, schedule="dualpipe"))
    assert found.weights == 2 * (total - 4 * layer)
    assert found.activations == 5 * count.activation_bytes(config, 1024) / 4  # p + 1 of p parts


def test_what_remat_keeps_of_a_layer() -> None:
    config = load("llama3-8b")
    tokens, D, F, kv = 1024, 4096, 14336, 1024

    def kept(*parts: str) -> float:
        layout = Layout(mesh=Mesh(), recomputed=parts)
        return float(memory(config, layout).activations) / (2 * tokens * config.n_layers)

    assert kept() == 6 * D + 2 * kv + 3 * F
    assert kept("attention") == kept()  # flash attention stores no scores; its result is read
    assert kept("norms", "activation") == 4 * D + 2 * kv + 2 * F
    assert kept("norms", "attention", "activation") == 3 * D + 2 * kv + 2 * F
    assert kept("norms", "k", "out", "up", "activation") == 3 * D + kv + F
    full = memory(config, Layout(mesh=Mesh(), recomputed=(LAYER,)))
    assert full.activations == 2 * tokens * config.n_layers * D
    some = memory(config, Layout(mesh=Mesh(), recomputed=(LAYER,), remat_layers=8))
    none = memory(config, Layout(mesh=Mesh()))
    assert some.activations == (8 * full.activations + 24 * none.activations) / 32


def test_mla_runs_its_up_projections_again() -> None:
    config = load("deepseek-v3")
    layout = Layout(mesh=Mesh(), recomputed=("norms", "mla_up"))
    none, some = memory(config, Layout(mesh=Mesh())), memory(config, layout)
    per_token = (none.activations - some.activations) / (2 * 1024 * config.n_layers)
    q, k, v, latents, norms = 128 * 192, 128 * 128, 128 * 128, 1536 + 576, 2 * 7168
    assert per_token == q + k + v + latents + norms


def test_scores_are_kept_without_flash_attention() -> None:
    config = load("gpt2")
    layout = Layout(mesh=Mesh())
    flash, old = (
        memory(config, layout),
        memory(config, layout, software=FrameworkMemory(flash=False)),
    )
    scores = 5 * config.n_heads * 1024**2 * config.n_layers  # arXiv 2205.05198: 5 a s^2 b
    assert old.activations - flash.activations == scores
    again = dataclasses.replace(layout, recomputed=("attention",))
    kept = memory(config, again, software=FrameworkMemory(flash=False))
    assert kept.activations == flash.activations


def test_offload_leaves_the_chip() -> None:
    config, base = load("llama3-8b"), Layout(mesh=Mesh())
    whole = memory(config, base)
    for part in ("weights", "gradients", "optimizer", "activations"):
        found = memory(config, dataclasses.replace(base, offload=(part,)))
        assert getattr(found, part) == 0 < getattr(whole, part)
    half = dataclasses.replace(base, offload=("activations",), offload_layers=16)
    assert memory(config, half).activations == whole.activations / 2


def test_gathered_layers_of_zero_3() -> None:
    config = load("llama2-7b")
    job = Train(batch=8, seq=128)
    found = memory(config, Layout(mesh=Mesh(fsdp=8), zero=3), job)
    layer = sum(w.size for w in layer_weights(config, config.main_layer))
    working = 2 * count.activation_bytes(config, 128) / config.n_layers / 2  # with gradients: once
    assert found.other == (2 * 2 + 4) * layer + working


def test_fp8_copies_of_weights() -> None:
    config = load("llama3-8b")
    wide, narrow = (
        memory(config, Layout(mesh=Mesh()), dataclasses.replace(MIXED, compute=c))
        for c in ("bf16", "fp8")
    )
    matmuls = sum(w.size for w in layer_weights(config, config.main_layer) if w.is_matmul)
    assert narrow.weights - wide.weights == FP8_COPIES * matmuls * config.n_layers
    assert memory(config, Layout(mesh=Mesh(fsdp=1), zero=3), MIXED).weights == wide.weights
    kept = memory(
        config, Layout(mesh=Mesh()), dataclasses.replace(MIXED, weights="fp8", compute="fp8")
    )
    assert wide.weights - kept.weights == (2 - FP8_COPIES) * matmuls * config.n_layers


def test_gradients_are_cast_for_a_wider_optimizer() -> None:
    config = load("llama3-8b")
    total = count.parameters(config).total
    job = dataclasses.replace(MIXED, gradients="bf16")
    found = memory(config, Layout(mesh=Mesh(data=4), zero=1), job)
    assert found.gradients == 2 * total + 4 * total / 4


def test_pieces_of_the_loss() -> None:
    config, layout = load("llama3-8b"), Layout(mesh=Mesh(), micro_batch=8, recomputed=(LAYER,))
    whole = memory(config, layout)
    pieces = memory(config, dataclasses.replace(layout, loss_chunks=32))
    assert whole.other > 8 * 8192 * config.vocab > pieces.other
    half = memory(config, dataclasses.replace(layout, loss_chunks=2))
    logits = LOSS_IN_PLACE * 8192 * config.vocab
    assert whole.other - half.other == logits / 2


@pytest.mark.parametrize("capacity", [2**30, 2**34])
def test_what_is_far_too_large_leaves_a_part_of_the_chip(capacity: float) -> None:
    """So that plans of it have a ratio of what is needed to what is there."""
    config, layout = load("llama3-70b"), Layout(mesh=Mesh(), micro_batch=1)
    whole = memory(config, layout, capacity=capacity)
    assert whole.total > 50 * capacity
    assert not whole.fits
    assert 0 < whole.margin < capacity


def test_llama3_405b_fits_where_it_was_trained() -> None:
    """16,384 H100, tensor 8 x pipe 16 x data 128, 2,048 sequences of 8,192 tokens."""
    config, job = load("llama3.1-405b"), dataclasses.replace(MIXED, batch=2048, seq=8192)
    for schedule, virtual in (("1f1b", 1), ("interleaved", 2)):
        layout = Layout(
            mesh=Mesh(tensor=8, pipe=16, data=128),
            zero=1,
            n_microbatches=16,
            schedule=schedule,
            virtual=virtual,
            sequence_parallel=True,
            recomputed=("norms", "activation"),
        )
        assert layout.global_batch == 2048
        found = memory(config, layout, job)
        assert found.fits
        assert found.total > 60e9  # it is no small part of the chip


def test_deepseek_v3_fits_where_it_was_trained() -> None:
    """2,048 H800, pipe 16 x expert 64, 15,360 sequences of 4,096 tokens."""
    config = load("deepseek-v3")
    job = dataclasses.replace(MIXED, batch=15_360, seq=4096, compute="fp8", moments="bf16")
    layout = Layout(
        mesh=Mesh(pipe=16, expert=64, data=2),
        zero=1,
        n_microbatches=120,
        schedule="dualpipe",
        recomputed=(LAYER,),
    )
    assert layout.global_batch == 15_360
    assert memory(config, layout, job).fits
