"""The time of a step: bounds in order, the book's sums by hand, and what hides."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import pytest

from shardwise.errors import UnknownFigure
from shardwise.estimate.calibration import PEAK, calibration
from shardwise.estimate.training.layout_step import LayoutStep
from shardwise.estimate.training.local_work import element_bytes
from shardwise.estimate.training.memory.framework import planned_framework
from shardwise.estimate.training.memory.peak import step_memory
from shardwise.estimate.training.run_variant import FusionProfile
from shardwise.estimate.training.step import StepTime
from shardwise.hardware import catalog_chip, parse_system
from shardwise.models import ModelConfig, count, load
from shardwise.models.weights import layer_weights
from shardwise.ops.collective import time_s
from shardwise.ops.notation import parse_array
from shardwise.ops.program import training_step
from shardwise.search.training import rank
from shardwise.strategy.layout import Layout, table
from shardwise.strategy.mesh import Mesh, place
from shardwise.strategy.rules import TRAIN
from shardwise.vocabulary import LAYER, REMAT_POLICIES
from shardwise.workload import Train
from tests.strategies import every_layout

MACHINES = [
    ("llama3-8b", "v5p:2x2x4", Train(batch=32, seq=2048)),
    ("llama3-8b", "v5e:2x4*2", Train(batch=16, seq=2048, remat="full")),
    ("mixtral-8x7b", "h100:16", Train(batch=32, seq=4096)),
    ("deepseek-v2-lite", "v6e:4x4", Train(batch=32, seq=1024)),
    ("gemma2-9b", "gb200:72", Train(batch=144, seq=4096)),
]


@functools.cache
def found(name: str, machine: str, job: Train) -> list[rank.Candidate]:
    """Some legal strategies, evaluated."""
    config, system = load(name), parse_system(machine)
    every = list(every_layout(config, system, job))
    some = every[:: max(1, len(every) // 40)]
    assert len(some) >= 20
    cal = calibration(system.chip)
    return [rank.evaluate(config, system, job, layout, cal) for layout in some]


def roofline(config: ModelConfig, system: str, job: Train, layout: Layout) -> StepTime:
    return LayoutStep(config, parse_system(system), job, layout).time()


def seconds(time: StepTime) -> list[float]:
    parts = [time.compute_s, time.head_s, time.bubble_s, time.update_s]
    return [float(s) for s in (*parts, *time.traffic_s.values(), *time.comm_s.values())]


@pytest.mark.parametrize(("name", "machine", "job"), MACHINES)
def test_bounds_of_every_strategy(name: str, machine: str, job: Train) -> None:
    for one in found(name, machine, job):
        for time in (one.time, one.roofline):
            assert min(seconds(time)) >= 0
            assert set(time.comm_s) == set(time.traffic_s)
            assert time.on_chip_s <= time.step_s * (1 + 1e-12)
            assert time.lower_s <= time.step_s * (1 + 1e-12), one.layout
            assert time.step_s <= time.upper_s * (1 + 1e-12), one.layout
        assert one.roofline.lower_s <= one.time.step_s * (1 + 1e-12), one.layout
        assert one.roofline.step_s <= one.time.step_s * (1 + 1e-12), one.layout


@pytest.mark.parametrize(("name", "machine", "job"), MACHINES)
def test_no_step_is_faster_than_its_flops(name: str, machine: str, job: Train) -> None:
    config, system = load(name), parse_system(machine)
    flops = count.model_flops_per_token(config, job.seq) * job.tokens_per_step
    ideal = flops / system.n_chips / system.chip.peak(job.compute)
    for one in found(name, machine, job):
        work = one.roofline.compute_s + one.roofline.head_s + one.roofline.bubble_s
        assert work >= ideal * (1 - 1e-12), one.layout


@pytest.mark.parametrize(("name", "machine", "job"), MACHINES)
def test_shards_of_the_state_add_up(name: str, machine: str, job: Train) -> None:
    """Weights of all chips are those of the model at least, times the replicas."""
    config, system = load(name), parse_system(machine)
    total = count.parameters(config).total
    for one in found(name, machine, job):
        mesh, layout = one.mesh, one.layout
        copies = mesh.data if layout.zero == 3 else mesh.data * mesh.context
        if layout.zero < 3 and not config.is_moe:
            copies *= mesh.expert
        held = one.memory.weights * system.n_chips / copies
        # The fullest stage of a pipeline may be the one without the last norm.
        assert held >= 2 * total * (1 - (1e-6 if mesh.pipe > 1 else 1e-12)), layout


@pytest.mark.parametrize(
    "layout",
    [
        Layout(mesh=Mesh(fsdp=32, tensor=2), zero=3, micro_batch=2, sequence_parallel=True),
        Layout(mesh=Mesh(fsdp=64), zero=3),
    ],
)
def test_a_candidate_is_its_layout_step_and_its_memory(layout: Layout) -> None:
    config, system, job = load("llama3-8b"), parse_system("v5p:4x4x4"), Train(batch=64, seq=2048)
    cal = calibration(catalog_chip("v5p"))
    one = rank.evaluate(config, system, job, layout, cal)
    step = LayoutStep(config, system, job, layout)
    assert one.placement == step.placement in place(system, layout.sizes)
    assert (one.time, one.roofline) == (step.time(cal, FusionProfile()), step.time(PEAK))
    batch = layout.micro_batch * layout.data_shards
    works = training_step(config, batch, job.seq, table(layout), remat="none")
    chip = system.chip
    memory = step_memory(config, job, works, layout, chip.hbm_bytes, planned_framework(chip.kind))
    assert one.memory == memory


@pytest.mark.parametrize(
    ("machine", "layout"),
    [
        ("v5p:4x4x4", Layout(mesh=Mesh(fsdp=64), zero=3)),
        ("v5p:4x4x4", Layout(mesh=Mesh(fsdp=32, tensor=2), zero=3, micro_batch=2)),
        # Gradients are summed once, the residual is gathered for every microbatch.
        ("v5p:2x4x4", Layout(mesh=Mesh(data=2, tensor=16), zero=1, n_microbatches=32,
                             sequence_parallel=True)),
    ],
)  # fmt: skip
def test_a_layout_is_placed_where_it_is_fastest(machine: str, layout: Layout) -> None:
    config, system = load("llama3.2-1b"), parse_system(machine)
    job, cal = Train(batch=layout.global_batch, seq=2048), calibration(catalog_chip("v5p"))
    one = rank.evaluate(config, system, job, layout, cal)
    ways = [
        rank.evaluate(config, system, job, layout, cal, placement)
        for placement in place(system, layout.sizes)
    ]
    assert one.time.step_s == pytest.approx(min(w.time.step_s for w in ways), rel=1e-12)


def test_one_chip_sends_nothing() -> None:
    config = load("llama3.2-1b")
    time = roofline(config, "h100:1", Train(batch=2, seq=1024), Layout(mesh=Mesh(), micro_batch=2))
    assert set(time.traffic_s.values()) == {0.0}
    assert time.lower_s == time.step_s == time.upper_s == time.on_chip_s
    assert time.bubble_s == 0


def test_full_remat_computes_the_layers_again() -> None:
    """FLOPs alone: with HBM that takes no time."""
    config, job = load("llama3-8b"), Train(batch=64, seq=4096)
    system = "v5p:4x4x4,hbm_bandwidth=1000000TB/s"
    none, full = (
        roofline(
            config,
            system,
            job,
            Layout(mesh=Mesh(fsdp=64), zero=3, recomputed=REMAT_POLICIES[remat]),
        )
        for remat in ("none", "full")
    )
    counts = count.flops(config, 4096)
    unread = 2 * config.d_model * config.d_ff * config.n_layers  # the down projection
    again = float(counts.forward - counts.unembedding) - unread
    ratio = 1 + again / float(counts.training - 3 * counts.unembedding)
    assert full.compute_s / none.compute_s == pytest.approx(ratio, rel=1e-12)
    assert (full.head_s, full.update_s) == (none.head_s, none.update_s)


def test_policies_run_again_what_they_do_not_keep() -> None:
    """From least to most: nothing, norms (no product), the first two products of the MLP, all."""
    config, job = load("llama3-8b"), Train(batch=64, seq=4096)
    layout = Layout(mesh=Mesh(data=64), zero=1)
    forms = [
        layout,
        replace(layout, recomputed=("norms", "activation")),
        replace(layout, recomputed=("norms", "gate", "up", "activation")),
        replace(layout, recomputed=(LAYER,)),
    ]
    work = [roofline(config, "v5p:4x4x4", job, form).compute_s for form in forms]
    assert work[0] == work[1]  # at the roofline element-wise work is free
    peak = parse_system("v5p:4x4x4").chip.peak("bf16")
    mlp = 2 * 2 * config.d_model * config.d_ff * config.n_layers * 4096 / peak
    assert work[2] - work[1] == pytest.approx(mlp, rel=1e-9)
    assert work[3] > work[2]
    expected = [
        LayoutStep(config, parse_system("v5p:4x4x4"), job, form)
        .time(PEAK, FusionProfile())
        .compute_s
        for form in forms
    ]
    assert expected == sorted(expected)
    assert len(set(expected)) == 4


def test_the_gathers_of_fsdp_by_hand() -> None:
    """V / (n_ax W) for each layer's weights, twice, and once for its gradients. Book §5."""
    config, system = load("llama2-7b"), parse_system("v5p:4x4x4")
    job = Train(batch=64, seq=4096, reduce="bf16")
    one = LayoutStep(config, system, job, Layout(mesh=Mesh(fsdp=64), zero=3))
    span = one.placement.span(("fsdp",))
    layer = sum(
        3 * time_s("all_gather", 2.0 * w.size, span)
        for w in layer_weights(config, config.main_layer)
        if w.is_matmul
    )
    ends = config.vocab * config.d_model * 2.0
    # Both are gathered once, the head's still being there in its backward pass, and reduced once.
    outer = 4 * time_s("all_gather", ends, span)
    traffic = {role: t for role, t in one.time().traffic_s.items() if t}
    assert traffic == {"fsdp": pytest.approx(32 * layer + outer, rel=1e-12)}


