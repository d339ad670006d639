"""The machine that a launcher asks a cluster for: labels of GKE's nodes, or the device type of xpk.

https://cloud.google.com/kubernetes-engine/docs/how-to/tpus, https://github.com/AI-Hypercomputer/xpk
"""

from __future__ import annotations

import re

from shardwise.errors import ShardwiseError
from shardwise.frameworks.exported import Settings
from shardwise.hardware import parse_system

# Chip -> GKE's name of its machines, label cloud.google.com/gke-tpu-accelerator.
GKE_ACCELERATORS = {
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
    "7x": "tpu7x",
}
ACCELERATOR_LABEL = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-topology"
_LABEL = re.compile(
    rf"({re.escape(ACCELERATOR_LABEL)}|{re.escape(TOPOLOGY_LABEL)})[\"']?\s*:\s*[\"']?([\w-]+)"
)
_REPLICAS = re.compile(r"""^[\s-]*["']?replicas["']?\s*:\s*["']?(\d+)""", re.M)
_SBATCH = r"^#SBATCH\s+[^#\n]*?"
_NODES = re.compile(rf"{_SBATCH}(?:--nodes[= ]|-N\s*)(\d+)\b(?!-)", re.M)
# GPUs of a node, or its processes, of which each has one if there are several.
_OF_A_NODE = tuple(
    re.compile(_SBATCH + form, re.M)
    for form in (
        r"--gpus-per-node[= ](?:\w+:)?(\d+)",
        r"--gres[= ]gpu:(?:\w+:)?(\d+)",
        r"--ntasks-per-node[= ]([2-9]|\d\d+)\b",
    )
)
# `v5p-128` counts TensorCores, as `hardware` does; `tpu7x-4x4x4` has a shape.
_DEVICE_TYPE = re.compile(r"(?:tpu)?(v?\d+[a-z]*)-(\d+(?:x\d+)*)")


def machine(text: str, settings: Settings) -> str | None:
    """The name of the machine, as on the command line; None if the file asks for none, or several.

    Args:
        text: the file.
        settings: its options.
    """
    device_type = settings.get("--device-type", settings.get("--tpu-type"))
    if device_type is not None:
        return _of_device_type(str(device_type), settings.get("--num-slices", 1))
    labels: dict[str, set[str]] = {}
    for label, value in _LABEL.findall(text):
        labels.setdefault(label, set()).add(value)
    chips = [
        chip
        for chip, accelerator in GKE_ACCELERATORS.items()
        if {accelerator} == labels.get(ACCELERATOR_LABEL)
    ]
    shapes = labels.get(TOPOLOGY_LABEL, set())
    if not chips or len(shapes) != 1:
        return None
    slice_name = f"{chips[0]}:{shapes.pop()}"
    numbers = _REPLICAS.findall(text) if "JobSet" in text else []
    if len(numbers) > 1:
        return None
    n_slices = int(numbers[0]) if numbers else 1
    return slice_name if n_slices <= 1 else f"{slice_name}*{n_slices}"


def slurm_chips(text: str) -> int | None:
    """GPUs that the `#SBATCH` lines of a script ask for; None if they do not say."""
    nodes = _NODES.search(text)
    counts = [count for form in _OF_A_NODE if (count := form.search(text))]
    return int(nodes[1]) * int(counts[0][1]) if nodes and counts else None


def replicas(text: str) -> int | None:
    """Copies of its containers that a manifest asks for; None if it names none, or several."""
    numbers = {*_REPLICAS.findall(text)}
    return int(numbers.pop()) or None if len(numbers) == 1 and "JobSet" not in text else None


def _of_device_type(device_type: str, n_slices: object) -> str | None:
    match = _DEVICE_TYPE.fullmatch(device_type)
    if not match or not isinstance(n_slices, int):
        return None
    chip, size = match.groups()
    slice_name = f"{chip}:{size}" if "x" in size else device_type
    try:
        slice_name = parse_system(slice_name).name  # its shape
    except ShardwiseError:  # is raised again where the name is read
        return slice_name
    return slice_name if n_slices == 1 else f"{slice_name}*{n_slices}"
