"""What frameworks run by default, or in their own way, where a file does not say it."""

from __future__ import annotations

import pytest

from shardwise.frameworks.launch import Launch, ServingLaunch, TrainingLaunch
from shardwise.frameworks.registry import read

TITAN = """\
[training]
local_batch_size = {local}
global_batch_size = 512
seq_len = 4096
[parallelism]
pipeline_parallel_degree = {pipe}
pipeline_parallel_microbatch_size = 2
data_parallel_shard_degree = 4
fsdp_reshard_after_forward = "{policy}"
"""
MEGATRON_DEEPSPEED = """\
cat <<EOT > ds.json
{ "train_batch_size": 512, "train_micro_batch_size_per_gpu": 4,
  "zero_optimization": { "stage": 1 }, "bf16": { "enabled": true } }
EOT
deepspeed --num_nodes 4 --num_gpus 8 pretrain_gpt.py --tensor-model-parallel-size 4 \\
  --pipeline-model-parallel-size 2 --num-layers 40 --micro-batch-size 4 --global-batch-size 512 \\
  --seq-length 4096 --bf16 --checkpoint-activations \\
  --deepspeed --deepspeed_config=ds.json --zero-stage=1
"""
MEGATRON = "python pretrain_gpt.py --num-layers 32 --bf16 --tensor-model-parallel-size 4"


def launch_of(text: str, file: str = "run.sh") -> Launch:
    return read(text, file).launch


def titan(policy: str, *, pipe: int = 4, local: int = 128) -> TrainingLaunch:
    text = TITAN.format(policy=policy, pipe=pipe, local=local)
    launch = launch_of(text, "run.toml")
    assert isinstance(launch, TrainingLaunch)
    return launch


@pytest.mark.parametrize(
    ("policy", "pipe", "zero"),
    [("default", 1, 3), ("default", 4, 1), ("always", 4, 3), ("never", 1, 2)],
)
def test_torchtitan_gathers_again_unless_in_a_pipeline(policy: str, pipe: int, zero: int) -> None:
    launch = titan(policy, pipe=pipe)
    assert launch.zero == zero
    assert launch.sizes["fsdp" if zero == 3 else "data"] == 4


def test_schedules_of_torchtitan_one_after_the_other_have_a_note() -> None:
    (note,) = [text for text in titan("never", local=8).notes if "schedule" in text]
    assert "16 times a step, each with 4 microbatches" in note
    assert not [text for text in titan("never", local=128).notes if "schedule" in text]


def test_megatron_deepspeed_has_the_layout_of_its_flags() -> None:
    found = read(MEGATRON_DEEPSPEED, "run.sh")
    assert found.framework.name == "megatron"
    launch = found.launch
    assert isinstance(launch, TrainingLaunch)
    assert (launch.sizes["tensor"], launch.sizes["pipe"], launch.zero) == (4, 2, 1)
    assert (launch.seq, launch.remat) == (4096, "full")


def test_blocks_of_recomputed_layers_have_a_note() -> None:
    flags = "--recompute-granularity full --recompute-method block --recompute-num-layers 2"
    launch = launch_of(f"{MEGATRON} {flags}")
    assert isinstance(launch, TrainingLaunch)
    assert launch.remat == "full"
    assert any("recomputes 2 layers of each stage" in note for note in launch.notes)


@pytest.mark.parametrize(
    "command",
    [
        "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B extra --tp 1",
        "vllm serve --model meta-llama/Llama-3.1-8B extra --tensor-parallel-size 1",
        "trtllm-serve --model meta-llama/Llama-3.1-8B extra --tp_size 1",
    ],
)
def test_a_word_after_the_model_is_not_part_of_its_name(command: str) -> None:
    launch = launch_of(command)
    assert isinstance(launch, ServingLaunch)
    assert launch.model == "meta-llama/Llama-3.1-8B"


def test_an_array_within_double_quotes_is_one_text() -> None:
    script = f'ARGS=(--pipeline-model-parallel-size 2)\nbash -c "{MEGATRON} ${{ARGS[*]}}"\n'
    launch = launch_of(script)
    assert isinstance(launch, TrainingLaunch)
    assert launch.sizes["pipe"] == 2


def test_the_flag_bf16_and_a_file_that_is_not_there() -> None:
    launch = launch_of(
        "deepspeed --num_gpus 8 train.py --deepspeed nothere.json --bf16 "
        "--per_device_train_batch_size 1"
    )
    assert [note for note in launch.notes if "ZeRO stage is a guess" in note]
    assert not [note for note in launch.notes if "fp32" in note]


def test_servers_that_begin_alike_are_told_apart() -> None:
    command = "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-70B-Instruct"
    modes = ("prefill", "decode")
    script = "\n".join(f"{command} --tp 4 --disaggregation-mode {mode} &" for mode in modes)
    (note,) = [text for text in launch_of(script).notes if "servers" in text]
    assert "planned: ... prefill" in note
    assert "another, as ... decode" in note
