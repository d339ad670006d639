"""Chunks of layers under an interleaved schedule: how frameworks count them, and their defaults."""

from __future__ import annotations

from typing import Any

import pytest

import shardwise as sw
from shardwise.errors import BadFile, BadInput
from shardwise.frameworks import registry, replan
from shardwise.frameworks.launch import TrainingLaunch
from tests.golden.terminal import run
from tests.unit.frameworks import plans

TITAN = """torchrun --nproc_per_node=8 -m torchtitan.train --module llama3 --config llama3_8b \\
  --parallelism.pipeline_parallel_degree 4 --parallelism.data_parallel_shard_degree 2 \\
  --parallelism.pipeline_parallel_schedule Interleaved1F1B --training.local_batch_size 8 \\
  --training.seq_len 4096 --training.global_batch_size 64"""
# The published layout of Mixtral 8x7B: a stage has 8 layers, all in one virtual stage.
MIXTRAL = """torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py --num-layers 32 \\
  --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --num-query-groups 8 \\
  --num-experts 8 --moe-router-topk 2 --tensor-model-parallel-size 1 \\
  --pipeline-model-parallel-size 4 --expert-model-parallel-size 8 --use-distributed-optimizer \\
  --micro-batch-size 1 --global-batch-size 256 --seq-length 4096 --bf16"""
LESS = "--parallelism.pipeline_parallel_{}_stage_less_layers 0"


def choices(text: str, model: str, file: str = "a.sh") -> dict[str, Any]:
    launch = registry.read(text, file).launch
    assert isinstance(launch, TrainingLaunch)
    mesh = launch.mesh(launch.n_chips or 8)
    return launch.choices(mesh, sum(group.count for group in sw.model(model).groups))


def test_a_rank_of_torchtitan_has_two_virtual_stages_by_default() -> None:
    assert choices(TITAN, "llama3-8b")["virtual"] == 2
    launch = registry.read(TITAN, "a.sh").launch
    assert isinstance(launch, TrainingLaunch)
    plan = replan.training_plan(launch, sw.model("llama3-8b"), sw.hardware("h100:8"))
    assert (plan.layout.schedule, plan.layout.virtual) == ("interleaved", 2)


@pytest.mark.parametrize(
    ("layers", "options", "virtual"),
    [
        (3, "", 3),  # 34 with embeddings and head: 12 stages
        (4, f"{LESS.format('first')} {LESS.format('last')}", 2),
    ],
)
def test_torchtitan_counts_embeddings_and_head_as_layers(
    layers: int, options: str, virtual: int
) -> None:
    flag = f"--parallelism.pipeline_parallel_layers_per_stage {layers}"
    assert choices(f"{TITAN} {flag} {options}", "llama3-8b")["virtual"] == virtual


@pytest.mark.parametrize("layers", [4, 9, 100, -1, "many"])
def test_stages_that_torchtitan_refuses_are_refused(layers: int | str) -> None:
    flag = f"--parallelism.pipeline_parallel_layers_per_stage {layers}"
    with pytest.raises(BadFile, match="layers_per_stage"):
        choices(f"{TITAN} {flag}", "llama3-8b")


@pytest.mark.parametrize(
    "flag",
    ["--num-layers-per-virtual-pipeline-stage 8", "--num-virtual-stages-per-pipeline-rank 1"],
)
def test_one_virtual_stage_of_megatron_is_1f1b(flag: str) -> None:
    words = choices(f"{MIXTRAL} {flag}", "mixtral-8x7b")
    assert words["schedule"] == "1f1b"
    assert "virtual" not in words
    launch = registry.read(f"{MIXTRAL} {flag}", "a.sh").launch
    assert isinstance(launch, TrainingLaunch)
    plan = replan.training_plan(launch, sw.model("mixtral-8x7b"), sw.hardware("h100:64"))
    assert (plan.layout.schedule, plan.layout.virtual) == ("1f1b", 1)


def test_several_virtual_stages_of_megatron_are_interleaved() -> None:
    words = choices(f"{MIXTRAL} --num-layers-per-virtual-pipeline-stage 2", "mixtral-8x7b")
    assert (words["schedule"], words["virtual"]) == ("interleaved", 4)


def refusal(flag: str, tmp_path: Any) -> str:
    """What is said to a script with this flag, which is refused."""
    file = tmp_path / "a.sh"
    file.write_text(f"{MIXTRAL} {flag}")
    result = run("import", str(file), "mixtral-8x7b", "h100:64")
    assert result.code == 2
    return result.err


@pytest.mark.parametrize("number", ["0", "$LAYERS_OF_A_CHUNK", "two", "1.5"])
def test_a_bad_number_of_layers_is_refused(number: str, tmp_path: Any) -> None:
    error = refusal(f"--num-layers-per-virtual-pipeline-stage {number}", tmp_path)
    assert "num_layers_per_virtual_pipeline_stage" in "".join(error.split())


@pytest.mark.parametrize("size", ["x", "0", "$ETP"])
def test_a_bad_size_of_experts_is_refused(size: str, tmp_path: Any) -> None:
    error = refusal(f"--expert-tensor-parallel-size {size}", tmp_path)
    assert "expert_tensor_parallel_size is" in " ".join(error.split())


