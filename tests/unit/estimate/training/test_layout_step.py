"""Steps of given layouts: what pipelines, ZeRO, experts and remat change."""

from __future__ import annotations

import dataclasses

import pytest

from shardwise.estimate.calibration import PEAK, Calibration, calibration
from shardwise.estimate.training.layout_step import LayoutStep
from shardwise.estimate.training.run_variant import IDEAL, FusionProfile, RunVariant
from shardwise.estimate.training.step import StepTime
from shardwise.hardware import catalog_chip, chip_names, parse_system
from shardwise.models import count, load
from shardwise.strategy.layout import Layout, rules_of
from shardwise.strategy.mesh import Mesh
from shardwise.vocabulary import LAYER
from shardwise.workload import Train

LLAMA, MIXTRAL = load("llama3-8b"), load("mixtral-8x7b")


def step(mesh: Mesh, system: str = "h100:16", config=LLAMA, **given) -> StepTime:
    fusion = given.pop("fusion", FusionProfile())
    cal = given.pop("cal", PEAK)
    compute = given.pop("compute", "bf16")
    layout = Layout(mesh=mesh, **{"n_microbatches": 8, **given})
    job = Train(batch=layout.global_batch, seq=4096, compute=compute)
    return LayoutStep(config, parse_system(system), job, layout).time(cal, fusion)


@pytest.mark.parametrize("chip", ["h100", "v5p"])
def test_one_chip_computes_the_flops_of_the_model(chip: str) -> None:
    system = f"{chip}:1" if chip == "h100" else f"{chip}:1x1x1"
    found = step(Mesh(), system, n_microbatches=1)
    flops = count.flops(LLAMA, 4096)
    peak = catalog_chip(chip).peak("bf16")
    # The backward pass of attention in tiles computes the scores again: 5 products for 4.
    again = 0.25 * 2 * float(flops.scores)
    least = 4096 * (float(flops.training) + again) / peak
    # On GPUs tiles do not fill their waves of SMs, and start and end.
    tiles = 1.05 if chip == "h100" else 1.0
    assert found.compute_s + found.head_s > least
    # Element-wise work and HBM-bound products.
    assert found.compute_s + found.head_s < 1.15 * tiles * least
    assert found.comm_s == {"data": 0.0}
    assert found.bubble_s == 0.0
    ideal = step(Mesh(), system, n_microbatches=1, fusion=IDEAL)
    assert 4096 * float(flops.training) / peak <= ideal.compute_s + ideal.head_s < 1.05 * least


def test_the_bubble_is_that_of_the_schedule() -> None:
    """(p - 1) / (m v) of the time in the stages. Playbook and arXiv 2104.04473."""
    plain = step(Mesh(pipe=4, data=4), schedule="1f1b")
    chunks = step(Mesh(pipe=4, data=4), schedule="interleaved", virtual=2)
    busy = plain.compute_s + plain.comm_s["pipe"]
    assert plain.bubble_s == pytest.approx(busy * 3 / 8, rel=1e-12)
    assert chunks.bubble_s < plain.bubble_s
    more = step(Mesh(pipe=4, data=4), schedule="1f1b", n_microbatches=64)
    assert more.bubble_s / more.compute_s < plain.bubble_s / plain.compute_s


def test_stages_share_the_layers() -> None:
    one, four = step(Mesh(data=16)), step(Mesh(pipe=4, data=4), schedule="1f1b")
    assert four.compute_s == pytest.approx(one.compute_s / 4, rel=1e-12)


def test_zero_sums_what_it_does_not_shard() -> None:
    # At ideal rates, without the time that collectives take to start.
    found = {z: step(Mesh(data=16), zero=z, fusion=IDEAL).traffic_s["data"] for z in (0, 1)}
    # Gradients are scattered in 32 bits, weights gathered in 16: three quarters of the AllReduce.
    assert found[1] == pytest.approx(0.75 * found[0], rel=1e-12)
    three = step(Mesh(fsdp=16), zero=3, fusion=IDEAL)
    assert three.traffic_s["data"] == 0.0
    assert three.traffic_s["fsdp"] > found[1]  # weights are gathered for every microbatch


def test_full_remat_computes_more_and_selected_parts_less() -> None:
    none = step(Mesh(data=16))
    some = step(Mesh(data=16), recomputed=("up", "gate"))
    full = step(Mesh(data=16), recomputed=(LAYER,))
    assert none.compute_s < some.compute_s < full.compute_s < 1.4 * none.compute_s


