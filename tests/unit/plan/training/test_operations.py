"""The listed operations are the roofline, item by item."""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.estimate.calibration import PEAK
from shardwise.hardware import parse_system
from shardwise.models import count, load
from shardwise.plan.schema.common import Operation
from shardwise.plan.training.operations import busiest_stage, is_hidden, operations
from shardwise.search.training import rank
from shardwise.search.training.rank import Candidate
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from shardwise.vocabulary import LAYER, PARTS
from shardwise.workload import Train
from tests.strategies import every_layout, every_mesh, layouts

CASES = [
    ("llama3-8b", "v5p:2x4x4", Train(batch=32, seq=2048)),
    ("mixtral-8x7b", "h100:16", Train(batch=32, seq=2048, reduce="fp32")),
    ("deepseek-v2-lite", "v5e:2x4*2", Train(batch=16, seq=1024)),
    ("llama3-8b", "a100:8", Train(batch=8, seq=2048, offload=("optimizer", "activations"))),
    ("deepseek-v2-lite", "h100:16", Train(batch=32, seq=2048, mtp_layers=2)),
]
close = functools.partial(pytest.approx, rel=1e-9)


def listed(
    name: str, machine: str, job: Train, layout: Layout
) -> tuple[Candidate, tuple[Operation, ...]]:
    config, system = load(name), parse_system(machine)
    one = rank.evaluate(config, system, job, layout, PEAK)
    return one, operations(one)


def compare(one: Candidate, found: tuple[Operation, ...]) -> None:
    """Sums over operations against the roofline."""
    spent: dict[str, float] = defaultdict(float)
    for op in found:
        if op.collective:
            kind = str(op.role)
        elif op.phase == "update":
            kind = "update"
        else:
            kind = "ends" if op.name.startswith(("embed", "unembed", "mtp")) else "layers"
        spent[kind] += op.time_s
        longest = max(op.math_s, op.hbm_s)
        # An MTP layer is one operation, whose matmuls have different bounds.
        assert op.time_s == close(longest) or op.collective or op.name == "mtp.layer"
        assert op.time_s >= longest * (1 - 1e-9)
        assert op.count >= 1
    roofline = one.roofline
    assert spent.pop("layers") == close(roofline.compute_s)
    assert spent.pop("update") == close(roofline.update_s)
    ends = spent.pop("ends")
    if one.layout.schedule == "none":
        assert ends == close(roofline.head_s)
    # Nothing of a role is left out and nothing is there twice. Sums of norms over shards of ZeRO-3
    # have no seconds.
    spent = {role: t for role, t in spent.items() if t}
    assert spent == {role: close(t) for role, t in roofline.traffic_s.items() if t}