@pytest.mark.parametrize(("zero", "gathered"), [(0, 0), (1, 1), (2, 1)])
def test_the_sums_of_gradients_by_hand(zero: int, gathered: int) -> None:
    """ZeRO-0 sums; ZeRO-1 scatters and gathers; ZeRO-2 scatters those of every microbatch."""
    config, system = load("llama2-7b"), parse_system("h100:64")
    job = Train(batch=128, seq=2048, reduce="fp32")
    layout = Layout(mesh=Mesh(data=64), zero=zero, n_microbatches=2)
    one = LayoutStep(config, system, job, layout)
    span, n = one.placement.span(("data",)), count.parameters(config).total
    if zero == 0:
        expected = time_s("all_reduce", 4.0 * n, span)
    else:
        scatter = time_s("reduce_scatter", 4.0 * n, span)
        expected = zero * scatter + gathered * time_s("all_gather", 2.0 * n, span)
    assert one.time().traffic_s["data"] == pytest.approx(expected, rel=1e-12)


def test_tokens_go_to_experts_and_back_by_hand() -> None:
    """Forward and backward, there and back: a copy for each of two experts of a token. Book §12."""
    config, system = load("mixtral-8x7b"), parse_system("h100:8")
    job, layout = Train(batch=8, seq=2048), Layout(mesh=Mesh(expert=8))
    one = LayoutStep(config, system, job, layout)
    residual = 8 * 2048 * config.d_model * 2.0  # on all chips, in 16 bits
    exchange = time_s("all_to_all", residual * 2, one.placement.span(("expert",)))
    assert one.time().traffic_s["expert"] == pytest.approx(4 * 32 * exchange, rel=1e-12)


