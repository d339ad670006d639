"""`bench/accelerator.py`: what it keeps, what it tells, and its stages in small on this CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardwise.hardware.load import load_chip
from shardwise.measure.chip_file import write_chip
from shardwise.measure.rates import MeasuredRates
from tests.benches import BENCH, imported

ROOT = BENCH.parent
H100 = "NVIDIA H100 80GB HBM3"
ABOUT = {"date": "2026-11-23", "jax": "0.10.2", "seconds": 1.0}
SPEEDS = {"step_s": 0.5, "tokens_per_s": 65536.0, "mfu": 0.55}
DECODE = {"categories": {"matmul": 5e-3}}
STEP = {
    "step_s": 0.5,
    "categories": {"matmul": 0.4, "gap": 0.1},
    "operations": [{"name": "mlp.up", "category": "matmul", "count": 3.0, "seconds": 0.4}],
}
FOUND: dict[str, dict[str, Any]] = {
    "measure": {
        "flops_per_s": {"bf16": 7e14},
        "memory": {"64 MiB": {"read": 3e12}},
        "copies": {"to device": 5e10},
        "latency_s": {"awaited": 2e-5},
    },
    "kernels": {
        "rows": [
            {"name": "attention, llama", "apart": 0.003, "seconds": 2e-3, "of_roofline": 0.6},
            {"name": "attention, other", "failed": "no such kernel"},
        ],
    },
    "parity": {"steps": 10, "apart": {"losses": 1e-6}, "most": {"losses": 1e-4}},
    "train-1b": {
        **SPEEDS,
        **{"n_layers": 15, "of_layers": 16, "batch": 16, "seq": 2048},
        **{"n_microbatches": 2, "remat": "none", "planned_s": 0.45, "account": STEP},
        **{"planned_memory_bytes": 6e10, "program_bytes": 5e10, "peak_memory_bytes": 5.1e10},
    },
    "decode-8b": {
        **{"n_layers": 32, "of_layers": 32, "context": 2048},
        "rows": [
            {
                "batch": 1,
                "bytes": 1.5e10,
                "step_s": 6e-3,
                "account": DECODE,
                "planned_s": 7e-3,
                "share": {"catalog": 0.75},
            }
        ],
        "note": "Before a change.",
    },
    "serve": {
        "rows": [
            {
                **{"sequences": 64, "prompt": 512, "output": 128, "first_s": 0.5},
                **{"step_s": 12e-3, "decode_tokens_per_s": 5300.0, "same_as_alone": 0.5},
                "planned_s": 11e-3,
            }
        ],
    },
    "families": {"rows": [{"name": "gemma3", "planned_s": 0.1, "step_s": 0.08, "ratio": 1.25}]},
    "layouts": {
        "rows": [
            {"name": "wide", "planned_s": 0.1, "step_s": 0.125, "ratio": 0.8},
            {"name": "narrow", "error": "does not fit"},
        ],
        **{"median_error": 0.2, "left_out": ["last"]},
    },
    "torch": {**SPEEDS, "version": "2.13.0", "n_layers": 15},
}
TOLD = {
    "measure": "| matmul bf16 | 700.0 TFLOP/s |",
    "kernels": "| attention, llama | 3.0e-03 | 2 ms | 60% |",
    "parity": "| losses | 1.0e-06 | 0.0001 |",
    "train-1b": "| 15 of 16 | 16x2048 / 2 | none | 450 ms | 500 ms | 65,536 | 55.0% |",
    "decode-8b": "| batch 1 | 15.00 GB | 7 ms | 6 ms | - | 75.0% | 5 ms | - | - |",
    "serve": "| 64 x 512 + 128 | 500 ms | 11 ms | 12 ms | 5,300 | 50% |",
    "families": "| gemma3 | 100 ms | 80 ms | 1.25 |",
    "layouts": "| wide | 100 ms | 125 ms | 0.80 |",
    "torch": "| 2.13.0 | 15 | 500 ms | 65,536 | 55.0% |",
}


def module(monkeypatch: pytest.MonkeyPatch, name: str) -> Any:
    """A script as it is imported when it is run; those that it imports are not fresh."""
    return imported(monkeypatch, name)[0]


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Any:
    return module(monkeypatch, "accelerator")


def gpu(accelerator: Any, **changed: Any) -> Any:
    """The fields of a GPU."""
    known = {"kind": H100, "platform": "gpu", "count": 1, "shape": [], "tiny": False}
    return known | {"memory_bytes": 70 << 30} | changed


def test_the_page_is_that_of_the_results(accelerator: Any) -> None:
    results = BENCH / "accelerator.json"
    kept = json.loads(results.read_text()) if results.exists() else {}
    assert accelerator.PAGE.read_text() == accelerator.page(kept)


def test_the_page_without_results_says_so_for_every_stage(accelerator: Any) -> None:
    lines = accelerator.page({}).splitlines()
    assert lines.count("not measured yet") == len(accelerator.STAGES)


def test_results_of_a_cpu_are_not_on_the_page(accelerator: Any) -> None:
    stages = {name: ABOUT | found for name, found in FOUND.items()}
    assert accelerator.page({"cpu": {"platform": "cpu", "stages": stages}}) == accelerator.page({})


def test_the_page_tells_every_result(accelerator: Any) -> None:
    stages: dict[str, Any] = {name: ABOUT | found for name, found in FOUND.items()}
    stages["train-8b"] = ABOUT | {"error": "RESOURCE_EXHAUSTED: out of memory"}
    page = accelerator.page({H100: {"platform": "gpu", "stages": stages}})
    parts = {part.split("\n")[0]: part for part in page.split("\n## ")[1:]}
    assert list(parts) == list(accelerator.STAGES)
    for name, line in TOLD.items():
        assert line in parts[name].splitlines()
    assert f"{H100}, JAX 0.10.2, 2026-11-23: not measured yet (failed: RESOURCE_EXHAUSTED" in page
    assert "Median error 20.0%. Left out for time: last." in page
    assert "Memory: 60.0 GB planned, 50.0 GB compiled, 51.0 GB at its peak." in page
    assert "The profile of a step of 500 ms: matmul 80.0%, gap 20.0%." in page
    assert "| mlp.up | matmul | 3 | 400 ms |" in page
    assert "Before a change." in parts["decode-8b"]


def test_the_page_has_the_rows_of_a_stage_that_failed(accelerator: Any) -> None:
    stages = {"families": ABOUT | FOUND["families"] | {"error": "took more than 480 s"}}
    page = accelerator.page({H100: {"platform": "gpu", "stages": stages}})
    assert "2026-11-23 (the stage failed: took more than 480 s):" in page
    assert TOLD["families"] in page.splitlines()


def test_a_stage_that_takes_too_long_has_what_it_reported(
    accelerator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*_: Any, **__: Any) -> Any:
        raise subprocess.TimeoutExpired("python", 480, output=b'{"rows": [1]}\n{"rows": [1, 2]}\n')

    monkeypatch.setattr(subprocess, "run", late)
    found = accelerator.in_process("kernels", {"platform": "gpu"})
    assert found == {"rows": [1, 2], "error": "took more than 480 s"}
    assert not accelerator.has_result(found)


def test_a_run_goes_on_where_the_last_one_ended(
    accelerator: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A stage that fails leaves the others, is run again, and replaces no result."""
    out = tmp_path / "results.json"
    monkeypatch.setattr(accelerator, "PAGE", tmp_path / "page.md")
    failing = {"parity"}
    ran = []

    def in_process(what: str, about: Any) -> Any:
        if what == "device":
            return gpu(accelerator, **about)
        ran.append(what)
        return {"error": "it broke"} if what in failing else FOUND.get(what, FOUND["train-1b"])

    monkeypatch.setattr(accelerator, "in_process", in_process)
    assert accelerator.main(["--out", str(out)]) == 1
    assert ran == list(accelerator.STAGES)
    stages = json.loads(out.read_text())[H100]["stages"]
    assert stages["parity"]["error"] == "it broke"
    assert stages["torch"]["mfu"] == 0.55
    assert "(failed: it broke)" in accelerator.PAGE.read_text()
    ran.clear()
    failing.clear()
    assert accelerator.main(["--out", str(out)]) == 0
    assert ran == ["parity"]
    failing.add("torch")
    assert accelerator.main(["torch", "--out", str(out)]) == 1
    assert json.loads(out.read_text())[H100]["stages"]["torch"]["mfu"] == 0.55