def test_experts_exchange_tokens_and_need_no_sums_among_themselves() -> None:
    alone = step(Mesh(data=16), config=MIXTRAL, zero=1)
    spread = step(Mesh(data=2, expert=8), config=MIXTRAL, zero=1)
    assert alone.traffic_s["expert"] == 0
    assert spread.traffic_s["expert"] > 0
    assert spread.traffic_s["data"] < alone.traffic_s["data"]
    beside = step(Mesh(data=2, expert=8), config=MIXTRAL, zero=1, overlap=("expert_all_to_all",))
    assert beside.comm_s["expert"] == spread.comm_s["expert"] / 2


def test_sequence_parallelism_moves_as_much_and_saves_element_wise_work() -> None:
    mesh = Mesh(data=4, tensor=4)
    ideal = [step(mesh, sequence_parallel=split, fusion=IDEAL) for split in (False, True)]
    assert ideal[1].traffic_s["tensor"] == pytest.approx(ideal[0].traffic_s["tensor"], rel=0.05)
    plain, split = step(mesh), step(mesh, sequence_parallel=True)
    assert split.compute_s < plain.compute_s


@pytest.mark.parametrize(
    ("mesh", "given"),
    [
        (Mesh(data=4, tensor=4), {"overlap": ("tp_comm", "grad_reduce"), "zero": 1}),
        (Mesh(pipe=4, data=4), {"overlap": ("pipe_p2p",), "schedule": "1f1b"}),
        (Mesh(fsdp=16), {"zero": 3}),
    ],
)
def test_overlap_hides_and_never_adds(mesh: Mesh, given: dict[str, object]) -> None:
    found = step(mesh, **given)
    assert found.on_chip_s < found.step_s <= found.upper_s
    bare = step(mesh, **{**given, "overlap": ()})
    assert found.step_s <= bare.step_s
    assert bare.upper_s <= found.upper_s * (1 + 1e-12) or bare.bubble_s >= found.bubble_s


@pytest.mark.parametrize("name", ["hbm", "network", "attention", "grouped"])
def test_a_better_share_never_slows_a_step(name: str) -> None:
    mesh, given = Mesh(data=2, tensor=2, expert=4), {"config": MIXTRAL, "zero": 1}
    cal = calibration(catalog_chip("h100"))
    better = dataclasses.replace(cal, **{name: 1.0})
    assert step(mesh, cal=better, **given).step_s <= step(mesh, cal=cal, **given).step_s


def test_unfused_kernels_are_slower() -> None:
    tiles = step(Mesh(data=16))
    assert step(Mesh(data=16), fusion=FusionProfile(fused=False)).compute_s > tiles.compute_s
    assert step(Mesh(data=16), fusion=FusionProfile(flash=False)).compute_s > tiles.compute_s


def test_rules_of_layouts() -> None:
    mesh = Mesh(data=2, fsdp=2, tensor=2, context=2)
    three = rules_of(Layout(mesh=mesh, zero=3, sequence_parallel=True))
    one = rules_of(Layout(mesh=Mesh(data=4, tensor=2, context=2), zero=1))
    assert three["weights.D"] == ("fsdp", "context")
    assert "weights.D" not in one
    assert (three["residual.T"], one["residual.T"]) == (("context", "tensor"), ("context",))


@pytest.mark.parametrize("name", chip_names())
def test_calibrations_are_shares_with_a_source(name: str) -> None:
    found = calibration(catalog_chip(name))
    shares = [*found.matmuls.values(), found.attention, found.grouped, found.hbm, found.network]
    assert all(0 < share <= 1 for share in shares)
    assert found is PEAK or (found.source and found.as_of)


def test_the_share_of_a_wider_dtype_stands_in() -> None:
    cal = Calibration(matmuls={"bf16": 0.7, "fp8": 0.5})
    assert [cal.matmul(d) for d in ("bf16", "fp16", "fp8", "fp4")] == [0.7, 0.7, 0.5, 0.5]
    assert PEAK.matmul("bf16") == 1.0


def test_checkpointing_may_run_the_last_product_of_a_layer_again() -> None:
    layout = Layout(mesh=Mesh(tensor=8), n_microbatches=1, recomputed=(LAYER,))
    job = Train(batch=1, seq=4096)
    system = parse_system("h100:8")
    kept, whole = (
        LayoutStep(LLAMA, system, job, layout, variant=RunVariant(whole_remat=again)).time()
        for again in (False, True)
    )
    down = 2 * 4096 * LLAMA.d_model * 14336 / 8 * LLAMA.n_layers
    more = float(whole.compute_s) - float(kept.compute_s)
    assert more == pytest.approx(down / catalog_chip("h100").peak("bf16"))
    assert float(whole.traffic_s["tensor"]) > float(kept.traffic_s["tensor"])


def test_a_scan_has_a_share_of_its_own() -> None:
    assert Calibration(attention=0.5).scan_share == 0.5
    assert Calibration(attention=0.5, scan=0.05).scan_share == 0.05
