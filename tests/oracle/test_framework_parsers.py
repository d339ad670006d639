"""Exported files in the frameworks' own parsers: torchtitan's configuration, DeepSpeed's JSON."""

from __future__ import annotations

import dataclasses
import importlib
import json
import shlex
from importlib import resources
from typing import Any

import pytest

from shardwise.errors import BadInput
from shardwise.frameworks import registry
from tests.oracle import torchtitan_registry
from tests.unit.frameworks import plans

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]


def exported(name: str, framework: str) -> str:
    """The file of a plan; the test is passed over if the framework refuses the layout."""
    try:
        return registry.export(plans.training(name), framework).text
    except BadInput as error:
        pytest.skip(str(error))


def torchtitan_config() -> Any:
    """The sections of torchtitan's configuration that an exported file sets.

    Those of the models' own configurations need datasets, and are not imported.
    """
    configs = importlib.import_module("torchtitan.config.configs")
    sections = {
        "training": configs.TrainingConfig,
        "parallelism": configs.ParallelismConfig,
        "compile": configs.CompileConfig,
    }
    fields = [
        (name, kind, dataclasses.field(default_factory=kind)) for name, kind in sections.items()
    ]
    return dataclasses.make_dataclass("Config", fields)


@pytest.mark.parametrize("name", plans.TRAINING)
def test_torchtitan_reads_the_mesh_of_the_plan(name: str) -> None:
    text = exported(name, "torchtitan")
    words = shlex.split(text[text.index("torchrun") :].replace("\\\n", " "))
    flags = words[words.index("torchtitan.train") + 1 :]
    assert (flags[0], flags[2]) == ("--module", "--config")
    flags = [flag for flag in flags[4:] if not flag.startswith("activation-checkpoint:")]
    config = importlib.import_module("tyro").cli(torchtitan_config(), args=flags)
    mesh, sizes = plans.training(name).layout.mesh, config.parallelism
    ranks = sizes.data_parallel_replicate_degree * sizes.data_parallel_shard_degree
    assert ranks == mesh.data * mesh.fsdp * mesh.expert
    assert sizes.tensor_parallel_degree == mesh.tensor
    assert sizes.context_parallel_degree == mesh.context
    assert sizes.pipeline_parallel_degree == mesh.pipe
    assert config.training.global_batch_size == plans.training(name).job.batch
    assert config.training.seq_len == plans.training(name).job.seq


def test_the_configurations_kept_are_those_of_torchtitan() -> None:
    file = resources.files("shardwise.frameworks") / "torchtitan_configs.json"
    assert json.loads(file.read_text("utf-8"))["configs"] == torchtitan_registry.configurations()


def test_torchtitan_refuses_what_it_does_not_have() -> None:
    with pytest.raises(SystemExit):
        importlib.import_module("tyro").cli(
            torchtitan_config(), args=["--parallelism.tensor_parallel_degrees", "8"]
        )


class Ranks:
    """What DeepSpeed asks the launcher: the ranks of data parallelism."""

    def __init__(self, count: int) -> None:
        self.count = count

    def get_data_parallel_world_size(self) -> int:
        return self.count


@pytest.fixture
def deepspeed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """DeepSpeed's configuration class, as in a process that its launcher has started."""
    comm = importlib.import_module("deepspeed.comm")
    monkeypatch.setattr(comm, "get_rank", lambda *_: 0)
    monkeypatch.setattr(comm, "get_world_size", lambda *_: 1)
    return importlib.import_module("deepspeed.runtime.config").DeepSpeedConfig


@pytest.mark.parametrize("name", plans.TRAINING)
def test_deepspeed_reads_the_batch_and_stage_of_the_plan(deepspeed: Any, name: str) -> None:
    document = json.loads(exported(name, "deepspeed"))
    plan = plans.training(name)
    mesh = plan.layout.mesh
    config = deepspeed(document, mpu=Ranks(mesh.data * mesh.fsdp * mesh.expert))
    assert config.train_batch_size == plan.job.batch
    assert config.train_micro_batch_size_per_gpu == plan.layout.micro_batch
    assert config.gradient_accumulation_steps == plan.layout.n_microbatches
    assert config.zero_optimization_stage == plan.layout.zero


def test_deepspeed_refuses_another_number_of_ranks(deepspeed: Any) -> None:
    document = json.loads(exported("zero1", "deepspeed"))
    with pytest.raises(AssertionError, match="train_batch_size"):
        deepspeed(document, mpu=Ranks(3))