def test_sends_between_stages_by_hand() -> None:
    """Each microbatch enters and leaves every chunk of a stage, forward and backward."""
    config, system = load("llama2-7b"), parse_system("h100:8")
    job = Train(batch=16, seq=2048)
    for schedule, virtual in (("1f1b", 1), ("interleaved", 4)):
        layout = Layout(mesh=Mesh(data=2, pipe=4), n_microbatches=8, schedule=schedule,
                        virtual=virtual)  # fmt: skip
        one = LayoutStep(config, system, job, layout)
        hop = time_s("permute", 2048 * config.d_model * 2.0, one.placement.span(("pipe",)))
        found = one.time()
        assert found.traffic_s["pipe"] == pytest.approx(2 * 8 * virtual * hop, rel=1e-12)
        assert found.comm_s["pipe"] == found.traffic_s["pipe"]  # nothing is said to hide it


@pytest.mark.parametrize(("kind", "exposed"), [("gather", 1.0), ("ring", 0.0)])
def test_keys_and_values_by_hand(kind: str, exposed: float) -> None:
    """Gathered forward and backward, their gradients scattered; a ring hides under attention."""
    config, system = load("llama2-7b"), parse_system("h100:8")
    job = Train(batch=4, seq=8192)
    layout = Layout(mesh=Mesh(data=4, context=2), context_kind=kind)
    one = LayoutStep(config, system, job, layout)
    span = one.placement.span(("context",))
    each = time_s("all_gather", 8192 * 32 * 128 * 2.0, span)  # keys of all tokens of a sequence
    found = one.time()
    assert found.traffic_s["context"] == pytest.approx(32 * 2 * 3 * each, rel=1e-12)
    assert found.comm_s["context"] == exposed * found.traffic_s["context"]


