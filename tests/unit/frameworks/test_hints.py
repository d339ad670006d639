"""What `import` advises: a microbatch that fits, and no option that it lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardwise as sw
from shardwise.errors import DoesNotFit
from shardwise.frameworks import registry, replan
from tests.golden.terminal import run

TITAN = """
[model]
name = "llama3"
flavor = "70B"
[training]
local_batch_size = 6
seq_len = 8192
[parallelism]
data_parallel_shard_degree = 64
[activation_checkpoint]
mode = "full"
"""


def refusal(text: str) -> str:
    launch = registry.read(text, "a.toml").launch
    with pytest.raises(DoesNotFit) as error:
        replan.training_plan(launch, sw.model("llama3-70b"), sw.hardware("h100:64"))
    return error.value.problems[-1]


def test_a_microbatch_that_fits_is_named_where_the_file_has_a_larger_one() -> None:
    advice = refusal(TITAN)
    assert advice.startswith("A shard takes 6 sequences at a time (micro_batch 6).")
    assert "With micro_batch 3 it fits: 2 times as many" in advice
    launch = registry.read(TITAN.replace("size = 6", "size = 3"), "a.toml").launch
    replan.training_plan(launch, sw.model("llama3-70b"), sw.hardware("h100:64"))


def test_a_microbatch_is_not_named_where_none_fits() -> None:
    long = TITAN.replace("8192", "65536")
    assert "A smaller micro_batch alone is not enough" in refusal(long)
    assert refusal(long.replace("size = 6", "size = 1")).startswith(
        "A shard already takes one sequence"
    )


def test_import_names_no_option_that_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text(
        "torchrun --nnodes 1 --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 8 "
        "--sequence-parallel --micro-batch-size 1 --global-batch-size 16 --seq-length 4096 "
        "--bf16 --fp8-format hybrid --use-distributed-optimizer\n"
    )
    done = run("import", str(path), "llama3-8b", "h100:8")
    text = " ".join(done.out.split())
    assert done.code == 0
    assert "The trainer does not run compute in fp8; Megatron-LM does, and its layout is" in text
    assert "--any-layout" not in text + done.err
