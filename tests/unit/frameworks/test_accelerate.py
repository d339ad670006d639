"""Runs that Hugging Face accelerate starts: DeepSpeed's words in its configuration, and FSDP's."""

from __future__ import annotations

import pytest

import shardwise as sw
from shardwise.errors import BadFile
from shardwise.frameworks import replan
from shardwise.frameworks.launch import TrainingLaunch
from shardwise.frameworks.megatron_layout import without_sequences
from shardwise.frameworks.registry import read
from shardwise.strategy.mesh import Mesh

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
    "tpu.yaml": "distributed_type: XLA\nnum_processes: 8\n",
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
    with pytest.raises(BadFile, match="accelerate with distributed_type XLA is not read"):
        launched("tpu.yaml")


FSDP = """\
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_{option}
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""


def sharded(option: str = "version: 2", flags: str = "") -> TrainingLaunch:
    file = FSDP.format(option=option)
    found = read(SCRIPT.format(file="f.yaml", flags=flags), "ft.sh", beside={"f.yaml": file}.get)
    assert found.framework.name == "accelerate"
    assert isinstance(found.launch, TrainingLaunch)
    return found.launch


@pytest.mark.parametrize(
    ("option", "zero", "mesh"),
    [
        ("sharding_strategy: FULL_SHARD", 3, Mesh(fsdp=16)),
        ("sharding_strategy: SHARD_GRAD_OP", 2, Mesh(data=16)),
        ("sharding_strategy: HYBRID_SHARD", 3, Mesh(data=2, fsdp=8)),
        ("sharding_strategy: NO_SHARD", 0, Mesh(data=16)),
        ("sharding_strategy: 2", 2, Mesh(data=16)),
        ("reshard_after_forward: true", 3, Mesh(fsdp=16)),
        ("reshard_after_forward: false", 2, Mesh(data=16)),
        ("reshard_after_forward: SHARD_GRAD_OP", 2, Mesh(data=16)),
        ("version: 2", 3, Mesh(fsdp=16)),
    ],
)
def test_a_strategy_of_fsdp_is_a_layout(option: str, zero: int, mesh: Mesh) -> None:
    launch = sharded(option)
    assert (launch.zero, launch.mesh(16), launch.n_chips) == (zero, mesh, 16)
    assert (launch.micro_batch, launch.n_microbatches, launch.batch_per_chip) == (2, 8, 16)
    assert (launch.seq, launch.remat) == (4096, "full")
    # Weights that stay gathered are 16 bits, beside fp32 shards.
    precision, dtypes = "fp32", {"reduce": "bf16"}
    if zero == 2:
        precision, dtypes = "fp32-master", {"reduce": "bf16", "weights": "bf16"}
    assert (launch.precision, launch.dtypes) == (precision, dtypes)
    assert launch.notes == ()


PARALLEL = """{option}
parallelism_config:
  parallelism_config_dp_replicate_size: 2
  parallelism_config_dp_shard_size: 2
  parallelism_config_tp_size: 4"""


@pytest.mark.parametrize(
    ("option", "mesh"),
    [
        ("reshard_after_forward: true", Mesh(data=2, fsdp=2, tensor=4)),
        ("reshard_after_forward: false", Mesh(data=4, tensor=4)),
    ],
)
def test_a_mesh_of_accelerate_is_read(option: str, mesh: Mesh) -> None:
    """The config of `parallelism_config`, in which a sequence has `tp` ranks."""
    launch = sharded(PARALLEL.format(option=option))
    assert launch.mesh(16) == mesh
    assert launch.batch_per_chip == 16 / 4
    assert launch.notes == (*without_sequences(4),)


def test_a_size_that_only_a_shell_knows_is_asked_for() -> None:
    with pytest.raises(BadFile, match="HOSTS=NUMBER shardwise import"):
        read(
            "deepspeed --num_nodes=$HOSTS --num_gpus=8 t.py --deepspeed d.json",
            "a.sh",
            beside={"d.json": '{"zero_optimization": {"stage": 3}}'}.get,
        )


def test_a_plan_of_fsdp() -> None:
    model, machine = sw.model("llama3.1-8b"), sw.hardware("h100:16")
    plan = replan.training_plan(sharded("sharding_strategy: HYBRID_SHARD"), model, machine)
    assert (plan.layout.mesh, plan.layout.zero) == (Mesh(data=2, fsdp=8), 3)
    assert (plan.job.batch, plan.job.weights, plan.job.reduce) == (256, "fp32", "bf16")


def test_flags_of_fsdp_count_before_the_file() -> None:
    launch = sharded(
        "sharding_strategy: FULL_SHARD",
        "--fsdp_sharding_strategy SHARD_GRAD_OP --num_processes 8 --fsdp_offload_params true",
    )
    assert (launch.zero, launch.n_chips, launch.offload) == (2, 8, ("optimizer",))
    assert any("weights and gradients in host memory too" in note for note in launch.notes)


def test_data_parallelism_alone() -> None:
    found = read("distributed_type: MULTI_GPU\nnum_processes: 8\nmixed_precision: 'no'\n", "a.yaml")
    launch = found.launch
    assert isinstance(launch, TrainingLaunch)
    assert (launch.zero, launch.mesh(8), launch.remat) == (0, Mesh(data=8), None)
    assert launch.notes == ("mixed_precision is no, which is fp32; bf16 is planned.",)


@pytest.mark.parametrize(
    ("option", "note"),
    [
        ("sharding_strategy: HYBRID_SHARD_ZERO2", "over the GPUs of a node; the plan does over"),
        ("auto_wrap_policy: NO_WRAP", "gathers the weights of all layers at once"),
    ],
)
def test_what_of_fsdp_is_planned_otherwise_is_said(option: str, note: str) -> None:
    file = FSDP.format(option=option).replace(
        "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n", ""
    )
    launch = read(file, "a.yaml").launch
    assert any(note in text for text in launch.notes)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (FSDP.format(option="sharding_strategy: [x]"), "must be one of FULL_SHARD, SHARD_GRAD_OP"),
        (
            FSDP.format(option="sharding_strategy: HYBRID_SHARD").replace("16", "15"),
            "as a multiple of num_machines",
        ),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: 4}\n", "num_machines"),
    ],
)
def test_a_strategy_that_is_not_complete_is_refused(file: str, message: str) -> None:
    with pytest.raises(BadFile, match=message):
        read(file, "a.yaml")


def test_accumulation_without_a_batch_is_kept_beside_a_given_one() -> None:
    text = (
        "distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\n"
        "deepspeed_config:\n  zero_stage: 3\n  gradient_accumulation_steps: 8\n"
    )
    launch = read(text, "a.yaml").launch
    assert isinstance(launch, TrainingLaunch)
    machine = sw.hardware("h100:8")
    plan = replan.training_plan(launch, sw.model("llama3-8b"), machine, (64, 4096))
    assert (plan.layout.micro_batch, plan.layout.n_microbatches) == (1, 8)
