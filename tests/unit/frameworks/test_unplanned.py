"""What a file sets and the plan has otherwise is said, each in words of its own."""

from __future__ import annotations

import json

import pytest

from shardwise.frameworks import registry

MEGATRON = """torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --micro-batch-size 1 \\
  --tensor-model-parallel-size 2 --sequence-parallel --global-batch-size 256 \\
  --seq-length 4096 --bf16 """
MAXTEXT = "per_device_batch_size: 4\nici_fsdp_parallelism: -1\nremat_policy: full\n"
DEEPSPEED = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}


@pytest.mark.parametrize(
    ("text", "file", "note"),
    [
        (
            f"{MEGATRON} --rampup-batch-size 32 32 1953125", "a.sh",
            "--rampup-batch-size: steps grow to 256 sequences",
        ),
        (
            json.dumps(
                DEEPSPEED
                | {"zero_optimization": {"stage": 2}}
                | {"activation_checkpointing": {"cpu_checkpointing": True}}
            ),
            "a.json",
            "cpu_checkpointing moves saved activations to host memory",
        ),
        (
            json.dumps(
                DEEPSPEED | {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}
            ),
            "a.json",
            "zero_hpz_partition_size: the run has a copy of the weights in each such group",
        ),
        (
            f"{MAXTEXT}shard_everything: true\nfavorite_color: red\n", "a.yml",
            "MaxText has no option shard_everything, favorite_color",
        ),
    ],
)  # fmt: skip
def test_a_note_says_it(text: str, file: str, note: str) -> None:
    assert any(note in text for text in registry.read(text, file).launch.notes)


@pytest.mark.parametrize(("text", "file"), [(MEGATRON, "a.sh"), (MAXTEXT, "a.yml")])
def test_nothing_is_said_without_it(text: str, file: str) -> None:
    assert registry.read(text, file).launch.notes == ()


def test_options_of_maxtext_that_plans_have_no_word_for() -> None:
    launch = registry.read(f"{MAXTEXT}enable_lora: true\nmtp_num_layers: 0\n", "a.yml").launch
    assert launch.ignored == ("enable_lora",)


def test_variables_of_a_script_are_no_options_of_maxtext() -> None:
    text = """export XLA_FLAGS="--xla_x=1"
python3 -m maxtext.trainers.pre_train.train src/maxtext/configs/base.yml run_name=a \\
  per_device_batch_size=4 ici_fsdp_parallelism=-1 OTHER=1"""
    assert registry.read(text, "a.sh").launch.notes == ()
