"""Own runs correct the plans of a chip: by how much, in which file, and again with more runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.cli import main
from shardwise.compare.calibrate import calibrate
from shardwise.compare.result import MeasuredSteps, StepComparison
from shardwise.errors import BadFile, BadInput
from shardwise.estimate.calibration import calibration, own_factor
from shardwise.hardware import catalog_chip
from shardwise.plan.schema.training import Plan
from tests.unit.compare import recorded_runs

MODEL = sw.model("llama3-8b")
JOB = sw.Train(batch=64, seq=4096)


def measured(plan: Plan, factor: float, n: int = 10) -> StepComparison:
    """A plan beside `n` steps that took `factor` times its expected time."""
    step_s = plan.estimate.step_s.expected * factor
    steps = MeasuredSteps(n=n, typical_s=step_s, low_s=step_s, high_s=step_s)
    return StepComparison(
        name=plan.model.name,
        hardware=plan.hardware.name,
        rows=(),
        figures=(),
        causes=(),
        step_s=step_s,
        steps=steps,
    )


def expected(
    hardware: str | Path, model: sw.ModelConfig = MODEL, job: sw.Train = JOB, **fixed: int | str
) -> Plan:
    return sw.plan(model, sw.hardware(str(hardware)), job, fixed)


def test_the_next_plan_expects_more_by_the_weighted_ratio(tmp_path: Path) -> None:
    file = tmp_path / "h100-own.toml"
    before = expected("h100:8")
    calibrate(before, measured(before, 1.2), str(file), "2026-11")
    after = expected(f"{file}:8")
    factor = own_factor(1.2, 1)
    assert 1.0 < factor < 1.2
    assert after.strategy.mesh == before.strategy.mesh
    assert after.step.expected == pytest.approx(factor * before.step.expected, rel=2e-3)
    assert "own" in after.estimate.rates.name
    assert after.step.lower == before.step.lower  # the roofline stays


@pytest.mark.oracle
def test_runs_are_added_and_not_counted_twice(tmp_path: Path) -> None:
    """The second run is of a plan that expects the first already."""
    file = tmp_path / "h100-own.toml"
    fixed = {"fsdp": 8, "micro_batch": 1}  # nothing is searched, as of a plan that is run again
    job = dataclasses.replace(JOB, remat="full")
    first = expected("h100:8", job=job, **fixed)
    calibrate(first, measured(first, 1.2), str(file), "2026-11")
    second = expected(f"{file}:8", job=job, **fixed)
    whole_ratio = 1.2 * first.step.expected / second.step.expected
    chip = calibrate(second, measured(second, whole_ratio, 11), str(file), "2026-11")
    assert chip.n_own_runs == 2
    assert chip.own_step_ratio == pytest.approx(1.2, rel=2e-3)
    for n in range(20, 60):
        plan = expected(f"{file}:8", job=job, **fixed)
        ratio = 1.2 * first.step.expected / plan.step.expected
        calibrate(plan, measured(plan, ratio, n), str(file), "2026-11")
    last = expected(f"{file}:8", job=job, **fixed)
    assert last.step.expected == pytest.approx(1.2 * first.step.expected, rel=5e-3)


def test_one_run_counts_once(tmp_path: Path) -> None:
    file = tmp_path / "h100-own.toml"
    plan = expected("h100:8")
    calibrate(plan, measured(plan, 1.2), str(file), "2026-11")
    saved = file.read_text()
    assert calibrate(plan, measured(plan, 1.2), str(file), "2026-11").n_own_runs == 1
    assert file.read_text() == saved
    assert calibrate(plan, measured(plan, 1.2, 11), str(file), "2026-11").n_own_runs == 2
    assert calibrate(plan, measured(plan, 1.2, 11), str(file), "2026-11").n_own_runs == 2


def test_a_run_that_counts_already_is_saved_in_another_file(tmp_path: Path) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    plan = expected("h100:8")
    calibrate(plan, measured(plan, 1.2), str(first), "2026-11")
    again = expected(f"{first}:8")
    comparison = measured(plan, 1.2)
    assert calibrate(again, comparison, str(second), "2026-11").n_own_runs == 1
    assert second.read_text() == first.read_text()


def test_the_rates_of_a_measured_machine_are_changed(tmp_path: Path) -> None:
    host = recorded_runs.FOLDER / "host.toml"
    before = recorded_runs.plan()
    own = tmp_path / "own.toml"
    chip = calibrate(before, measured(before, 1.5), str(own), "2026-11")
    factor = own_factor(1.5, 1)
    recorded = sw.hardware(f"{host}:2").chip
    for name, value in recorded.training.items():
        slower = value * factor if name.endswith("_start") else value / factor
        assert chip.training[name] == pytest.approx(slower, rel=1e-4), name


def test_slowed_rates_take_longer_by_the_factor() -> None:
    rates = calibration(catalog_chip("h100")).slowed(2.0)
    assert rates.matmul("bf16") == pytest.approx(
        calibration(catalog_chip("h100")).matmul("bf16") / 2
    )
    assert rates.kernel_s == 2 * calibration(catalog_chip("h100")).kernel_s


@pytest.mark.parametrize(("ratio", "n_runs"), [(1.3, 1), (0.8, 3)])
def test_more_runs_weigh_more(ratio: float, n_runs: int) -> None:
    fewer = abs(own_factor(ratio, n_runs) - 1)
    assert fewer < abs(own_factor(ratio, n_runs + 1) - 1) < abs(ratio - 1)


def test_a_file_of_another_chip_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    v5p = expected("v5p:2x2x2")
    calibrate(v5p, measured(v5p, 1.1), str(file), "2026-11")
    text = file.read_text()
    plan = expected("h100:8")
    with pytest.raises(BadFile, match=r"is of v5p, and the plan of h100"):
        calibrate(plan, measured(plan, 1.1), str(file), "2026-11")
    assert file.read_text() == text


def test_without_measured_steps_nothing_is_written(tmp_path: Path) -> None:
    plan = expected("h100:8")
    comparison = dataclasses.replace(measured(plan, 1.1), steps=None)
    with pytest.raises(BadInput, match="needs measured steps"):
        calibrate(plan, comparison, str(tmp_path / "own.toml"), "2026-11")
    assert list(tmp_path.iterdir()) == []


def test_two_plans_are_no_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = expected("h100:8")
    for name in ("a.json", "b.json"):
        plan.save(str(tmp_path / name))
    files = [str(tmp_path / name) for name in ("a.json", "b.json")]
    assert main(["compare", *files, "--calibrate", str(tmp_path / "own.toml")]) == 2
    assert "--calibrate needs a training plan and its run or trace" in capsys.readouterr().err
