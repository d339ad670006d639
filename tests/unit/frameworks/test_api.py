"""`sw.export` and `sw.import_plan`."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardwise as sw
from shardwise.errors import BadFile, BadInput
from tests.unit.frameworks import plans


def test_a_plan_is_exported_and_imported(tmp_path: Path) -> None:
    plan = plans.training("zero1")
    written = sw.export(plan, "megatron")
    assert written.command == "bash FILE"
    file = tmp_path / "train.sh"
    file.write_text(written.text)
    again = sw.import_plan(file)
    assert isinstance(again, sw.Plan)
    assert again.layout.mesh == plan.layout.mesh


def test_an_engine_is_imported_on_a_chip(tmp_path: Path) -> None:
    file = tmp_path / "v.yaml"
    file.write_text("model: Qwen/Qwen3-8B-FP8\nmax-model-len: 4096\ntensor-parallel-size: 2\n")
    plan = sw.import_plan(file, system=sw.chip("h100"))
    assert isinstance(plan, sw.ServingPlan)
    assert plan.model.name == "qwen3-8b"
    assert plan.strategy.precision["weights"] == "fp8"
    assert plan.strategy.servers.mesh["tensor"] == 2


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"zero_optimization": {"stage": 3}, "train_batch_size": 8}')
    with pytest.raises(BadInput, match="does not name its model"):
        sw.import_plan(file)
    with pytest.raises(BadInput, match="does not name its system"):
        sw.import_plan(file, sw.model("gpt2"))
    with pytest.raises(BadInput, match="h100 is a chip"):
        sw.import_plan(file, sw.model("gpt2"), sw.chip("h100"))
    with pytest.raises(BadFile, match="No such file"):
        sw.import_plan(tmp_path / "none.yaml")


def test_a_report_of_a_plan_in_memory(tmp_path: Path) -> None:
    sw.report(plans.training("zero1"), tmp_path / "plan.html")
    assert "llama3-8b" in (tmp_path / "plan.html").read_text(encoding="utf-8")
    with pytest.raises(BadFile, match="Nothing was saved"):
        sw.report(plans.training("zero1"), tmp_path / "no" / "plan.html")
