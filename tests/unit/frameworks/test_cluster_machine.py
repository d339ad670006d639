"""The machine that a launcher asks a cluster for."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardwise as sw
from shardwise.frameworks import registry
from shardwise.frameworks.cluster_machine import GKE_ACCELERATORS, machine
from shardwise.hardware import chip_names
from tests.golden.terminal import run

LABELS = """\
nodeSelector:
  cloud.google.com/gke-tpu-accelerator: {}
  cloud.google.com/gke-tpu-topology: {}
"""


@pytest.mark.parametrize(
    ("device_type", "n_slices", "name", "n_chips"),
    [
        ("tpu7x-4x4x4", 1, "7x:4x4x4", 64),
        ("v5p-128", 1, "v5p:4x4x4", 64),  # TensorCores
        ("v5litepod-16", 1, "v5e:4x4", 16),
        ("v6e-256", 2, "v6e:16x16*2", 512),
    ],
)
def test_a_device_type_of_xpk(device_type: str, n_slices: int, name: str, n_chips: int) -> None:
    settings = {"--device-type": device_type, "--num-slices": n_slices}
    assert machine("", settings) == name
    assert sw.hardware(name).n_chips == n_chips


@pytest.mark.parametrize("device_type", ["${DEVICE_TYPE}", "h100-80gb-8", "v5p-", "v6e"])
def test_other_device_types_are_not_read(device_type: str) -> None:
    assert machine("", {"--device-type": device_type}) is None
    assert machine("", {"--device-type": "v6e-16", "--num-slices": "$SLICES"}) is None


def test_labels_of_nodes() -> None:
    text = LABELS.format("tpu-v6e-slice", "16x16")
    assert machine(text, {}) == "v6e:16x16"
    assert machine(text + text, {}) == "v6e:16x16"
    assert machine(text + LABELS.format("tpu-v6e-slice", "4x4"), {}) is None
    assert machine(LABELS.format("nvidia-tesla-t4", "4x4"), {}) is None
    assert machine('"cloud.google.com/gke-tpu-topology": "4x4"', {}) is None
    assert set(GKE_ACCELERATORS) <= {*chip_names()}


def test_a_manifest_names_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = "vllm serve meta-llama/Llama-3.2-1B --tensor-parallel-size 8 --max-model-len 4096"
    labels = LABELS.format("tpu7x", "2x2x1")
    Path("a.yaml").write_text(
        f"apiVersion: apps/v1\n{labels}spec:\n  containers:\n  - command: [bash, -c, {command}]\n"
    )
    launch = registry.read(Path("a.yaml").read_text(), "a.yaml").launch
    assert launch.hardware == "7x:2x2x1"
    answer = run("import", "a.yaml", "llama3.2-1b", launch.hardware)
    assert answer.code == 0, answer.err
    Path("b.sh").write_text("python train.py ici_fsdp_parallelism=8 --device-type=tpu7x-2x2x1")
    answer = run("import", "b.sh", "--from", "maxtext")
    assert "Add MODEL: shardwise import FILE MODEL." in " ".join(answer.err.split())


@pytest.mark.parametrize(
    ("lines", "n_chips"),
    [
        ("#SBATCH --nodes=32 --ntasks-per-node=8", 256),
        ("#SBATCH -N 4\n#SBATCH --gpus-per-node=h100:8\n#SBATCH --ntasks-per-node=1", 32),
        ("#SBATCH --nodes 2\n#SBATCH --gres=gpu:a100:4", 8),
        ("#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=1", None),  # one that starts the others
        ("#SBATCH --nodes=2-4 --ntasks-per-node=8", None),
        ("#SBATCH --ntasks-per-node=8", None),
    ],
)
def test_gpus_of_a_batch_script_are_counted(lines: str, n_chips: int | None) -> None:
    script = f"#!/bin/bash\n{lines}\nsrun python pretrain_gpt.py --bf16\n"
    assert registry.read(script, "a.sbatch", "megatron").launch.n_chips == n_chips