@pytest.mark.parametrize(("name", "machine", "job"), CASES)
def test_operations_sum_to_the_roofline(name: str, machine: str, job: Train) -> None:
    every = list(every_layout(load(name), parse_system(machine), job))
    some = every[:: max(1, len(every) // 60)]
    assert {layout.schedule for layout in some} >= {"none", "interleaved"}
    for layout in some:
        compare(*listed(name, machine, job, layout))


@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b", "deepseek-v2-lite"])
@pytest.mark.parametrize("part", PARTS)
def test_what_runs_again_is_listed_twice(name: str, part: str) -> None:
    """Whatever part of a layer it is; of MLA the projections go by one name."""
    job = Train(batch=8, seq=1024)
    layout = Layout(mesh=Mesh(data=8), zero=1, recomputed=(part,))
    compare(*listed(name, "h100:8", job, layout))


@pytest.mark.parametrize("recomputed", [(LAYER,), ("gate", "up")])
def test_what_runs_again_in_some_layers(recomputed: tuple[str, ...]) -> None:
    job = Train(batch=8, seq=1024)
    layout = Layout(mesh=Mesh(data=8), zero=1, recomputed=recomputed, remat_layers=8)
    compare(*listed("llama3-8b", "h100:8", job, layout))


def test_chunks_of_the_loss_read_the_unembedding_again_and_compute_the_same() -> None:
    job, layout = Train(batch=8, seq=1024), Layout(mesh=Mesh(fsdp=8), zero=3)
    ends = {}
    for n in (1, 4):
        one, found = listed("llama3-8b", "h100:8", job, replace(layout, loss_chunks=n))
        compare(one, found)
        ends[n] = {op.name: op for op in found if op.name.startswith("unembed") and op.flops}
    bytes_of_w, logits = 2 * 4096 * 128256, 2 * 1024 * 128256
    for name, op in ends[1].items():
        again = ends[4][name]
        assert again.flops == op.flops
        assert (op.count, again.count) == (1, 4)
        times = 12 if name == "unembed.d_unembedding" else 3  # a sum in fp32 is read and written
        assert again.hbm_bytes - op.hbm_bytes == times * bytes_of_w
        assert op.hbm_bytes > logits


def test_flops_of_operations_are_those_of_the_busiest_stage() -> None:
    job = Train(batch=32, seq=2048)
    piped = Layout(mesh=Mesh(data=4, pipe=4), zero=1, n_microbatches=8, schedule="1f1b")
    whole = Layout(mesh=Mesh(data=16), zero=1, n_microbatches=2)
    flops = {}
    for layout in (piped, whole):
        _, found = listed("llama3-8b", "h100:16", job, layout)
        flops[layout.schedule] = sum(
            op.flops for op in found if not op.name.startswith(("embed", "unembed"))
        )
    assert flops["1f1b"] == close(flops["none"])  # a quarter of the layers of four times the tokens


UNEVEN = [
    ("deepseek-v2-lite", "h100:16", Train(batch=32, seq=2048)),  # 27 layers: 28 places on 4 stages
    ("qwen3-235b-a22b", "b200:32", Train(batch=64, seq=4096, compute="fp8")),  # 94: 96 on 8
    ("llama3.1-405b", "v5p:4x4x4", Train(batch=128, seq=2048)),  # 126: 128 on 16
]


@functools.cache
def meshes(case: int) -> list[Mesh]:
    name, machine, job = UNEVEN[case]
    return [mesh for mesh in every_mesh(load(name), parse_system(machine), job) if mesh.pipe > 1]


@pytest.mark.parametrize("case", range(len(UNEVEN)))
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_bound_of_a_pipeline_is_below_the_work_of_a_stage(
    case: int, data: st.DataObject
) -> None:
    """The head is on a stage that has fewer layers, where the layers do not divide evenly: its
    FLOPs and those of a full stage are not one chip's. No stage has less than the mean."""
    name, machine, job = UNEVEN[case]
    config, system = load(name), parse_system(machine)
    layout = data.draw(layouts(config, system, job, meshes(case)))
    one, found = listed(name, machine, job, layout)
    stages = (found, config.n_layers, layout)
    math_s = busiest_stage(*stages, lambda op: op.math_s)
    busy_s = one.roofline.on_chip_s - one.roofline.bubble_s
    assert one.roofline.lower_s >= busy_s >= math_s * (1 - 1e-12)
    assert busy_s >= busiest_stage(*stages, lambda op: op.hbm_s) * (1 - 1e-12)
    flops = count.model_flops_per_token(config, job.seq) * job.tokens_per_step
    fastest = system.chip.peak(job.compute)
    assert math_s >= flops / system.n_chips / fastest * (1 - 1e-12)


def test_what_is_hidden_is_marked() -> None:
    job = Train(batch=32, seq=2048)
    overlap = ("grad_reduce", "param_gather")
    layout = Layout(mesh=Mesh(data=2, fsdp=8, tensor=2), zero=3, micro_batch=2, overlap=overlap,
                    sequence_parallel=True)  # fmt: skip
    one, found = listed("llama3-8b", "v5p:2x4x4", job, layout)
    assert is_hidden(one, "fsdp")
    assert not is_hidden(one, "tensor")
    assert {op.role: op.hidden for op in found if op.collective} == {
        "fsdp": True, "tensor": False, "data": is_hidden(one, "data"),
    }  # fmt: skip
    bare = replace(layout, overlap=())
    two, _ = listed("llama3-8b", "v5p:2x4x4", job, bare)
    assert not is_hidden(two, "data")


@pytest.mark.parametrize(
    ("machine", "tiles"),
    [
        ("v5e:2x2", {"forward": 512, "backward": 1024}),
        ("h100:4", {"forward": 128, "backward": 128}),
    ],
)
def test_kernels_of_attention_compute_whole_tiles_and_scores_twice(
    machine: str, tiles: dict[str, int]
) -> None:
    """FLOPs of a causal square are half of it; n tiles a side are n (n + 1) / 2 of n^2."""
    seq = 4096
    job, layout = Train(batch=4, seq=seq), Layout(mesh=Mesh(data=4))
    _, found = listed("llama3-8b", machine, job, layout)
    for op in found:
        n = seq // tiles.get(op.phase, seq)
        scores = op.name.startswith(("attn.scores", "attn.values"))
        again = 5 / 4 if op.phase == "backward" else 1
        expected = op.flops * (again * (n + 1) / n if scores else 1)
        assert op.computed_flops == close(expected), op.name


def test_a_tpu_computes_the_whole_square_of_a_sequence_without_a_kernel() -> None:
    job, layout = Train(batch=4, seq=100), Layout(mesh=Mesh(data=4))
    _, found = listed("llama3-8b", "v5e:2x2", job, layout)
    scores = [op for op in found if op.name.startswith("attn.scores")]
    assert len(scores) == 3
    assert all(op.computed_flops == close(2 * op.flops) for op in scores)
