"""Rates that were measured while other programs ran are marked."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from shardwise.estimate.serving.measured_rates import is_measured
from shardwise.hardware import load_chip
from shardwise.hardware.figure import FIELDS
from shardwise.report import measured_cpu
from shardwise.report.style import render
from shardwise.train import measure

RATES = measure.CpuRates(
    n_devices=2,
    flops_per_s={"fp32": 1e11},
    bytes_per_s=1e10,
    memory_bytes=1e9,
    sent_bytes_per_s=None,
    latency_s=None,
)


def test_the_share_of_others_leaves_out_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks: Any = iter([(100.0, 40.0, 10.0), (120.0, 55.0, 20.0)])
    monkeypatch.setattr(measure, "_processor_seconds", lambda: next(clocks))
    assert measure._OtherLoad().share() == pytest.approx((15 - 10) / 20)


def test_no_share_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_processor_seconds", lambda: None)
    assert measure._OtherLoad().share() is None


def test_rates_of_serving_are_read_back(tmp_path: Path) -> None:
    rates = {path: 2.5e9 for path in FIELDS if path.startswith(("products.", "serving."))}
    rates |= {path: 1.25e-4 for path in rates if FIELDS[path].unit == "s"}
    measure.write_chip(replace(RATES, n_devices=1, serving=rates), str(tmp_path / "host.toml"))
    chip = load_chip(tmp_path / "host.toml")
    assert is_measured(chip)
    assert {path: chip.figures[path].value for path in rates} == pytest.approx(rates)
    assert "measured on this machine" in chip.figures["serving.keys"].source


@pytest.mark.parametrize(("load", "warns"), [(0.47, True), (0.05, False), (None, False)])
def test_a_busy_machine_is_told(load: float | None, warns: bool) -> None:
    rates = replace(RATES, other_load=load)
    text = " ".join(render(measured_cpu.blocks(rates, ""), StringIO()).split())
    sentence = "Other programs used 47 % of the processors meanwhile, so these rates are too low"
    assert (sentence in text) == warns
