"""Experts of a launch: whole ones for some ranks, or a slice of each expert for all of them."""

from __future__ import annotations

import re

import pytest

import shardwise as sw
from shardwise.cli.inputs import parse_fixed
from shardwise.frameworks import registry, replan
from shardwise.frameworks.launch import ServingLaunch, TrainingLaunch
from tests.unit.frameworks import plans

VLLM = "vllm serve mistralai/Mixtral-8x7B-v0.1 --max-model-len 4096 --max-num-seqs 64"
SGLANG = (
    "python3 -m sglang.launch_server --model-path mistralai/Mixtral-8x7B-v0.1 "
    "--context-length 4096 --max-running-requests 64"
)
TENSORRT = "max_seq_len: 4096\nmax_batch_size: 64\ntensor_parallel_size: 8\n"
MEGATRON = """torchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py --num-layers 32 \\
  --num-experts 8 --moe-router-topk 2 --tensor-model-parallel-size 4 --sequence-parallel \\
  --expert-model-parallel-size 2 --use-distributed-optimizer --micro-batch-size 1 \\
  --global-batch-size 256 --seq-length 4096 --recompute-granularity full --bf16
"""


def engine(text: str) -> ServingLaunch:
    name = "a.yaml" if text.startswith("max_seq_len") else "a.sh"
    launch = registry.read(text, name).launch
    assert isinstance(launch, ServingLaunch)
    return launch


def serving_plan(text: str, machine: str = "h100:8", model: str = "mixtral-8x7b") -> sw.ServingPlan:
    return replan.serving_plan(engine(text), sw.model(model), sw.hardware(machine))


@pytest.mark.parametrize(
    ("text", "shards"),
    [
        (f"{VLLM} --tensor-parallel-size 8", None),
        (f"{VLLM} --tensor-parallel-size 8 --enable-expert-parallel", 1),
        (f"{SGLANG} --tp 8", None),
        (f"{SGLANG} --tp 8 --ep-size 1", None),
        (f"{SGLANG} --tp 8 --ep-size 8", 1),
        (f"{SGLANG} --tp 8 --ep-size 2", 4),
        (f"{SGLANG} --tp 8 --moe-a2a-backend deepep", 1),
        (TENSORRT, None),
        (f"{TENSORRT}moe_expert_parallel_size: 8\n", 1),
        (f"{TENSORRT}moe_tensor_parallel_size: 2\n", 2),
    ],
)
def test_experts_are_sliced_as_the_engine_slices_them(text: str, shards: int | None) -> None:
    assert serving_plan(text).strategy.servers.expert_tensor == shards


@pytest.mark.parametrize("framework", registry.names("serve"))
@pytest.mark.parametrize("options", ["", " --enable-expert-parallel"])
def test_a_read_engine_comes_back(framework: str, options: str) -> None:
    plan = serving_plan(f"{VLLM} --tensor-parallel-size 8{options}")
    text = registry.export(plan, framework).text
    launch = registry.read(text, "a.yaml").launch
    assert isinstance(launch, ServingLaunch)
    again = replan.serving_plan(launch, sw.model("mixtral-8x7b"), sw.hardware("h100:8"))
    assert again.strategy == plan.strategy
    if framework == "vllm":
        assert f"enable-expert-parallel: {'true' if options else 'false'}\n" in text


@pytest.mark.parametrize("command", [VLLM, SGLANG])
def test_a_dense_model_has_no_experts_to_slice(command: str) -> None:
    plan = serving_plan(f"{command} --tp 8", model="llama3-8b")
    assert plan.strategy.servers.expert_tensor is None


def test_data_ranks_of_vllm_share_the_experts_of_a_model() -> None:
    """Without expert parallelism too: only models without experts have copies."""
    launch = engine(f"{VLLM} -dp 4 -tp 2")
    assert (launch.replicas, launch.sizes["expert"]) == (4, 1)
    dense, experts = launch.on(sw.model("llama3-8b")), launch.on(sw.model("mixtral-8x7b"))
    assert dense is launch
    assert (experts.replicas, experts.sizes["expert"], experts.batch) == (1, 4, 256)
    assert "each of the 4 data-parallel ranks has slices of all experts" in experts.notes[-1]
    plan = serving_plan(f"{VLLM} -dp 8")  # of copies, none would fit
    assert plan.strategy.servers.mesh["expert"] == 8


def test_slices_of_several_groups_of_attention_are_said() -> None:
    launch = engine(f"{TENSORRT}enable_attention_dp: true\n")
    assert (launch.expert_tensor, launch.ignored) == (1, ())
    (note,) = launch.on(sw.model("mixtral-8x7b")).notes
    assert "each expert is sliced over 8 ranks of several groups of attention" in note
    assert launch.on(sw.model("llama3-8b")).notes == ()
    assert replan.serving_plan(launch, sw.model("mixtral-8x7b"), sw.hardware("h100:8"))


@pytest.mark.parametrize(
    ("options", "shards"),
    [("", None), ("--expert-model-parallel-size 8 --expert-tensor-parallel-size 1", 1)],
)
def test_megatron_slices_experts_as_dense_layers_are(options: str, shards: int | None) -> None:
    launch = registry.read(MEGATRON.replace("--bf16", f"--bf16 {options}"), "a.sh").launch
    assert isinstance(launch, TrainingLaunch)
    plan = replan.training_plan(launch, sw.model("mixtral-8x7b"), sw.hardware("h100:64"))
    assert (plan.layout.mesh.expert, plan.layout.expert_tensor) == (2, shards)


def test_copies_of_experts_within_a_tensor_group_are_said() -> None:
    text = MEGATRON.replace("--bf16", "--bf16 --expert-tensor-parallel-size 1")
    notes = registry.read(text, "a.sh").launch.notes
    assert any("each group of 4 tensor ranks has 2 copies" in note for note in notes)


@pytest.mark.parametrize("name", ["whole-experts", "sharded-experts"])
def test_the_own_command_makes_the_same_plan_again(name: str) -> None:
    plan = plans.training(name)
    command = re.search(r"--mesh (\S+)", registry.export(plan, "slurm").text)
    assert command
    choices = parse_fixed(command[1])
    sizes = {role: int(choices.pop(role)) for role in sw.Mesh().sizes if role in choices}
    job = sw.Train(batch=256, seq=4096, remat="full")
    work = (sw.model(plan.model.name), sw.hardware(plan.hardware.name), job)
    again = sw.evaluate(*work, sw.Mesh(**sizes), choices)
    assert again.layout.expert_tensor == plan.layout.expert_tensor
