"""Dtypes of the training state in files, and what of them plans have otherwise."""

from __future__ import annotations

import json
from typing import Any

import pytest

import shardwise as sw
from shardwise.errors import BadFile
from shardwise.frameworks import registry, replan

MEGATRON = "pretrain_gpt.py --tensor-model-parallel-size 8 --micro-batch-size 1 --bf16 "
MEGATRON += "--overlap-grad-reduce --global-batch-size 64 --seq-length 4096 "
TITAN = "-m torchtitan.train --config llama3_8b --training.local_batch_size 1 "
MAXTEXT = "per_device_batch_size=1 ici_fsdp_parallelism=-1 max_target_length=4096 "


def launch(text: str, file: str = "a.sh") -> Any:
    return registry.read(text, file).launch


@pytest.mark.parametrize(
    ("flags", "dtypes"),
    [
        ("", {}),
        ("--grad-reduce-in-bf16", {"gradients": "bf16"}),
        ("--exp-avg-dtype bf16", {}),  # of the precision-aware optimizer alone
        (
            "--use-precision-aware-optimizer --main-grads-dtype bf16 --main-params-dtype fp16 "
            "--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
            {"gradients": "bf16", "master": "fp16", "moments": "bf16"},
        ),
    ],
)
def test_dtypes_of_megatrons_optimizer_are_planned(flags: str, dtypes: dict[str, str]) -> None:
    assert launch(MEGATRON + flags).dtypes == dtypes


def test_gradients_in_16_bits_take_less_memory() -> None:
    work = (sw.model("llama3-8b"), sw.hardware("h100:64"))
    flags = f"{MEGATRON} --recompute-granularity full --use-distributed-optimizer"
    usual = replan.training_plan(launch(flags), *work)
    narrow = replan.training_plan(launch(f"{flags} --grad-reduce-in-bf16"), *work)
    assert (usual.job.gradients, narrow.job.gradients) == ("fp32", "bf16")
    assert narrow.memory.gradients < usual.memory.gradients


def test_weights_in_fp8_have_no_copy_in_16_bits() -> None:
    work = (sw.model("llama3-8b"), sw.hardware("h200:8"))
    flags = f"{MEGATRON} --sequence-parallel --use-distributed-optimizer --fp8-format hybrid"
    usual = replan.training_plan(launch(flags), *work)
    narrow = replan.training_plan(launch(f"{flags} --fp8-param-gather"), *work)
    assert (usual.job.weights, narrow.job.weights) == ("bf16", "fp8")
    assert narrow.job.master == "fp32"
    assert narrow.memory.weights < usual.memory.weights
    assert launch(f"{MEGATRON} --sequence-parallel --fp8-param-gather").dtypes == {}  # in bf16


@pytest.mark.parametrize("flags", ["--fp8-format hybrid --fp8-param-gather", "--bf16"])
def test_dtypes_that_megatron_has_flags_for_come_back(flags: str) -> None:
    script = f"{MEGATRON} --sequence-parallel --grad-reduce-in-bf16 --use-distributed-optimizer"
    work = (sw.model("llama3-8b"), sw.hardware("h200:8"))
    plan = replan.training_plan(launch(f"{script} {flags}"), *work)
    exported = registry.export(plan, "megatron")
    assert not [note for note in exported.notes if "training state" in note]
    assert replan.training_plan(launch(exported.text), *work).job == plan.job


def test_megatrons_flags_that_plans_have_otherwise_are_named() -> None:
    (note,) = launch(MEGATRON).notes
    assert note.startswith("tensor 8 without sequence parallelism")
    assert launch(f"{MEGATRON} --sequence-parallel").notes == ()
    assert "bf16 is planned" in launch(MEGATRON.replace("--bf16", "")).notes[-1]
    moments = "--use-precision-aware-optimizer --exp-avg-dtype fp8 --exp-avg-sq-dtype fp16"
    run = launch(f"{MEGATRON} --sequence-parallel {moments}")
    assert run.dtypes["moments"] == "fp16"
    assert run.notes == ("moments in fp8 and fp16: both are planned in fp16.",)