def test_heads_exchanged_for_tokens_by_hand() -> None:
    """Queries, keys, values and what is attended: an AllToAll each, forward and backward."""
    config, system = load("llama3-8b"), parse_system("h100:8")
    job = Train(batch=4, seq=8192)
    layout = Layout(mesh=Mesh(data=4, context=2), context_kind="ulysses")
    one = LayoutStep(config, system, job, layout)
    span, width = one.placement.span(("context",)), (32 + 8 + 8 + 32) * 128
    exchange = time_s("all_to_all", 8192 * width * 2.0, span)
    assert one.time().traffic_s["context"] == pytest.approx(2 * 32 * exchange, rel=1e-12)


@pytest.mark.parametrize(
    ("schedule", "microbatches", "bubble"),
    [
        ("gpipe", 8, 3.0),  # (p - 1) (F + B + W), with B = W = F: 3 of 3 F
        ("1f1b", 8, 3.0),
        ("interleaved", 8, 1.5),  # over v
        ("zb-h1", 8, 1.0),  # (p - 1) (F + B - W)
        ("zb-v", 8, 0.5),  # (p - 1) B of half a stage
        ("dualpipe", 8, 2 / 3),  # k (F + B + W) + max(2 k F, (k - 1) F + k B) - ..., k = 1
    ],
)
def test_the_bubble_of_every_schedule(schedule: str, microbatches: int, bubble: float) -> None:
    """In microbatches of a stage, where forward and both backward passes take alike."""
    config, system = load("llama2-7b"), parse_system("h100:4,hbm_bandwidth=1000000TB/s")
    layout = Layout(mesh=Mesh(pipe=4), n_microbatches=microbatches, schedule=schedule,
                    virtual=2 if schedule == "interleaved" else 1)  # fmt: skip
    found = LayoutStep(config, system, Train(batch=microbatches, seq=2048), layout).time()
    busy = (found.compute_s + found.comm_s["pipe"]) / microbatches
    assert found.bubble_s == pytest.approx(bubble * busy, rel=1e-9)


def test_a_dense_model_has_no_experts_to_sum() -> None:
    """Sums over a latency of hops: one for all weights, none for experts that there are not."""
    config, system = load("llama2-7b"), parse_system("v5p:4x4x4")
    one = LayoutStep(config, system, Train(batch=64, seq=2048), Layout(mesh=Mesh(data=64)))
    n_bytes = 4.0 * count.parameters(config).total
    expected = time_s("all_reduce", n_bytes, one.placement.span(("data",)))
    assert one.time().traffic_s["data"] == pytest.approx(expected, rel=1e-12)