def test_a_failure_is_one_line(accelerator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: Any) -> None:
        raise RuntimeError("out of memory\nsays the driver")

    stage = module(monkeypatch, "accelerator_layouts")
    monkeypatch.setattr(stage, "layouts", broken)
    device = accelerator.device_of(gpu(accelerator, out="results.json"))
    assert accelerator.run("layouts", device)["error"] == "RuntimeError: out of memory"


def test_a_cpu_runs_tiny_stages_only(
    accelerator: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cpu = lambda what, about: gpu(accelerator, **about) | {"platform": "cpu"}
    monkeypatch.setattr(accelerator, "in_process", cpu)
    with pytest.raises(SystemExit, match="no GPU or TPU here"):
        accelerator.main(["--out", str(tmp_path / "results.json")])


@pytest.mark.parametrize(
    ("kind", "platform", "shape", "one", "whole"),
    [
        (H100, "gpu", [], "h100:1,hbm=65.100GiB", "h100:8,hbm=65.100GiB"),
        ("TPU v5 lite", "tpu", [2, 4, 1], "v5e:1x1,hbm=65.100GiB", "v5e:2x4,hbm=65.100GiB"),
        ("TPU v5", "tpu", [2, 2, 1], "v5p:1x1x1,hbm=65.100GiB", "v5p:2x2x1,hbm=65.100GiB"),
        ("TPU7x", "tpu", [2, 2, 1], "7x:1x1x1,hbm=130.200GiB", "7x:2x2x1,hbm=130.200GiB"),
    ],
)
def test_the_machine_of_a_device(
    accelerator: Any, kind: str, platform: str, shape: list[int], one: str, whole: str
) -> None:
    about = gpu(accelerator, kind=kind, platform=platform, count=8, shape=shape, out="results.json")
    device = accelerator.device_of(about)
    assert device.machine(measured=False).name == one
    assert device.machine(measured=False, whole=True).name == whole


def test_layouts_are_planned_at_measured_rates(
    accelerator: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Twelve for one device and three for all; one that does not run leaves the others."""
    stage = module(monkeypatch, "accelerator_layouts")
    device = accelerator.device_of(gpu(accelerator, count=8, out=str(tmp_path / "results.json")))
    planned = []

    def timed(plan: Any, devices: Any, steps: int) -> Any:
        planned.append(plan)
        if len(planned) == 1:
            raise RuntimeError("RESOURCE_EXHAUSTED")
        return {"step_s": plan.step.expected / 0.9}

    monkeypatch.setattr(stage, "local_devices", list)
    monkeypatch.setattr(stage, "timed", timed)
    with pytest.raises(accelerator.Skipped, match="the stage measure"):
        stage.layouts(device)
    figures = {"peak.bf16": 6e14, "hbm.bandwidth": 2.8e12}
    rates = MeasuredRates(n_devices=1, kind="gpu", device_kind=H100, figures=figures)
    write_chip(rates, str(device.measured_file))
    found = stage.layouts(device)
    assert [plan.hardware.n_chips for plan in planned] == [1] * 12 + [8] * 3
    assert {plan.estimate.rates.name for plan in planned} == {"peak"}
    assert found["rows"][0]["error"] == "RESOURCE_EXHAUSTED"
    assert [row["ratio"] for row in found["rows"][1:]] == pytest.approx([0.9] * 14)
    assert found["median_error"] == pytest.approx(0.1)
    assert found["left_out"] == []


@pytest.mark.oracle
def test_two_stages_on_this_cpu(
    accelerator: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    device = accelerator.found_device(tiny=True, out=str(tmp_path / "results.json"))
    measured = accelerator.run("measure", device)
    assert measured["flops_per_s"].keys() == {"bf16", "fp32", "int8"}
    assert load_chip(device.measured_file).hbm_bytes_per_s == pytest.approx(
        measured["bytes_per_s"], rel=1e-3
    )
    accelerator.keep(Path(device.out), device, "measure", measured)
    decoded = accelerator.run("decode-8b", device)
    assert [row["batch"] for row in decoded["rows"]] == [1, 2, 4]
    for row in decoded["rows"]:
        reading_s = row["bytes"] / measured["read_bytes_per_s"]
        assert row["share"]["measured"] == pytest.approx(reading_s / row["step_s"])


@pytest.mark.oracle
def test_the_command_in_small(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    stages = ["measure", "parity", "train-1b"]
    command = [sys.executable, str(BENCH / "accelerator.py"), *stages, "--tiny", "--out", str(out)]
    page = (ROOT / "docs" / "accelerator.md").read_text()
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    ((_, kept),) = json.loads(out.read_text()).items()
    found = kept["stages"]
    assert list(found) == stages
    assert found["parity"]["apart"] == {"losses": 0.0, "norms": 0.0}
    assert found["train-1b"]["mfu"] > 0
    assert (ROOT / "docs" / "accelerator.md").read_text() == page


@pytest.mark.oracle
def test_the_step_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Microbatches leave the loss as it is, and steps lower it."""
    stage = module(monkeypatch, "accelerator_torch")
    sizes = {"n_layers": 2, "d_model": 64, "d_ff": 128, "n_heads": 4, "vocab": 256}
    about = {**sizes, "seq": 32, "eps": 1e-6, "theta": 1e4}
    losses = []
    for micro_batch in (4, 2):
        step, _ = stage.stepper(about, 4, micro_batch, "cpu", compiled=False)
        losses.append([step() for _ in range(3)])
    whole, parts = losses
    assert parts == pytest.approx(whole, rel=1e-2)
    assert whole[-1] < whole[0]
