"""A plan that is made for a framework is one that the framework runs, word for word."""

from __future__ import annotations

import json

import pytest

import shardwise as sw
from shardwise.errors import BadInput
from shardwise.frameworks import registry, replan, simple_yaml
from shardwise.frameworks.launch import TrainingLaunch
from shardwise.plan.schema.training import Plan
from shardwise.search.training.framework_limits import state_of

# Model, machine, sequences of a step: dense, with experts, with windows, with room for chunks.
JOBS = {
    "dense": ("llama3-8b", "h100:32", 256),
    "large": ("llama3-70b", "h100:128", 256),
    "experts": ("mixtral-8x7b", "h100:64", 512),
    "alternating": ("gpt-oss-120b", "h100:128", 512),
    "windows": ("gemma3-12b", "h100:32", 128),
    "latent": ("deepseek-v2-lite", "h100:64", 512),
}
FRAMEWORKS = ("megatron", "nemo", "torchtitan", "maxtext", "deepspeed")
SAME = (  # of torchtitan the state has no 16-bit copy without a pipeline, as a note says
    "mesh", "zero", "schedule", "virtual", "micro_batch", "n_microbatches", "recomputed",
    "expert_tensor", "context_kind",
)  # fmt: skip


def job_for(framework: str, batch: int) -> sw.Train:
    dtypes = state_of(framework, "bf16")
    return sw.Train(batch=batch, seq=4096, framework=framework, **dtypes)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_it_is_exported_and_comes_back(framework: str, name: str) -> None:
    model_name, machine, batch = JOBS[name]
    model, system = sw.model(model_name), sw.hardware(machine)
    plan = sw.plan(model, system, job_for(framework, batch))
    text = registry.export(plan, framework).text
    assert not replan.memory_problem(plan, text, framework)
    launch = registry.read(text, f"x{registry.find(framework).suffix}").launch
    assert isinstance(launch, TrainingLaunch)
    again = replan.training_plan(launch, model, system, (batch, 4096))
    for field in SAME:
        assert getattr(again.layout, field) == getattr(plan.layout, field), field
    if framework != "torchtitan":
        assert again.strategy.precision == plan.strategy.precision
    assert again.workload.framework == framework


def fixed_beyond(framework: str) -> Plan:
    """A plan with experts and tensor parallelism together, which the user asks for."""
    fixed = {"expert": 4, "tensor": 2, "pipe": 1}
    job = job_for(framework, 512)
    return sw.plan(sw.model("mixtral-8x7b"), sw.hardware("h100:64"), job, fixed)


def test_what_is_fixed_beyond_a_framework_is_planned_and_said() -> None:
    plan = fixed_beyond("deepspeed")
    assert (plan.layout.mesh.expert, plan.layout.mesh.tensor) == (4, 2)
    beyond = [reason for reason in plan.why if reason.constraint == "framework"]
    assert [(reason.framework, reason.asked) for reason in beyond] == [
        ("deepspeed", "expert 4 with tensor 2")
    ]
    with pytest.raises(BadInput, match="and without the sizes and words that you fixed beyond it"):
        registry.export(plan, "deepspeed")
    assert not [r for r in fixed_beyond("megatron").why if r.constraint == "framework"]


def test_weights_of_torchtitan_are_sharded_over_context_too() -> None:
    """With one data rank, FSDP shards over the ranks that share a sequence."""
    flags = "--parallelism.context_parallel_degree 8 --parallelism.pipeline_parallel_degree 2"
    script = f"torchrun -m torchtitan.train --parallelism.data_parallel_shard_degree 1 {flags}"
    launch = registry.read(script, "x.sh").launch
    assert isinstance(launch, TrainingLaunch)
    assert launch.zero == 1


@pytest.mark.parametrize(
    ("options", "zero"),
    [("", 2), ("gradient_accumulation_steps: 4\n", 1), ("ici_pipeline_parallelism: 2\n", 1)],
)
def test_sums_of_maxtext_are_of_whole_gradients(options: str, zero: int) -> None:
    text = f"shard_optimizer_over_data: true\nici_data_parallelism: 8\n{options}"
    launch = registry.read(text + "ici_fsdp_parallelism: 1\n", "x.yml", "maxtext").launch
    assert isinstance(launch, TrainingLaunch)
    assert launch.zero == zero


