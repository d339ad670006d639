"""What a step takes beyond its products: the host, merges of a ring, offloads, short windows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardwise.estimate.calibration import PEAK, Calibration
from shardwise.estimate.kernels import attention_depth_efficiency, matrix_unit_efficiency
from shardwise.estimate.training.gradient_sync import HOST_UPDATE_S
from shardwise.estimate.training.layout_step import LayoutStep
from shardwise.estimate.training.run_variant import FusionProfile
from shardwise.estimate.training.step import StepTime
from shardwise.estimate.training.step_items import step_items
from shardwise.hardware import catalog_chip, parse_system
from shardwise.models import load
from shardwise.models.count import parameters
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from shardwise.workload import Train

LLAMA = load("llama3-8b")


def layout_step(mesh: Mesh, system: str = "h100:8", seq: int = 4096, **words: Any) -> LayoutStep:
    layout = Layout(mesh=mesh, **{"n_microbatches": 1, **words})
    job = Train(batch=layout.global_batch, seq=seq)
    return LayoutStep(LLAMA, parse_system(system), job, layout)


def step(
    mesh: Mesh, rates: Calibration = PEAK, fusion: FusionProfile | None = None, **words: Any
) -> StepTime:
    return layout_step(mesh, **words).time(rates, fusion or FusionProfile())


def test_the_host_delays_only_what_is_faster_than_it() -> None:
    slow_host = replace(PEAK, host_s=10.0)
    plain, delayed = step(Mesh(data=8)), step(Mesh(data=8), slow_host)
    assert delayed.compute_s == pytest.approx(2 * LLAMA.n_layers * 10.0)  # both phases
    assert step(Mesh(data=8), replace(PEAK, host_s=1e-6)).compute_s == plain.compute_s
    captured = FusionProfile(captured=1.0)
    assert step(Mesh(data=8), slow_host, captured).compute_s == plain.compute_s


def test_a_ring_merges_its_steps() -> None:
    mesh = Mesh(data=2, context=4)
    gather, ring = (step(mesh, context_kind=kind) for kind in ("gather", "ring"))
    n_bytes = 10.0 * 0.75 * 3 * 1024 * 4096 * LLAMA.n_layers  # 3 merges of 1,024 tokens
    hbm = catalog_chip("h100").need("hbm_bytes_per_s")
    extra = float(ring.compute_s) - float(gather.compute_s)
    assert extra == pytest.approx(3 * n_bytes / hbm, rel=1e-9)  # twice as much backward


@pytest.mark.parametrize("context_kind", ["gather", "ring"])
def test_items_add_up_to_the_step(context_kind: str) -> None:
    rates = replace(PEAK, host_s=0.02, kernel_s=1e-5)
    one = layout_step(Mesh(data=2, context=4), context_kind=context_kind)
    priced = one.priced(rates, FusionProfile())
    time = one.time(rates, FusionProfile())
    total = sum(float(i.seconds) for i in step_items(priced, one.program) if i.role is None)
    assert total == pytest.approx(float(time.compute_s + time.head_s + time.update_s), rel=1e-9)


def test_the_host_updates_offloaded_state_of_a_gpu() -> None:
    plain = step(Mesh(fsdp=8), zero=3)
    offloaded = step(Mesh(fsdp=8), zero=3, offload=("optimizer",))
    least = float(parameters(LLAMA).total) * HOST_UPDATE_S  # all of them are updated by one host
    assert offloaded.update_s > least > plain.update_s


def test_parts_of_activations_take_time_to_offload() -> None:
    none, part, all_of_them = (
        step(Mesh(data=8), offload=words).traffic_s.get("host", 0.0)
        for words in ((), ("layer_input",), ("activations",))
    )
    assert none == 0.0
    assert 0 < part < all_of_them


def test_copies_to_the_host_slow_no_compute() -> None:
    rates = replace(PEAK, contention=0.5)
    assert step(Mesh(data=8), rates, offload=("layer_input",)).comm_s["host"] == 0.0


def test_short_windows_cost_more_per_flop() -> None:
    lengths = [attention_depth_efficiency(keys, 128, 4096.0) for keys in (128, 1024, 65536)]
    assert lengths == sorted(lengths)
    assert lengths[-1] > 0.99


@pytest.mark.parametrize(("columns", "depth", "share"), [(256, 256, 1.0), (257, 256, 257 / 512)])
def test_a_matrix_unit_is_filled_by_whole_units(columns: int, depth: int, share: float) -> None:
    assert matrix_unit_efficiency(columns, depth, 256) == pytest.approx(share)