def test_microbatches_gather_again_and_sum_once() -> None:
    config, system = load("llama3-8b"), "h100:16"
    job = Train(batch=32, seq=2048)
    mesh = Mesh(fsdp=4, data=2, tensor=2)
    times = [
        roofline(config, system, job, Layout(mesh=mesh, zero=3, micro_batch=4 // n,
                                             n_microbatches=n, sequence_parallel=True))
        for n in (1, 2, 4)
    ]  # fmt: skip
    assert times[0].compute_s == pytest.approx(times[2].compute_s, rel=1e-12)
    assert [t.traffic_s["fsdp"] for t in times] == [
        pytest.approx(times[0].traffic_s["fsdp"] * n, rel=1e-12) for n in (1, 2, 4)
    ]
    assert len({t.traffic_s["data"] for t in times}) == 1
    assert times[0].step_s <= times[1].step_s <= times[2].step_s


def test_dtypes_of_what_is_sent() -> None:
    step = training_step(load("llama3-8b"), 8, 512, TRAIN, remat="none")
    weights = step.weights
    assert {"wq", "w_down", "embedding", "unembedding"} <= weights
    assert not weights & {"k", "v", "x", "y"}
    job = Train(batch=8, seq=512, weights="fp8", compute="fp8", gradients="fp32")
    wq, x = parse_array("wq[D,N,H]"), parse_array("x[B,T,D]")
    assert element_bytes(wq, weights, job) == 1
    assert element_bytes(wq.gradient(), weights, job) == 4
    assert element_bytes(x, weights, job) == element_bytes(x.gradient(), weights, job) == 2
    fp32 = Train(batch=8, seq=512, weights="fp32", compute="fp32")
    assert element_bytes(x, weights, fp32) == element_bytes(wq, weights, fp32) == 4
    mixed = Train(batch=8, seq=512, weights="fp32")
    assert element_bytes(wq, weights, mixed) == 2  # cast before it is sent or multiplied


def test_what_is_hidden() -> None:
    """A gather of weights runs beside the compute; what a layer waits for does not."""
    config, job = load("llama3-8b"), Train(batch=64, seq=4096)
    mesh = Mesh(data=4, fsdp=8, tensor=2)
    base = Layout(mesh=mesh, zero=3, micro_batch=2, sequence_parallel=True)
    bare = roofline(config, "v5p:4x4x4", job, base)
    assert bare.comm_s["tensor"] == bare.traffic_s["tensor"] > 0
    assert bare.comm_s["data"] == bare.traffic_s["data"] > 0
    assert bare.comm_s["fsdp"] == pytest.approx(bare.traffic_s["fsdp"] / 32, rel=1e-12)  # a layer's
    beside = roofline(config, "v5p:4x4x4", job, replace(base, overlap=("grad_reduce", "tp_comm")))
    assert 0 < beside.comm_s["data"] < bare.comm_s["data"]
    assert 0 < beside.comm_s["tensor"] < bare.comm_s["tensor"]
    assert beside.traffic_s == bare.traffic_s


def test_a_step_is_the_sum_of_its_parts() -> None:
    time = StepTime(
        compute_s=3.0,
        head_s=0.5,
        traffic_s={"fsdp": 2.0, "data": 9.0, "tensor": 0.5},
        comm_s={"fsdp": 0.25, "data": 1.0, "tensor": 0.5},
        bubble_s=0.25,
        update_s=0.25,
    )
    assert (time.on_chip_s, time.lower_s, time.step_s, time.upper_s) == (4.0, 9.0, 5.75, 15.5)


def test_a_figure_that_is_missing() -> None:
    config, job = load("llama3-8b"), Train(batch=8, seq=512, compute="int4")
    with pytest.raises(UnknownFigure, match="h100 has no figure for the dense peak at int4"):
        roofline(config, "h100:4", job, Layout(mesh=Mesh(fsdp=4), zero=3, micro_batch=2))


def test_a_model_from_hand() -> None:
    config = ModelConfig.dense(n_layers=2, d_model=64, d_ff=256, n_heads=4, vocab=1000)
    job, system = Train(batch=4, seq=128, remat="none"), parse_system("v5e:2x2")
    for layout in every_layout(config, system, job):
        for placement in place(system, layout.sizes):
            time = LayoutStep(config, system, job, layout, placement).time()
            assert 0 < time.lower_s <= time.upper_s < math.inf