@pytest.mark.parametrize(
    ("text", "file", "compute"),
    [
        ('[model]\nname = "llama3"\nflavor = "8B"\nconverters = ["float8"]\n'
         "[training]\nlocal_batch_size = 1\nseq_len = 8\n", "a.toml", "fp8"),
        (TITAN + "--model.converters=quantize.linear.mx", "a.sh", "fp8"),
        (TITAN + "--model.converters=moe_router", "a.sh", None),
        (MAXTEXT + "quantization=fp8_full", "a.sh", "fp8"),
        (MAXTEXT + "quantization=''", "a.sh", "bf16"),
    ],
)  # fmt: skip
def test_matmuls_in_8_bits_are_planned(text: str, file: str, compute: str | None) -> None:
    assert launch(text, file).compute == compute


def test_formats_that_plans_have_no_word_for_are_named() -> None:
    assert "MX formats" in launch(TITAN + "--model.converters mx").notes[0]
    assert "bf16 is planned" in launch(TITAN.replace("3_8b", "3_8b_mxfp8")).notes[0]
    assert launch(MAXTEXT + "quantization=int8").ignored == ("quantization int8",)
    (note,) = launch(MAXTEXT + "mu_dtype=bfloat16").notes
    assert note == "mu_dtype bfloat16 is of the first moment only; both are planned in float32."
    assert launch(MAXTEXT + "grad_dtype=bfloat16").dtypes == {"gradients": "bf16"}


def test_deepspeeds_training_state_in_bf16_is_planned() -> None:
    settings: dict[str, Any] = {"train_batch_size": 64, "zero_optimization": {"stage": 3}}
    settings["bf16"] = {"enabled": True, "bf16_master_weights_and_grads": True}
    settings["bf16"]["bf16_optimizer_states"] = True
    run = launch(json.dumps(settings), "a.json")
    plan = replan.training_plan(run, sw.model("llama3-8b"), sw.hardware("h100:8"), (64, 4096))
    assert (plan.job.precision, run.notes) == ("bf16", ())
    del settings["bf16"]
    assert launch(json.dumps(settings), "a.json").notes[0].startswith("neither bf16 nor fp16")
    settings["fp16"] = {"enabled": True}
    assert launch(json.dumps(settings), "a.json").compute == "fp16"


def test_sizes_that_contradict_the_processes_are_the_files_fault() -> None:
    """No machine fits both, whichever number of chips one names."""
    sizes = "--parallelism.data_parallel_shard_degree 8 --training.seq_len 4096"
    run = launch(f"torchrun --nnodes 16 --nproc-per-node 8 {TITAN} {sizes}")
    for machine in ("h100:8", "h100:128"):
        with pytest.raises(BadFile, match=r"starts 128 processes, and its .*fsdp 8 = 8\. Write"):
            replan.training_plan(run, sw.model("llama3-8b"), sw.hardware(machine))
    mended = launch(f"torchrun --nnodes 1 --nproc-per-node 8 {TITAN} {sizes}")
    machine = sw.hardware("h100:8")
    assert replan.training_plan(mended, sw.model("llama3-8b"), machine).layout.mesh.fsdp == 8


@pytest.mark.parametrize(
    ("more", "gradients", "reduce"),
    [
        ({"bf16": {"enabled": True}}, "bf16", None),
        ({"fp16": {"enabled": True}}, "fp16", None),
        (
            {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}},
            "fp32",
            "bf16",
        ),
        ({"bf16": {"enabled": True}, "communication_data_type": "fp32"}, "bf16", "fp32"),
    ],
)
def test_deepspeed_sums_gradients_in_the_dtype_of_weights(
    more: dict[str, Any], gradients: str, reduce: str | None
) -> None:
    settings = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}, **more}
    dtypes = launch(json.dumps(settings), "a.json").dtypes
    assert (dtypes["gradients"], dtypes.get("reduce")) == (gradients, reduce)
