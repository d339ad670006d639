"""The cost of a step: arrays as scalars, bounds in order, memory by its parts."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from shardwise.errors import UnknownFigure
from shardwise.estimate.memory import GATHERED_LAYERS, held_parameters
from shardwise.estimate.prices import Prices, mesh_arrays
from shardwise.estimate.training import (
    HIDDEN_ROLES,
    StepCost,
    element_bytes,
    step_cost,
)
from shardwise.hardware import parse_system
from shardwise.models import ModelConfig, count, load
from shardwise.models.weights import layer_weights
from shardwise.ops.collective import time_s
from shardwise.ops.program import training_step
from shardwise.search import train
from shardwise.search.legal import legal_meshes
from shardwise.strategy.mesh import Mesh, Placement, place
from shardwise.strategy.rules import TRAIN
from shardwise.workload import Train

MACHINES = [
    ("llama3-8b", "v5p:4x4x4", Train(batch=64, seq=2048)),
    ("llama3-8b", "v5e:4x8*2", Train(batch=64, seq=2048, remat="full")),
    ("mixtral-8x7b", "h100:32", Train(batch=64, seq=4096)),
    ("deepseek-v2-lite", "v6e:8x8", Train(batch=128, seq=1024, compute="bf16")),
    ("gemma2-9b", "gb200:72", Train(batch=144, seq=4096)),
]


@functools.cache
def strategies(name: str, machine: str, job: Train) -> list[tuple[Mesh, Placement]]:
    config, system = load(name), parse_system(machine)
    pairs = [
        (mesh, placement)
        for mesh in legal_meshes(config, job, system, {})
        for placement in place(system, mesh.sizes)
    ]
    return pairs[:: max(1, len(pairs) // 25)]


def numbers(cost: StepCost) -> dict[str, object]:
    memory = cost.memory
    found = {
        name: getattr(cost, name)
        for name in ("compute_s", "hbm_s", "roofline_s", "lower", "expected", "upper")
    }
    parts = ("weights", "gradients", "optimizer", "activations", "other", "total", "fits")
    return found | {part: getattr(memory, part) for part in parts}


@pytest.mark.parametrize(("name", "machine", "job"), MACHINES)
def test_arrays_of_strategies_cost_what_each_costs(name: str, machine: str, job: Train) -> None:
    config, system = load(name), parse_system(machine)
    pairs = strategies(name, machine, job)
    assert len(pairs) >= 10
    for remat in train.remat_policies(job):
        step = training_step(config, job.batch, job.seq, TRAIN, remat=remat)
        mesh = mesh_arrays([m.sizes for m, _ in pairs])
        prices = Prices([p for _, p in pairs])
        together = step_cost(config, job, step, TRAIN, system.chip, mesh, prices, remat=remat)
        columns = {k: np.broadcast_to(v, (len(pairs),)) for k, v in numbers(together).items()}
        for i, (one, placement) in enumerate(pairs):
            alone = train.evaluate(config, job, system, one, placement, remat).cost
            for key, value in numbers(alone).items():
                assert columns[key][i] == pytest.approx(value, rel=1e-12), f"{one}: {key}"


@pytest.mark.parametrize(("name", "machine", "job"), MACHINES)
def test_bounds_of_every_strategy(name: str, machine: str, job: Train) -> None:
    config, system = load(name), parse_system(machine)
    peak = system.chip.peak(job.compute)
    flops = count.model_flops_per_token(config, job.seq) * job.tokens_per_step
    for mesh, placement in strategies(name, machine, job):
        cost = train.evaluate(config, job, system, mesh, placement, "none").cost
        assert cost.lower <= cost.expected <= cost.upper * (1 + 1e-12)
        assert cost.roofline_s >= max(cost.compute_s, cost.hbm_s) * (1 - 1e-12)
        assert cost.roofline_s <= (cost.compute_s + cost.hbm_s) * (1 + 1e-12)
        ideal = flops / system.n_chips / peak
        assert cost.compute_s >= ideal * (1 - 1e-12)
        assert cost.upper == pytest.approx(cost.roofline_s + sum(cost.comm_s.values()), rel=1e-12)
        assert all(seconds > 0 for seconds in cost.comm_s.values())


@pytest.mark.parametrize(("name", "machine", "job"), MACHINES)
def test_shards_of_the_state_add_up(name: str, machine: str, job: Train) -> None:
    """Weights and optimizer state of all chips are those of the model, times the replicas."""
    config, system = load(name), parse_system(machine)
    total = count.parameters(config).total
    for mesh, placement in strategies(name, machine, job):
        memory = train.evaluate(config, job, system, mesh, placement, "none").cost.memory
        sharded = held_parameters(config, TRAIN, mesh.sizes) * system.n_chips / mesh.data
        assert memory.weights == held_parameters(config, TRAIN, mesh.sizes) * 2
        assert memory.gradients == memory.weights
        assert memory.optimizer == 4 * memory.weights
        # Norms, and key heads that are fewer than the chips, are held more than once.
        assert sharded >= total
        if not config.is_moe and config.n_kv_heads % mesh.tensor == 0:
            assert sharded <= total * 1.01


def test_memory_of_one_chip() -> None:
    config = load("llama3.2-1b")
    job = Train(batch=2, seq=1024, master="fp32")
    system = parse_system("h100:1")
    (placement,) = place(system, {})
    cost = train.evaluate(config, job, system, Mesh(), placement, "none").cost
    total, memory = count.parameters(config).total, cost.memory
    assert memory.weights == 2 * total
    assert memory.optimizer == 12 * total
    assert memory.activations == count.activation_bytes(config, 2048)
    assert memory.other == 2 * 2048 * config.vocab * 4  # logits and their gradient
    parts = memory.weights + memory.gradients + memory.optimizer + memory.activations + memory.other
    assert memory.total == parts
    assert memory.capacity == system.chip.hbm_bytes
    assert cost.comm_s == {}
    assert cost.lower == cost.expected == cost.upper == cost.roofline_s


def test_gathered_weights_of_two_layers() -> None:
    config = load("llama2-7b")
    job, system = Train(batch=8, seq=512), parse_system("h100:8")
    (placement,) = place(system, {"fsdp": 8})
    memory = train.evaluate(config, job, system, Mesh(fsdp=8), placement, "none").cost.memory
    layer = sum(w.size for w in layer_weights(config, config.main_layer))
    in_layer = (2 * GATHERED_LAYERS + 2) * layer  # and the gradient of the layer at work
    assert memory.other == in_layer


def test_the_head_is_the_peak_of_a_wide_vocabulary() -> None:
    config, job = load("llama3.2-1b"), Train(batch=8, seq=4096)
    system = parse_system("h100:8")
    (placement,) = place(system, {"fsdp": 8})
    memory = train.evaluate(config, job, system, Mesh(fsdp=8), placement, "none").cost.memory
    head = config.vocab * config.d_model
    assert memory.other == 2 * 4096 * config.vocab * 4 + (2 + 2) * head


def test_full_remat_keeps_its_largest_layer() -> None:
    config, job = load("deepseek-v3"), Train(batch=1, seq=1024, remat="full")
    step = training_step(config, 1, 1024, TRAIN, remat="full")
    system = parse_system("h100:1")
    (placement,) = place(system, {})
    memory = train.evaluate(config, job, system, Mesh(), placement, "full").cost.memory
    inputs = sum(k.elements({}) for k in step.layer_inputs)
    groups = [
        sum(k.elements({}) / k.count for k in step.kept if k.group == i)
        for i in range(len(config.groups))
    ]
    assert len(set(groups)) == 2
    assert memory.activations == 2 * (inputs + max(groups))


def test_full_remat_keeps_less_and_computes_more() -> None:
    config, job, system = load("llama3-8b"), Train(batch=64, seq=4096), parse_system("v5p:4x4x4")
    placement = place(system, {"fsdp": 64})[0]
    none, full = (
        train.evaluate(config, job, system, Mesh(fsdp=64), placement, remat).cost
        for remat in ("none", "full")
    )
    assert full.memory.activations < none.memory.activations
    assert full.memory.weights == none.memory.weights
    counts = count.flops(config, 4096)
    unread = 2 * config.d_model * config.d_ff * config.n_layers  # the down projection
    again = float(counts.forward - counts.unembedding) - unread
    ratio = 1 + again / float(counts.training)
    assert full.compute_s / none.compute_s == pytest.approx(ratio, rel=1e-12)


def test_the_gathers_of_fsdp_by_hand() -> None:
    """V / (n_ax W) for each layer's weights, twice, and once for its gradients. Book §5."""
    config, job, system = load("llama2-7b"), Train(batch=64, seq=4096), parse_system("v5p:4x4x4")
    placement = place(system, {"fsdp": 64})[0]
    cost = train.evaluate(config, job, system, Mesh(fsdp=64), placement, "none").cost
    span = placement.span(("fsdp",))
    layer = sum(
        3 * time_s("all_gather", 2.0 * w.size, span)
        for w in layer_weights(config, config.main_layer)
        if w.matmul
    )
    ends = config.vocab * config.d_model * 2.0
    # The embedding is read once forward; its gradient, and the head's, are reduced once.
    outer = 5 * time_s("all_gather", ends, span)
    assert cost.comm_s == {"fsdp": pytest.approx(32 * layer + outer, rel=1e-12)}