def test_a_file_may_have_the_key_of_the_words_of_a_script(tmp_path: Any) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("tensor_parallel_size: 8\nmax_seq_len: 64\n$: 3\n")
    assert run("import", str(file), "mixtral-8x7b", "h100:8").code == 0


def test_layers_beside_the_embedding_and_the_head_are_left_out() -> None:
    """LLaMA-3.1-405B has 126 layers, two less than 16 stages of eight chunks have room for."""
    exported = registry.export(plans.training("uneven"), "megatron")
    assert "--account-for-embedding-in-pipeline-split" in exported.text
    assert "--account-for-loss-in-pipeline-split" in exported.text
    assert any("128 chunks have room for two layers more" in note for note in exported.notes)
    by_layers = exported.text.replace(
        "--num-virtual-stages-per-pipeline-rank 8", "--num-layers-per-virtual-pipeline-stage 1"
    )
    words = choices(by_layers, "llama3.1-405b")
    assert (words["schedule"], words["virtual"]) == ("interleaved", 8)


@pytest.mark.parametrize("framework", ["megatron", "megatron-bridge", "nemo"])
def test_chunks_that_layers_do_not_fill_are_written_out(framework: str) -> None:
    """36 layers of gpt-oss-120b in 40 chunks of 8 stages."""
    plan = plans.training("empty-chunks")
    text = registry.export(plan, framework).text
    assert "Et|(t|)*35|||L" in text
    file = f"launch{registry.find(framework).suffix}"
    launch = registry.read(text, file, framework).launch
    assert isinstance(launch, TrainingLaunch)
    choices = launch.choices(launch.mesh(256), 36)
    assert (choices["schedule"], choices["virtual"]) == ("interleaved", 5)
    assert not any("differ" in note for note in launch.notes)


def test_chunks_that_differ_are_said() -> None:
    """Those of a published run of DeepSeek-V3, with 61 layers in 32 chunks."""
    layout = "--pipeline-model-parallel-layout 'Et*3|(tt|)*29m|L'"
    script = MIXTRAL.replace("--num-layers 32", "--num-layers 61") + f" {layout}"
    launch = registry.read(script, "a.sh").launch
    assert isinstance(launch, TrainingLaunch)
    assert launch.choices(launch.mesh(64), 61)["virtual"] == 8
    assert any("its chunks differ; the plan has 2 layers" in note for note in launch.notes)


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("'Et|t|tL'", "has 3 chunks; it needs a multiple of its 4 stages"),
        ("'E(t|)*999999999L'", "has more than 100,000 letters"),
        ("'Et*99999999999999999999L'", "has more than 100,000 letters"),
        ("7", "is 7; it must be a string"),
    ],
)
def test_a_bad_layout_is_refused(layout: str, said: str, tmp_path: Any) -> None:
    error = refusal(f"--pipeline-model-parallel-layout {layout}", tmp_path)
    assert said in " ".join(error.split())


def test_megatron_has_the_queue_that_it_requires() -> None:
    """`validate_args` asserts it of GPUs before Blackwell if tensor or context are sharded."""
    variable = "CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun"
    assert variable in registry.export(plans.training("1f1b"), "megatron").text
    assert variable not in registry.export(plans.training("hybrid"), "megatron").text
    assert variable not in registry.export(plans.training("fsdp-tensor"), "megatron").text


def test_groups_with_copies_of_the_optimizer_state_are_said() -> None:
    copies = "--num-distributed-optimizer-instances 4"
    launch = registry.read(f"{MIXTRAL} {copies}", "a.sh").launch
    assert any("num_distributed_optimizer_instances 4: each of 4" in n for n in launch.notes)
    replicated = f"{TITAN} --parallelism.data_parallel_replicate_degree 2"
    launch = registry.read(replicated, "a.sh").launch
    assert any("data_parallel_replicate_degree 2: each of 2" in n for n in launch.notes)


def test_the_batch_of_the_file_keeps_its_microbatches() -> None:
    """Also if it is given again, beside the file."""
    plan = plans.training("gpipe")
    text = registry.export(plan, "maxtext").text
    assert f"num_pipeline_microbatches: {plan.layout.n_microbatches}" in text
    more = text.replace(
        f"num_pipeline_microbatches: {plan.layout.n_microbatches}", "num_pipeline_microbatches: 16"
    )
    launch = registry.read(more, "a.yml", "maxtext").launch
    assert isinstance(launch, TrainingLaunch)
    model, machine = sw.model("llama3-70b"), sw.hardware("h100:128")
    for batch in (None, (256, 4096)):
        again = replan.training_plan(launch, model, machine, batch)
        assert again.layout.n_microbatches == 16
    assert replan.training_plan(launch, model, machine, (512, 4096)).job.batch == 512


def test_alternating_layers_are_no_stages_of_maxtext() -> None:
    """A stage would repeat a period of them in the place of each layer."""
    with pytest.raises(BadInput, match=r"pipe 8 of layers that alternate.* --framework maxtext"):
        registry.export(plans.training("empty-chunks"), "maxtext")


def test_a_batch_of_unknown_ranks_may_take_several_schedules() -> None:
    text = TITAN.replace("data_parallel_shard_degree 2", "data_parallel_shard_degree -1")
    notes = registry.read(text, "a.sh").launch.notes
    assert any("runs its schedule several times a step" in note for note in notes)
