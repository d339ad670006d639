"""Published runs that a plan must have room for."""

from __future__ import annotations

from dataclasses import replace

import pytest

import shardwise as sw
from shardwise.estimate.calibration import PEAK
from shardwise.search.training import rank
from shardwise.search.training.forms import read_fixed

JOB = sw.Train(batch=252, seq=8192, gradients="bf16", remat="norms")
MESH = {"tensor": 8, "context": 2, "fsdp": 1, "expert": 1, "zero": 1, "micro_batch": 1}


@pytest.mark.parametrize(
    ("machine", "job", "mesh"),
    [
        # NVIDIA/dgxc-benchmarking, llama3.1/README_405b.md, BF16
        ("h100:576", JOB, {"data": 4, "pipe": 9, "virtual": 7}),
        # NVIDIA-NeMo/Megatron-Bridge, docs/performance-summary-archive.md, fp8
        (
            "h100:1024",
            replace(JOB, batch=1536, compute="fp8"),
            {"data": 8, "pipe": 8, "virtual": 8},
        ),
    ],
)
def test_405b_without_recomputation(machine: str, job: sw.Train, mesh: dict[str, int]) -> None:
    """Megatron gathers inputs of blocks again and recomputes nothing else: `norms`."""
    fixed = read_fixed({**MESH, **mesh, "schedule": "interleaved"})
    model = sw.model("llama3.1-405b")
    ranking = rank.rank(model, sw.hardware(machine), job, PEAK, fixed, keep=1)
    assert ranking.candidates[0].fits
