"""JobSet: a Kubernetes manifest that starts `shardwise train` on every host, a job for each slice.

https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2, and for TPUs
https://cloud.google.com/kubernetes-engine/docs/how-to/tpu-multislice
"""

from __future__ import annotations

import re
from typing import Any

from shardwise.frameworks import own_command
from shardwise.frameworks.cluster_machine import (
    ACCELERATOR_LABEL,
    GKE_ACCELERATORS,
    TOPOLOGY_LABEL,
)
from shardwise.frameworks.exported import Framework, Settings, TrainingRun, Written, flat
from shardwise.frameworks.launch import TrainingLaunch
from shardwise.hardware import Switched

_API = "jobset.x-k8s.io/v1alpha2"
_JOB = "workers"

# Chips whose slices of several hosts GKE makes of machines with 4 chips (ct5lp-hightpu-4t,
# ct6e-standard-4t); with 8 there is one host. cloud.google.com/kubernetes-engine/docs/concepts/tpus
_FOUR_A_HOST = ("v5e", "v6e")


def write(run: TrainingRun) -> Written:
    """The manifest of a plan."""
    name = re.sub(r"[^a-z0-9-]+", "-", run.plan.model.name.lower()).strip("-")[:40] or "train"
    chips = _chips_of_pod(run)
    hosts = run.system.n_chips // run.nodes.slices // chips
    command = (
        f"set -eu\n{own_command.command(run)}\n"
        f"shardwise train {own_command.PLAN} --data DATA --checkpoint CHECKPOINTS \\\n"
        f"  --coordinator {name}-{_JOB}-0-0.{name}:8476 --processes {hosts * run.nodes.slices} \\\n"
        f"  --process $((JOB_INDEX * {hosts} + JOB_COMPLETION_INDEX))\n"
    )
    is_gpu = isinstance(run.system.topology, Switched)
    notes = ["IMAGE, DATA and CHECKPOINTS: an image with shardwise[train], and mounted folders."]
    pod: dict[str, Any] = {"restartPolicy": "Never"}
    accelerator = GKE_ACCELERATORS.get(run.plan.hardware.chip)
    if accelerator:
        pod["nodeSelector"] = {
            ACCELERATOR_LABEL: accelerator,
            TOPOLOGY_LABEL: str(run.system.topology),
        }
    else:
        notes.append(f"nodeSelector: the label of your nodes with {run.plan.hardware.chip}.")
    resource = "nvidia.com/gpu" if is_gpu else "google.com/tpu"
    pod["containers"] = [
        {
            "name": "train",
            "image": "IMAGE",
            "command": ["bash", "-c"],
            "args": [command],
            "env": [{"name": "JOB_INDEX", "valueFrom": _JOB_INDEX}],
            "resources": {"limits": {resource: chips}},
        }
    ]
    settings: Settings = {
        "apiVersion": _API,
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "replicatedJobs": [
                {
                    "name": _JOB,
                    "replicas": run.nodes.slices,
                    "template": {"spec": _job(hosts, pod)},
                }
            ]
        },
    }
    return Written(settings=settings, notes=notes, command="kubectl apply -f FILE")


def _chips_of_pod(run: TrainingRun) -> int:
    """Chips of a pod: those of a host, but for slices that GKE makes of smaller machines."""
    chips_of_slice = run.system.n_chips // run.nodes.slices
    if run.plan.hardware.chip in _FOUR_A_HOST and chips_of_slice > run.nodes.chips:
        return 4
    return run.nodes.chips


_JOB_INDEX = {
    "fieldRef": {"fieldPath": "metadata.annotations['jobset.sigs.k8s.io/job-index']"},
}


def _job(hosts: int, pod: dict[str, Any]) -> dict[str, Any]:
    return {
        "completionMode": "Indexed",
        "parallelism": hosts,
        "completions": hosts,
        "backoffLimit": 0,
        "template": {"spec": pod},
    }


def read(settings: Settings) -> TrainingLaunch:
    """The layout of a manifest."""
    return own_command.read(_text(settings), "jobset")


def _text(value: Any) -> str:
    """All strings of nested settings, one a line."""
    if isinstance(value, dict):
        return "\n".join(_text(item) for item in value.values())
    if isinstance(value, list):
        return "\n".join(_text(item) for item in value)
    return str(value)


def knows(settings: Settings) -> int:
    """Whether it is a JobSet."""
    return 20 * (flat(settings).get("kind") == "JobSet")


FRAMEWORK = Framework(
    name="jobset",
    title="JobSet",
    work="train",
    suffix=".yaml",
    as_of="v1alpha2, 2026-11",
    write=write,
    read=read,
    knows=knows,
    tpus=True,
)
