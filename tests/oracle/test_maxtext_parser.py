"""Files for MaxText in MaxText's configuration: mesh, batch and pipeline are those of the plan."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import shardwise as sw
from shardwise.errors import BadInput
from shardwise.frameworks import registry
from shardwise.frameworks.exported import training_run
from shardwise.hardware import Switched
from tests.oracle import framework_parsers
from tests.unit.frameworks import plans

pytestmark = pytest.mark.oracle

AXES = {
    "data": "data", "fsdp": "fsdp", "tensor": "tensor", "context": "context", "expert": "expert",
    "pipe": "pipeline",
}  # fmt: skip
REFUSED = {"1f1b", "uneven", "empty-chunks", "ulysses", "whole-experts"}
TPUS = {
    "tpu-gather": ("llama3-8b", "gather"),
    "tpu-ring": ("llama3-8b", "ring"),
    "tpu-ulysses": ("llama3-8b", "ulysses"),
    "tpu-latent-ring": ("deepseek-v2-lite", "ring"),
}
DEVICES = 128  # of 64 chips of 7x
NAMES = [*plans.TRAINING, *TPUS]
Answers = dict[str, dict[str, Any]]


def plan(name: str) -> sw.Plan:
    if name not in TPUS:
        return plans.training(name)
    model, kind = TPUS[name]
    job = sw.Train(batch=64, seq=16384, remat="full")
    mesh = sw.Mesh(fsdp=16, context=4)
    words = {"context_kind": kind}
    return sw.evaluate(sw.model(model), sw.hardware("v5p:4x4x4"), job, mesh, words)


def ironwood() -> sw.Plan:
    job = sw.Train(batch=128, seq=8192, remat="full")
    return sw.evaluate(
        sw.model("llama3-8b"), sw.hardware("7x:4x4x4"), job, sw.Mesh(fsdp=64), {"micro_batch": 2}
    )


def request(path: Path, text: str, name: str, **changes: int) -> dict[str, Any]:
    """The file, and the machine that the configuration is checked for."""
    path.write_text(text)
    run = training_run(plan(name))
    on_gpus = isinstance(run.system.topology, Switched)
    slices = run.nodes.count if on_gpus else run.nodes.slices
    machine = {"devices": run.layout.mesh.n_chips, "slices": slices}
    return {"file": str(path), "folder": str(path.parent), **machine, **changes}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    folder = tmp_path_factory.mktemp("maxtext")
    requests = {}
    for name in NAMES:
        try:
            text = registry.export(plan(name), "maxtext").text
        except BadInput:
            continue
        requests[name] = request(folder / f"{name}.yml", text, name)
    text = registry.export(plan("hybrid"), "maxtext").text
    faults = {
        "key": text + "ici_fsdp_parallel: 4\n",
        "value": text.replace("per_device_batch_size: 4", "per_device_batch_size: four"),
    }
    for fault, changed in faults.items():
        assert changed != text
        requests[fault] = request(folder / f"{fault}.yml", changed, "hybrid")
    requests["one-slice"] = request(folder / "one-slice.yml", text, "hybrid", slices=1)
    path = folder / "ironwood.yml"
    path.write_text(registry.export(ironwood(), "maxtext").text)
    requests["ironwood"] = {"file": str(path), "folder": str(folder), "devices": DEVICES}
    requests["ironwood"]["slices"] = 1
    return framework_parsers.read("maxtext", requests)


@pytest.mark.parametrize("name", NAMES)
def test_maxtext_reads_the_mesh_of_the_plan(answers: Answers, name: str) -> None:
    if name in REFUSED:
        assert name not in answers  # refused by `export`
        return
    config = answers[name]
    layout, job = plan(name).layout, plan(name).job
    assert config.get("error") is None
    networks = {
        network: dict(zip(config["mesh_axes"], config[f"{network}_parallelism"], strict=True))
        for network in ("ici", "dcn")
    }
    sizes = {
        role: networks["ici"][_mesh_axis(axis)] * networks["dcn"][_mesh_axis(axis)]
        for role, axis in AXES.items()
    }
    assert sizes == layout.mesh.sizes
    assert math.prod(config["ici_parallelism"] + config["dcn_parallelism"]) == layout.mesh.n_chips
    assert config["global_batch_size_to_train_on"] == job.batch
    assert config["max_target_length"] == job.seq
    assert config["base_num_decoder_layers"] == plan(name).model.n_layers
    assert config["base_emb_dim"] == plan(name).model.d_model
    if layout.is_pipelined:
        assert config["num_pipeline_microbatches"] == layout.n_microbatches
        assert config["num_pipeline_repeats"] == layout.virtual
        assert config["gradient_accumulation_steps"] == 1
    else:
        assert config["gradient_accumulation_steps"] == layout.n_microbatches


def test_maxtext_fills_all_devices_of_ironwood(answers: Answers) -> None:
    config = answers["ironwood"]
    assert config.get("error") is None
    assert math.prod(config["ici_parallelism"]) == DEVICES
    assert config["global_batch_size_to_train_on"] == ironwood().job.batch


def _mesh_axis(axis: str) -> str:
    return "stage" if axis == "pipeline" else axis


def test_maxtext_refuses_what_it_does_not_have(answers: Answers) -> None:
    assert "'ici_fsdp_parallel' not in" in answers["key"]["error"]
    assert "only one slice available" in answers["one-slice"]["error"]
    assert "per_device_batch_size" in answers["value"]["error"]