def test_dtypes_of_what_is_sent() -> None:
    step = training_step(load("llama3-8b"), 8, 512, TRAIN, remat="none")
    weights = step.weights
    assert {"wq", "w_down", "embedding", "unembedding"} <= weights
    assert not weights & {"k", "v", "x", "y"}
    job = Train(batch=8, seq=512, weights="fp8", compute="fp8", gradients="fp32")
    assert element_bytes("wq", weights, job) == 1
    assert element_bytes("dwq", weights, job) == 4
    assert element_bytes("x", weights, job) == element_bytes("dx", weights, job) == 2
    fp32 = Train(batch=8, seq=512, compute="fp32")
    assert element_bytes("x", weights, fp32) == 4


def test_what_is_hidden() -> None:
    """A gather of weights runs beside the compute; what a layer waits for does not."""
    cost = StepCost(
        compute_s=3.0, hbm_s=1.0, roofline_s=3.0, memory=None,  # type: ignore[arg-type]
        comm_s={"fsdp": 2.0, "data": 2.0, "tensor": 0.5, "context": 0.25},
    )  # fmt: skip
    assert HIDDEN_ROLES == ("fsdp", "data")
    assert (cost.lower, cost.expected, cost.upper) == (3.0, 4.75, 7.75)


def test_a_figure_that_is_missing() -> None:
    config, job = load("llama3-8b"), Train(batch=8, seq=512, compute="int4")
    system = parse_system("h100:4")
    placement = place(system, {"fsdp": 4})[0]
    with pytest.raises(UnknownFigure, match="h100 has no figure for the dense peak at int4"):
        train.evaluate(config, job, system, Mesh(fsdp=4), placement, "none")


def test_a_model_from_hand() -> None:
    config = ModelConfig.dense(n_layers=2, d_model=64, d_ff=256, n_heads=4, vocab=1000)
    job, system = Train(batch=4, seq=128, remat="none"), parse_system("v5e:2x2")
    for mesh in legal_meshes(config, job, system, {}):
        for placement in place(system, mesh.sizes):
            cost = train.evaluate(config, job, system, mesh, placement, "none").cost
            assert 0 < cost.lower < math.inf
