"""Files for Megatron in the configuration classes of Megatron Bridge and Megatron Core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardwise.errors import BadInput
from shardwise.frameworks import registry
from tests.oracle import framework_parsers
from tests.unit.frameworks import plans

pytestmark = pytest.mark.oracle

REFUSED = {"gpipe", "slices"}
Answers = dict[str, dict[str, Any]]


def request(path: Path, text: str, name: str) -> dict[str, Any]:
    """A file, and the sizes of the model whose recipe it overrides."""
    path.write_text(text)
    plan = plans.training(name)
    model = {
        "num_layers": plan.model.n_layers,
        "hidden_size": plan.model.d_model,
        "num_attention_heads": plan.model.n_heads,
        "num_query_groups": plan.model.n_kv_heads,
        "num_moe_experts": plan.model.n_experts or None,
    }
    ranks = plan.layout.mesh.n_chips
    return {"file": str(path), "folder": str(path.parent), "model": model, "ranks": ranks}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    folder = tmp_path_factory.mktemp("megatron")
    requests = {}
    for framework, suffix in (("megatron-bridge", "yaml"), ("megatron", "sh")):
        for name in plans.TRAINING:
            try:
                text = registry.export(plans.training(name), framework).text
            except BadInput:
                continue
            path = folder / f"{framework}-{name}.{suffix}"
            requests[f"{framework} {name}"] = request(path, text, name)
    text = registry.export(plans.training("zero1"), "megatron-bridge").text
    requests["ranks"] = request(folder / "ranks.yaml", text, "zero1") | {"ranks": 60}
    sharded = text.replace("ddp:\n", "ddp:\n  use_megatron_fsdp: true\n")
    requests["format"] = request(folder / "format.yaml", sharded, "zero1")
    return framework_parsers.read("megatron", requests)


@pytest.mark.parametrize("name", plans.TRAINING)
@pytest.mark.parametrize("framework", ["megatron-bridge", "megatron"])
def test_megatron_reads_the_mesh_of_the_plan(answers: Answers, framework: str, name: str) -> None:
    if name in REFUSED:
        assert f"{framework} {name}" not in answers  # refused by `export`
        return
    config = answers[f"{framework} {name}"]
    layout = plans.training(name).layout
    mesh = layout.mesh
    assert config.get("error") is None
    assert config["tensor_model_parallel_size"] == mesh.tensor
    assert config["context_parallel_size"] == mesh.context
    assert config["pipeline_model_parallel_size"] == mesh.pipe
    experts = plans.training(name).model.n_experts
    assert config["num_moe_experts"] == (experts or None)
    if experts:
        shards = layout.expert_tensor or mesh.tensor
        assert config["expert_tensor_parallel_size"] == shards
        assert config["expert_model_parallel_size"] == mesh.expert * mesh.tensor // shards
    sharding = {2: "optim_grads", 3: "optim_grads_params"}.get(layout.zero)
    assert config["use_megatron_fsdp"] is (sharding is not None)
    if sharding:
        assert config["data_parallel_sharding_strategy"] == sharding


@pytest.mark.parametrize("name", sorted(set(plans.TRAINING) - REFUSED))
def test_megatron_bridge_reads_the_batch_of_the_plan(answers: Answers, name: str) -> None:
    config = answers[f"megatron-bridge {name}"]
    layout, job = plans.training(name).layout, plans.training(name).job
    ranks = layout.mesh.data * layout.mesh.fsdp * layout.mesh.expert
    assert config["data_parallel_size"] == ranks
    assert config["micro_batch_size"] == layout.micro_batch
    assert config["global_batch_size"] == job.batch
    assert config["sequence_length"] == job.seq
    chunks = config["virtual_pipeline_model_parallel_size"]
    assert chunks == (layout.virtual if layout.virtual > 1 else None)


def test_megatron_bridge_refuses_what_it_cannot_run(answers: Answers) -> None:
    assert "not divisible by total_model_size" in answers["ranks"]["error"]
    assert "fsdp_dtensor" in answers["format"]["error"]
