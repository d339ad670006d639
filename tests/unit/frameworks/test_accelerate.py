"""Runs that Hugging Face accelerate starts: DeepSpeed's words in its own configuration."""

from __future__ import annotations

import pytest

from shardwise.errors import BadFile
from shardwise.frameworks.launch import TrainingLaunch
from shardwise.frameworks.registry import read

FILES = {
    "zero3.yaml": """\
compute_environment: LOCAL_MACHINE
deepspeed_config:
  offload_optimizer_device: cpu
  offload_param_device: none
  zero_stage: 3
distributed_type: DEEPSPEED
mixed_precision: bf16
num_machines: 1
num_processes: 8
""",
    "named.yaml": """\
deepspeed_config:
  deepspeed_config_file: ds.json
distributed_type: DEEPSPEED
num_processes: 8
""",
    "ds.json": '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}',
    "fsdp.yaml": "distributed_type: FSDP\nnum_processes: 8\n",
}
SCRIPT = """\
accelerate launch --config_file {file} {flags} \\
  sft.py --model_name_or_path meta-llama/Llama-3.1-8B --max_seq_length 4096 \\
  --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --gradient_checkpointing true
"""


def launched(file: str, flags: str = "") -> TrainingLaunch:
    found = read(SCRIPT.format(file=file, flags=flags), "ft.sh", beside=FILES.get)
    assert found.framework.name == "deepspeed"
    assert isinstance(found.launch, TrainingLaunch)
    return found.launch


def test_its_file_says_the_stage_and_the_gpus() -> None:
    launch = launched("zero3.yaml")
    assert (launch.zero, launch.fill, launch.n_chips) == (3, "fsdp", 8)
    assert (launch.micro_batch, launch.n_microbatches, launch.batch_per_chip) == (2, 8, 16)
    assert (launch.seq, launch.remat) == (4096, "full")
    assert launch.offload == ("optimizer",)
    assert launch.notes == ()


def test_flags_count_before_the_file() -> None:
    launch = launched("zero3.yaml", "--num_processes 16 --zero_stage 2")
    assert (launch.zero, launch.fill, launch.n_chips) == (2, "data", 16)


def test_a_configuration_of_deepspeed_that_it_names() -> None:
    launch = launched("named.yaml")
    assert (launch.zero, launch.n_chips) == (2, 8)
    assert launch.notes == ()


def test_the_file_alone() -> None:
    found = read(FILES["zero3.yaml"], "zero3.yaml")
    assert isinstance(found.launch, TrainingLaunch)
    assert (found.launch.zero, found.launch.n_chips) == (3, 8)


def test_other_kinds_of_runs_are_refused() -> None:
    with pytest.raises(BadFile, match="accelerate with distributed_type FSDP is not read"):
        launched("fsdp.yaml")
