"""Training steps on a machine that `hw measure` has measured."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardwise as sw
from shardwise.estimate.training import measured_rates
from shardwise.hardware.chip import with_values
from shardwise.hardware.figure import (
    ATTENTION_LENGTHS,
    BETWEEN,
    MEMORY_KIB,
    MEMORY_STREAMS,
    PASSES,
    PRODUCTS,
    memory_key,
)
from shardwise.measure.chip_file import write_chip
from shardwise.measure.rates import MeasuredRates
from shardwise.plan.training.rebuild import rebuild

MODEL = sw.ModelConfig.dense(
    name="small", n_layers=4, d_model=256, d_ff=512, n_heads=4, n_kv_heads=2, vocab=1000
)
JOB = sw.Train(batch=8, seq=256, weights="fp32", compute="fp32")
DATA = {"data": 2, "remat": "none"}
MEMORY = {
    "hbm.capacity": 16e9,
    "hbm.bandwidth": 2e10,
    "node.gpus": 2,
    "node.egress": 1e9,
    "node.latency": 1e-5,
}
FIGURES = {
    "peak.fp32": 1e11,
    "training.step": 1e-3,
    "training.layer": 1e-4,
    "training.update": 1e10,
    "training.loss": 1e10,
    "training.lookup": 1e9,
    **{f"training.fp32_{kind}": 8e10 for kind in PRODUCTS},
    **{f"training.fp32_{kind}_start": 1e-5 for kind in PRODUCTS},
    **{f"training.fp32_{width}_{name}": 5e9 for width in BETWEEN for name in PASSES},
    **{f"training.fp32_attention_{name}_{n}": 2e10 for name in PASSES for n in ATTENTION_LENGTHS},
    "collectives.all_reduce_2": 1e9,
    "collectives.all_reduce_2_start": 1e-4,
    "collectives.all_reduce_8": 5e8,
    "collectives.all_reduce_8_start": 3e-4,
}


@functools.cache
def measured_machine() -> sw.System:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/host.toml"
        write_chip(MeasuredRates(n_devices=2, figures=MEMORY | FIGURES), path)
        return sw.hardware(f"{path}:2")


def machine(**changed: float | None) -> sw.System:
    system = measured_machine()
    values: dict[str, Any] = {f"training.{key}": rate for key, rate in changed.items()}
    return replace(system, chip=with_values(system.chip, values))


def step_s(system: sw.System, job: sw.Train = JOB, **fixed: Any) -> float:
    return sw.plan(MODEL, system, job, DATA | fixed).step.expected


def test_every_figure_counts() -> None:
    usual_s = step_s(machine())
    for path in FIGURES:
        if path.startswith("training."):
            key = path.removeprefix("training.")
            if "attention" in key and not key.endswith("_256"):
                continue
            slower = 2.0 if key in ("step", "layer") or key.endswith("_start") else 0.5
            assert step_s(machine(**{key: slower * FIGURES[path]})) > usual_s, path


def with_memory(cached: float, large: float) -> sw.System:
    """The machine with a memory bandwidth of arrays up to 4 MiB, and one of larger arrays."""
    rates = {
        f"memory.{memory_key(kib, n)}": large if kib > 4096 else cached
        for kib in MEMORY_KIB
        for n in MEMORY_STREAMS
    }
    return replace(machine(), chip=with_values(machine().chip, rates))


def test_larger_arrays_take_the_memory_of_their_size() -> None:
    small = measured_rates.loss_s(with_memory(2e10, 4e9).chip, np.array([512 * 2048.0]))
    assert small == pytest.approx(4 * 512 * 2048 / 1e10)  # as it was measured
    logits = 1 << 24  # 64 MiB
    seconds = measured_rates.loss_s(with_memory(2e10, 4e9).chip, logits)
    assert seconds == pytest.approx(4 * logits * (1 / 1e10 + 1 / 4e9 - 1 / 2e10), rel=0.01)
    assert measured_rates.loss_s(with_memory(2e10, 2e10).chip, logits) == pytest.approx(
        4 * logits / 1e10
    )


def test_no_byte_is_faster_than_the_memory_of_its_size() -> None:
    chip = with_memory(5e9, 5e9).chip
    assert measured_rates.loss_s(chip, 1e6) == pytest.approx(4e6 / 5e9)


def test_elementwise_work_of_more_tokens_is_in_larger_memory() -> None:
    def token_s(tokens: int) -> float:
        arguments = (with_memory(2e10, 4e9).chip, "fp32", "forward", MODEL, 1, 1, tokens)
        return float(measured_rates.elementwise_s(*arguments))

    assert token_s(64 * 1024) > 1.3 * token_s(1024)
    assert token_s(256) == pytest.approx(token_s(512))


def test_what_is_added_is_the_work_at_its_rate() -> None:
    gain_s = step_s(machine(loss=None)) - step_s(machine())
    assert gain_s == pytest.approx(-4 * 4 * 256 * 1000 / 1e10)
    assert step_s(machine(step=2e-3)) - step_s(machine()) == pytest.approx(1e-3)


def test_peak_rates_are_asked_for() -> None:
    plan = sw.plan(MODEL, machine(), JOB, DATA, peak=True)
    assert plan.estimate.rates.name == "peak"
    assert plan.step.expected < step_s(machine())


def test_a_saved_plan_has_the_measured_rates(tmp_path: Path) -> None:
    path = tmp_path / "host.toml"
    write_chip(MeasuredRates(n_devices=2, figures=MEMORY | FIGURES), str(path))
    plan = sw.plan(MODEL, sw.hardware(f"{path}:2"), JOB, DATA)
    assert plan.estimate.rates.name == "hw measure"
    case = rebuild(plan)
    assert case.cal.name == "hw measure"
    assert float(case.evaluate().time.step_s) == pytest.approx(plan.step.expected)


def test_collectives_between_measured_sizes() -> None:
    chip = machine().chip
    seconds = measured_rates.collective_s(chip, "all_reduce", np.array([1, 2, 4, 8, 64]), 1e6)
    two, eight = 1e-4 + 1e-3, 3e-4 + 2e-3
    assert seconds == pytest.approx([0, two, (two + eight) / 2, eight, eight])


def test_devices_of_a_cpu_hide_no_collectives() -> None:
    estimate = sw.plan(MODEL, machine(), JOB, DATA).estimate
    assert estimate.exposed_comm_s == pytest.approx(sum(estimate.comm_s.values()))
