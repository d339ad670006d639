"""Scripts that name one of torchtitan's own configurations, and set little beside it."""

from __future__ import annotations

from typing import Any

import pytest

from shardwise.frameworks import registry
from shardwise.frameworks.launch import TrainingLaunch

TRAINER = "torchrun --nnodes 4 --nproc-per-node 8 -m torchtitan.train --module llama3 --config"


def launch(flags: str) -> Any:
    content = registry.read(f"{TRAINER} {flags}", "train.sh")
    assert content.framework.name == "torchtitan"
    return content.launch


def test_the_configuration_has_what_the_script_leaves_out() -> None:
    run = launch("llama3_70b")
    assert isinstance(run, TrainingLaunch)
    assert run.mesh(32).sizes == {**run.mesh(32).sizes, "tensor": 8, "fsdp": 4}
    assert (run.model, run.seq, run.micro_batch, run.remat) == ("llama3-70b", 8192, 8, "full")
    assert run.batch_per_chip == 1


def test_flags_of_the_script_come_before_it() -> None:
    run = launch(
        "llama3_70b --parallelism.tensor_parallel_degree 2 --training.seq_len 4096 "
        "activation-checkpoint:none"
    )
    assert run.mesh(32).sizes["tensor"] == 2
    assert (run.seq, run.remat) == (4096, "none")


@pytest.mark.parametrize("name", ["my_llama", "llama3_8b"])
def test_others_set_no_axis(name: str) -> None:
    assert launch(name).mesh(32).sizes["fsdp"] == 32
