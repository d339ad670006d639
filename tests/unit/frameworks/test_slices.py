"""Slices of a machine: those that MaxText's files count, and those of the machine."""

from __future__ import annotations

import pytest

import shardwise as sw
from shardwise.errors import BadFile, BadInput
from shardwise.frameworks import registry, replan
from shardwise.frameworks.cluster_machine import machine
from shardwise.frameworks.launch import TrainingLaunch
from tests.golden.terminal import run

# As in the recipes of MaxText: all but the sharding within a slice is at its default.
MAXTEXT = """model_name: llama3-8b
per_device_batch_size: 2
max_target_length: 4096
remat_policy: full
"""
XPK = """xpk workload create --cluster c --tpu-type=v5p-64 --num-slices=2 --command \\
  "python3 -m maxtext.trainers.pre_train.train base.yml model_name=llama3-8b \\
  per_device_batch_size=2 max_target_length=4096 ici_fsdp_parallelism=-1 {}"
"""


def plan(text: str, machine: str, file: str = "a.yml") -> sw.Plan:
    launch = registry.read(text, file).launch
    assert isinstance(launch, TrainingLaunch)
    return replan.training_plan(launch, sw.model("llama3-8b"), sw.hardware(machine))


@pytest.mark.parametrize(
    ("options", "machine", "sizes"),
    [
        ("", "v5p:4x4x4", {"data": 1, "fsdp": 64}),
        ("", "v5p:4x4x4*2", {"data": 2, "fsdp": 64}),  # dcn_data_parallelism is -1
        ("dcn_data_parallelism: 1\ndcn_fsdp_parallelism: -1\n", "v5p:4x4x4*2", {"fsdp": 128}),
        ("dcn_data_parallelism: 2\n", "v5p:4x4x4*2", {"data": 2, "fsdp": 64}),
        ("ici_fsdp_parallelism: 16\nici_tensor_parallelism: 4\n", "v5p:4x4x4*2",
         {"data": 2, "fsdp": 16, "tensor": 4}),
        ("hardware: gpu\n", "h100:16", {"data": 2, "fsdp": 8}),  # nodes are slices to JAX
    ],
)  # fmt: skip
def test_data_parallelism_takes_all_slices(
    options: str, machine: str, sizes: dict[str, int]
) -> None:
    planned = plan(MAXTEXT + options, machine)
    assert {role: planned.layout.mesh.sizes[role] for role in sizes} == sizes
    assert planned.job.batch == 2 * planned.hardware.n_chips


@pytest.mark.parametrize(
    ("options", "machine"),
    [
        ("dcn_data_parallelism: 4\n", "v5p:4x4x4*2"),
        ("dcn_data_parallelism: 1\n", "v5p:4x4x4*2"),
        ("dcn_fsdp_parallelism: 2\n", "v5p:4x4x4"),
        ("num_slices: 4\n", "v5p:4x4x4*2"),
    ],
)
def test_other_slices_than_those_of_the_machine_are_refused(options: str, machine: str) -> None:
    with pytest.raises(BadInput, match=r"the file shards over \d slices .* Name a machine of"):
        plan(MAXTEXT + options, machine)


def test_slices_that_contradict_the_sizes_are_refused() -> None:
    with pytest.raises(BadFile, match=r"the file is for 2 slices, and its dcn_. sizes are 4"):
        registry.read(XPK.format("dcn_data_parallelism=4"), "a.sh")
    with pytest.raises(BadFile, match="dcn_data_parallelism and dcn_pipeline_parallelism are both"):
        registry.read(f"{MAXTEXT}dcn_pipeline_parallelism: -1\n", "a.yml")


def test_slices_of_a_launcher_are_those_of_its_machine() -> None:
    launch = registry.read(XPK.format(""), "a.sh").launch
    assert launch.hardware == "v5p:2x4x4*2"
    assert plan(XPK.format(""), "v5p:2x4x4*2", "a.sh").layout.mesh.sizes["data"] == 2
    with pytest.raises(BadInput, match="the file shards over 2 slices"):
        plan(XPK.format(""), "v5p:4x4x4", "a.sh")


@pytest.mark.parametrize("value", ["true", "'2'", "0", "-3", "[1]", "$N"])
def test_sizes_that_are_none(value: str, tmp_path: object) -> None:
    file = f"{tmp_path}/a.yml"
    with open(file, "w", encoding="utf-8") as stream:
        stream.write(f"{MAXTEXT}dcn_data_parallelism: {value}\n")
    result = run("import", file, "v5p:4x4x4*2")
    assert result.code == 2
    assert "dcn_data_parallelism is" in " ".join(result.err.split())


def test_a_jobset_has_as_many_slices_as_replicas() -> None:
    text = """apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
spec:
  replicatedJobs:
  - name: workers
    replicas: {}
    template:
      spec:
        nodeSelector:
          cloud.google.com/gke-tpu-accelerator: tpu-v5p-slice
          cloud.google.com/gke-tpu-topology: 4x4x4
"""
    assert machine(text.format(1), {}) == "v5p:4x4x4"
    assert machine(text.format(2), {}) == "v5p:4x4x4*2"
    assert machine(f"{text.format(2)}  - name: others\n    replicas: 1\n", {}) is None
