"""What frameworks keep in memory beyond a layout, against bytes worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest

from shardwise.estimate.chip_memory import DRIVER_BYTES, Memory
from shardwise.estimate.training.memory.framework import (
    DEFAULT_FRAMEWORK,
    NCCL_BYTES,
    FrameworkMemory,
    planned_framework,
)
from shardwise.estimate.training.memory.peak import FRAGMENTATION, step_memory
from shardwise.models import ModelConfig, count, load
from shardwise.models.weights import layer_weights
from shardwise.ops.program import training_step
from shardwise.strategy.layout import Layout, table
from shardwise.strategy.mesh import Mesh
from shardwise.vocabulary import LAYER
from shardwise.workload import Train

JOB = Train(batch=8, seq=1024, gradients="bf16", master="fp32")
SMALL = ModelConfig.dense(n_layers=8, d_model=256, d_ff=1024, n_heads=4, vocab=8192)
PIPED = Layout(mesh=Mesh(pipe=2, data=4), zero=1, n_microbatches=8, schedule="1f1b")


def memory(
    config: ModelConfig,
    layout: Layout,
    software: FrameworkMemory = DEFAULT_FRAMEWORK,
    job: Train = JOB,
) -> Memory:
    batch = layout.micro_batch * layout.data_shards
    step = training_step(config, batch, job.seq, table(layout), remat=layout.policy)
    return step_memory(config, job, step, layout, 80e9, software)


# With few logits the first stage of a pipeline is the fullest.
FEW = dataclasses.replace(PIPED, loss_chunks=64)


def test_gpus_take_memory_to_join_a_job() -> None:
    one = memory(SMALL, Layout(mesh=Mesh()), planned_framework("gpu"))
    assert one.margin == DRIVER_BYTES + FRAGMENTATION * one.total
    some = memory(SMALL, Layout(mesh=Mesh(data=2)), planned_framework("gpu"))
    assert some.margin == pytest.approx(DRIVER_BYTES + NCCL_BYTES + FRAGMENTATION * some.total)
    torus = memory(SMALL, Layout(mesh=Mesh(data=2)), planned_framework("tpu"))
    assert torus.margin == DRIVER_BYTES + FRAGMENTATION * torus.total


@pytest.mark.parametrize(("seq", "share"), [(256, 1.0), (512, 0.625)])
@pytest.mark.parametrize(("compute", "n_arrays"), [("fp32", 5), ("bf16", 8)])
def test_one_cpu_device_has_all_scores_of_a_layer(
    seq: int, share: float, compute: str, n_arrays: int
) -> None:
    """Several devices have them one after another."""
    job = dataclasses.replace(JOB, seq=seq, compute=compute)
    few = dataclasses.replace(SMALL, vocab=256)
    cpu = planned_framework("cpu")
    one, other = (
        memory(few, Layout(mesh=Mesh(), micro_batch=8), software, job)
        for software in (cpu, DEFAULT_FRAMEWORK)
    )
    scores = 8 * 4 * seq**2  # sequences, heads
    assert one.other - other.other == pytest.approx(4 * n_arrays * share * scores)
    two = Layout(mesh=Mesh(data=2), micro_batch=4)
    assert memory(few, two, cpu, job) == memory(few, two, job=job)


def test_experts_on_cpus_have_a_slot_for_every_token() -> None:
    """Their arrays are four times as large where two of eight are chosen."""
    model = load("mixtral-8x7b,n_layers=1,d_model=64,d_ff=128,n_heads=4,n_kv_heads=2,vocab=256")
    layout = Layout(mesh=Mesh(), micro_batch=8)
    padded, routed = (
        memory(model, layout, FrameworkMemory(padded_experts=is_padded)).activations
        for is_padded in (True, False)
    )
    copies = 8 * 1024 * 2 * (64 + 3 * 128)  # inputs, gate, up and hidden of both experts
    assert padded - routed == pytest.approx(JOB.activation_bytes * 3 * copies)


def test_a_norm_copies_the_part_of_the_largest_gradient_that_a_chip_updates() -> None:
    layer = sum(w.size for w in layer_weights(SMALL, SMALL.main_layer))
    stage = 4 * layer + 8192 * 256
    shard = stage / 4
    assert shard < 8192 * 256  # the embedding is larger
    plain, copied = (memory(SMALL, FEW, FrameworkMemory(norm_bytes=n)) for n in (0.0, 12.0))
    assert plain.gradients == 2 * stage + 4 * shard
    assert copied.gradients == 2 * stage + 12 * shard  # the cast lies in the same room
    whole = dataclasses.replace(FEW, mesh=Mesh(pipe=2))
    found = memory(SMALL, whole, FrameworkMemory(norm_bytes=12.0))
    assert found.gradients == 2 * stage + max(4 * stage, 12 * 8192 * 256)


def test_a_gradient_is_cast_before_it_is_added() -> None:
    job = dataclasses.replace(JOB, gradients="fp32")
    plain = memory(SMALL, PIPED, FrameworkMemory(gradient_copies=1), job)
    cast = memory(SMALL, PIPED, FrameworkMemory(gradient_copies=1, cast_bytes=4.0), job)
    assert cast.gradients - plain.gradients == 4 * 8192 * 256


def test_buckets_are_of_gradients_and_of_weights() -> None:
    plain, some = (memory(SMALL, PIPED, FrameworkMemory(bucket_elements=n)) for n in (0.0, 1e6))
    assert some.other - plain.other == (2 + 2) * 1e6
    job = dataclasses.replace(JOB, gradients="fp32")
    plain, some = (
        memory(SMALL, PIPED, FrameworkMemory(bucket_elements=n), job) for n in (0.0, 1e6)
    )
    assert some.other - plain.other == (4 + 2) * 1e6


def test_the_embedding_keeps_its_mask_for_each_microbatch_in_flight() -> None:
    plain, kept = (memory(SMALL, FEW, FrameworkMemory(embedding_mask_bytes=m)) for m in (0.0, 1.0))
    assert kept.activations - plain.activations == 2 * 1024 * 256


def test_ends_of_the_model_take_the_place_of_a_layer() -> None:
    """10 places on 2 stages: 4 layers and an end each; on 4 stages 3 places, 2 layers at an end."""
    layer = sum(w.size for w in layer_weights(SMALL, SMALL.main_layer))
    software = FrameworkMemory(outer_as_layers=True)
    assert memory(SMALL, PIPED, software).weights == memory(SMALL, PIPED).weights
    four = dataclasses.replace(PIPED, mesh=Mesh(pipe=4, data=2))
    narrow = dataclasses.replace(SMALL, vocab=512)
    assert memory(narrow, four, software).weights == 2 * 3 * layer  # a stage between
    assert memory(SMALL, four, software).weights == 2 * (2 * layer + 8192 * 256)


def test_gradients_in_place() -> None:
    config = load("llama3-8b")
    layout = Layout(mesh=Mesh(), recomputed=(LAYER,), loss_chunks=64)
    D, F, kv = 4096, 14336, 1024
    plain = memory(config, layout)
    written = memory(config, layout, FrameworkMemory(in_place_gradients=True))
    every = 6 * D + 2 * kv + 3 * F
    assert plain.other == 2 * 1024 * (every + every - D)
    assert written.other == 2 * 1024 * (D + F + every - D)


def test_weights_that_were_whole_leave_their_room() -> None:
    config, layout = load("llama3-8b"), Layout(mesh=Mesh(fsdp=8), zero=3, recomputed=(LAYER,))
    layout = dataclasses.replace(layout, offload=("gradients", "optimizer"), loss_chunks=64)
    whole = 2 * count.parameters(config).total
    software = FrameworkMemory(full_weights_at_start=True, in_place_gradients=True)
    few = memory(config, layout, software)
    assert few.total == pytest.approx(whole, rel=1e-9)  # all arrays lie in it
    long = dataclasses.replace(JOB, seq=2**18)  # no array fits
    plain = memory(config, layout, dataclasses.replace(software, full_weights_at_start=False), long)
    kept = memory(config, layout, software, long)
    gathered = 6 * sum(w.size for w in layer_weights(config, config.main_layer))
    assert kept.total - plain.total == pytest.approx(whole - whole / 8 - gathered, rel=1e-9)


def test_without_a_compiler_results_are_kept_that_nothing_reads() -> None:
    config = load("llama3-8b")
    parts = ("norms", "k", "out", "up", "activation")
    layout = Layout(mesh=Mesh(), recomputed=parts)
    plain, eager = (memory(config, layout, FrameworkMemory(compiled=c)) for c in (True, False))
    assert eager.activations - plain.activations == 2 * 1024 * 4096 * config.n_layers
    again = dataclasses.replace(layout, recomputed=(*parts, "down"))
    plain, eager = (memory(config, again, FrameworkMemory(compiled=c)) for c in (True, False))
    assert eager.activations == plain.activations
