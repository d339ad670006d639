"""Measured rates: what others used meanwhile, the chip file, and the screen."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import shardwise as sw
from shardwise.estimate.serving.measured_rates import is_measured as serves
from shardwise.estimate.training.measured_rates import is_measured as trains
from shardwise.hardware import chip_names, find_chip, load_chip
from shardwise.hardware.figure import ATTENTION_LENGTHS, BETWEEN, FIELDS
from shardwise.measure import timing
from shardwise.measure.chip_file import write_chip
from shardwise.measure.rates import MeasuredRates
from shardwise.report import measured as report
from shardwise.report.style import render

MEMORY = {"peak.fp32": 1e11, "hbm.bandwidth": 1e10, "hbm.capacity": 1e9}
GROUPS = ("products.", "serving.", "training.", "collectives.", "memory.", "transfers.")
ALL = {path: 2.5e9 for path in FIELDS if path.startswith(GROUPS)}
ALL |= {path: 1.25e-4 for path in ALL if FIELDS[path].unit == "s"}
RATES = MeasuredRates(n_devices=2, figures=MEMORY)
PRODUCTS = ("forward", "input", "weight")
GPU = {"peak.bf16": 8e14, "hbm.bandwidth": 4e12}
GPU |= {f"training.bf16_{name}": 7e14 for name in PRODUCTS}
GPU |= {
    f"training.bf16_attention_{name}_{n}": 4e14
    for name in ("forward", "backward")
    for n in ATTENTION_LENGTHS
}
GPU |= {
    f"training.bf16_{width}_{name}": 3.5e12 for name in ("forward", "backward") for width in BETWEEN
}


def test_the_share_of_others_leaves_out_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks: Any = iter([(100.0, 40.0, 10.0), (120.0, 55.0, 20.0)])
    monkeypatch.setattr(timing, "_processor_seconds", lambda: next(clocks))
    assert timing.OtherLoad().share() == pytest.approx((15 - 10) / 20)


def test_no_share_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_processor_seconds", lambda: None)
    assert timing.OtherLoad().share() is None


def test_all_figures_are_read_back(tmp_path: Path) -> None:
    sources = {"training.fp32_forward": "fitted to 9 operations, median residual 3%"}
    write_chip(replace(RATES.with_figures(ALL), sources=sources), str(tmp_path / "host.toml"))
    chip = load_chip(tmp_path / "host.toml")
    assert serves(chip)
    assert trains(chip)
    values = MEMORY | ALL
    assert {path: chip.figures[path].value for path in values} == pytest.approx(values)
    assert "measured on this machine" in chip.figures["serving.keys"].source
    assert chip.figures["training.fp32_forward"].source.endswith(sources["training.fp32_forward"])


@pytest.mark.parametrize("name", [name for name in chip_names() if find_chip(name).kind != "cpu"])
def test_a_measured_accelerator_is_the_chip_of_the_catalog_with_its_rates(
    tmp_path: Path, name: str
) -> None:
    """Its devices have the rates of a chip together; what JAX may use of the memory is not all."""
    catalog = find_chip(name)
    figures = {"peak.bf16": 1.25e14, "hbm.bandwidth": 1e12, "hbm.capacity": 1e10}
    figures |= {"training.step": 1e-4, "training.bf16_forward": 1e14, "node.gpus": 1}
    rates = MeasuredRates(n_devices=1, kind=catalog.kind, device_kind=name, figures=figures)
    write_chip(rates, str(tmp_path / "chip.toml"))
    chip, n = load_chip(tmp_path / "chip.toml"), catalog.n_devices or 1
    assert chip.name == f"{name}-measured"
    assert chip.hbm_bytes_per_s == n * 1e12
    assert chip.peak_flops_per_s == catalog.peak_flops_per_s | {"bf16": n * 1.25e14}
    assert chip.training == pytest.approx({"step": 1e-4, "bf16_forward": n * 1e14})
    assert chip.hbm_bytes == catalog.hbm_bytes
    assert (chip.kind, chip.title, chip.ici) == (catalog.kind, catalog.title, catalog.ici)


def test_a_plan_of_a_measured_gpu_is_at_its_rates(tmp_path: Path) -> None:
    """Work between products, too: without it a step was a tenth shorter than on GPUs."""
    rates = MeasuredRates(n_devices=1, kind="gpu", device_kind="NVIDIA H200", figures=GPU)
    write_chip(rates, str(tmp_path / "chip.toml"))
    model = sw.ModelConfig.dense(n_layers=4, d_model=2048, d_ff=8192, n_heads=16, vocab=32768)
    job, system = sw.Train(batch=8, seq=2048), sw.hardware(f"{tmp_path / 'chip.toml'}:1")
    plan = sw.plan(model, system, job, {"remat": "none"})
    assert plan.estimate.rates.name == "hw measure"
    n_flops = sum(operation.flops for operation in plan.operations)
    assert plan.step.expected > 1.1 * n_flops / 7e14


def test_experts_have_rates_of_their_own(tmp_path: Path) -> None:
    experts = {f"training.bf16_experts_{name}": 2e14 for name in PRODUCTS}
    model = sw.model("mixtral-8x7b,n_layers=1,d_model=1024,d_ff=4096,vocab=4096")
    steps = []
    for i, rates in enumerate((GPU, GPU | experts)):
        path = tmp_path / f"{i}.toml"
        write_chip(
            MeasuredRates(n_devices=1, kind="gpu", device_kind="h200", figures=rates), str(path)
        )
        plan = sw.plan(model, sw.hardware(f"{path}:1"), sw.Train(batch=8, seq=2048))
        steps.append(plan.step.expected)
    flops = 3 * 3 * 2 * (8 * 2048 * 2) * 1024 * 4096  # passes, matrices, tokens of both experts
    assert steps[1] - steps[0] == pytest.approx(flops * (1 / 2e14 - 1 / 7e14), rel=1e-3)


def test_the_file_says_that_the_machine_was_busy(tmp_path: Path) -> None:
    file = tmp_path / "host.toml"
    write_chip(replace(RATES.with_figures(ALL), other_load=0.0, drift=0.0), str(file))
    assert "busy:" not in load_chip(file).note
    write_chip(replace(RATES.with_figures(ALL), other_load=0.39, drift=0.4), str(file))
    assert load_chip(file).note.endswith("39% of the processors, and its speed varied by 40%.")


def test_a_screen_of_all_figures() -> None:
    links = {"node.egress": 1e9, "node.latency": 1e-6}
    stream = StringIO()
    text = render(report.blocks(RATES.with_figures(ALL | links), "host.toml"), stream)
    assert "attention, 2048 tokens" in text
    assert "of 64.0 MiB" in text
    assert "125 us a sequence" in text
    assert "read 2.50 GB/s, write 2.50 GB/s" in text
    assert "AllReduce" in text
    assert "--serve" in text


@pytest.mark.parametrize(("load", "warns"), [(0.47, True), (0.05, False), (None, False)])
def test_a_busy_machine_is_told(load: float | None, warns: bool) -> None:
    rates = replace(RATES, other_load=load)
    text = " ".join(render(report.blocks(rates, ""), StringIO()).split())
    assert ("The machine was busy: other programs used 47 % of the processors" in text) == warns


@pytest.mark.parametrize(("drift", "warns"), [(0.36, True), (0.1, False)])
def test_a_machine_whose_speed_changes_is_told(drift: float, warns: bool) -> None:
    text = " ".join(render(report.blocks(replace(RATES, drift=drift), ""), StringIO()).split())
    assert ("the same product was at times 36 % slower than at others" in text) == warns