@pytest.mark.parametrize(
    ("framework", "kind", "n_limits"),
    [
        ("megatron", "ring", 1),
        ("nemo", "ring", 1),
        ("megatron", "gather", 0),
        ("maxtext", "ring", 1),
    ],
)
def test_a_ring_has_no_windows(framework: str, kind: str, n_limits: int) -> None:
    job = sw.Train(batch=64, seq=8192, framework=framework, remat="full")
    mesh = sw.Mesh(fsdp=8, context=2)
    words = {"context_kind": kind}
    plan = sw.evaluate(sw.model("gemma3-4b"), sw.hardware("h100:16"), job, mesh, words)
    assert sum(reason.constraint == "framework" for reason in plan.why) == n_limits


def test_a_rack_of_gpus_has_several_hosts() -> None:
    """GB200: 18 hosts of 4 GPUs in a domain of 72."""
    job = sw.Train(batch=144, seq=4096, framework="torchtitan")
    plan = sw.plan(sw.model("llama3-8b"), sw.hardware("gb200:72"), job)
    assert "--nnodes 18 --nproc-per-node 4" in registry.export(plan, "torchtitan").text
    settings = simple_yaml.read(registry.export(plan, "maxtext").text, "x.yml")
    assert all(value == 1 for key, value in settings.items() if key.startswith("dcn_"))


@pytest.mark.parametrize(("zero", "in_file"), [(1, True), (3, False)])
def test_gradients_of_deepspeed_are_wider_under_zero_1_alone(zero: int, in_file: bool) -> None:
    job = sw.Train(batch=64, seq=4096)
    mesh = sw.Mesh(fsdp=16) if zero == 3 else sw.Mesh(data=16)
    words = {"remat": "full"} if zero == 3 else {"remat": "full", "zero": 1}
    plan = sw.evaluate(sw.model("llama3.2-1b"), sw.hardware("h100:16"), job, mesh, words)
    export = registry.export(plan, "deepspeed")
    settings = json.loads(export.text)
    assert settings["communication_data_type"] == "fp32"
    assert (settings.get("data_types") == {"grad_accum_dtype": "fp32"}) == in_file
    said = [note for note in export.notes if "gradients in fp32: under ZeRO-3 in bf16" in note]
    assert bool(said) != in_file


@pytest.mark.parametrize(
    ("machine", "attention"), [("h100:16", "cudnn_flash_te"), ("v5p:2x2x4", None)]
)
def test_the_attention_of_maxtext_knows_tokens_of_other_ranks(
    machine: str, attention: str | None
) -> None:
    job = sw.Train(batch=64, seq=8192, framework="maxtext", remat="full")
    words = {"context_kind": "gather"}
    mesh = sw.Mesh(fsdp=8, context=2)
    plan = sw.evaluate(sw.model("llama3-8b"), sw.hardware(machine), job, mesh, words)
    settings = simple_yaml.read(registry.export(plan, "maxtext").text, "x.yml")
    assert settings.get("attention") == attention


def test_what_recipes_of_nemo_set_for_other_layouts_is_reset() -> None:
    job = sw.Train(batch=512, seq=4096, framework="nemo", remat="full")
    mesh = sw.Mesh(fsdp=16, expert=8)
    plan = sw.evaluate(sw.model("mixtral-8x7b"), sw.hardware("h100:128"), job, mesh)
    text = registry.export(plan, "nemo").text
    for line in (
        "model.config.moe_enable_deepep=False",
        "trainer.strategy.num_layers_in_first_pipeline_stage=None",
        "trainer.strategy.num_layers_in_last_pipeline_stage=None",
        "trainer.strategy.ddp.grad_reduce_in_fp32=True",
    ):
        assert line in text
    assert "not read" not in " ".join(registry.read(text, "a.sh").launch.notes)


@pytest.mark.parametrize(
    ("sizes", "asked"),
    [
        ({"data": 2, "fsdp": 4, "tensor": 2}, "data 2 with tensor 2 under ZeRO-3"),
        ({"fsdp": 4, "tensor": 2, "context": 2}, "context 2 with tensor 2"),
    ],
)
def test_tensor_parallelism_beside_which_deepspeed_has_no_groups(
    sizes: dict[str, int], asked: str
) -> None:
    job = sw.Train(batch=64, seq=8192, framework="deepspeed", remat="full")
    words = {"context_kind": "ulysses"} if "context" in sizes else {}
    plan = sw.evaluate(sw.model("llama3-8b"), sw.hardware("h100:16"), job, sw.Mesh(**sizes), words)
    with pytest.raises(BadInput, match=asked):
        registry.export(plan, "deepspeed")
