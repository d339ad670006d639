"""Settings of kernels that nearly all published runs of a framework have, for plans that name none.

Counted in the tables of NVIDIA-NeMo/Megatron-Bridge (docs/performance-summary.md, releases 26.06 to
26.08) with the settings of their recipes (src/megatron/bridge/perf_recipes): runs of models with
experts in 8 bits or fewer. Of dense models none states CUDA graphs, and of other chips there are no
such runs since 26.06.

The same runs overlap the AllToAll of experts with compute (`overlap_moe_expert_parallel_comm`, or
`moe_a2a_overlap` before 26.08: True in the MXFP8 recipes of DeepSeek-V3, GPT-OSS-120B, Qwen3-30B
and Qwen3-235B, tags v0.5.1 and v0.6.0): 12 of 12 on GB200, 13 of 14 on GB300, where that of Kimi K2
does not. Recipes of models with Mamba blocks do not either.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwise import units
from shardwise.hardware import Chip
from shardwise.models import ModelConfig
from shardwise.vocabulary import NO_KERNELS
from shardwise.workload import Train


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualKernels:
    """Settings of kernels of published runs.

    Args:
        framework, chip: of the runs.
        has_mamba: whether the models have Mamba blocks beside experts.
        kernels: the settings, from `KERNELS`.
        n_stating: runs that state all of them, and the overlap.
        n_runs: all runs.
        since: month of the first run.
        overlap: what the runs overlap with compute beyond the framework's defaults.
    """

    framework: str
    chip: str
    has_mamba: bool
    kernels: tuple[str, ...]
    n_stating: int
    n_runs: int
    since: str
    overlap: tuple[str, ...] = ()


USUAL = (
    UsualKernels(
        framework="nemo",
        chip="gb200",
        has_mamba=False,
        kernels=("cuda_graphs",),
        n_stating=12,
        n_runs=12,
        since="2026-06",
        overlap=("expert_all_to_all",),
    ),
    UsualKernels(
        framework="nemo",
        chip="gb200",
        has_mamba=True,
        kernels=("attn_graphs",),
        n_stating=8,
        n_runs=9,
        since="2026-06",
    ),
    UsualKernels(
        framework="nemo",
        chip="gb300",
        has_mamba=False,
        kernels=("cuda_graphs", "fp8_attention"),
        n_stating=13,
        n_runs=14,
        since="2026-06",
        overlap=("expert_all_to_all",),
    ),
)


def usual_kernels(config: ModelConfig, chip: Chip, job: Train) -> UsualKernels | None:
    """The usual settings for a job that names none; None if it does, or if there are none."""
    if job.kernels or not config.is_moe or units.bytes_per_element(job.compute) > 1:
        return None
    key = (job.framework, chip.name, bool(config.mambas))
    for usual in USUAL:
        if key == (usual.framework, usual.chip, usual.has_mamba):
            return usual
    return None


def with_usual_kernels(config: ModelConfig, chip: Chip, job: Train) -> Train:
    """The job with the usual settings if it names none, and without any if it says so."""
    usual = usual_kernels(config, chip, job)
    if usual:
        return replace(job, kernels=usual.kernels, overlap=job.overlap or usual.overlap)
    return replace(job, kernels=tuple(word for word in job.kernels if word != NO_KERNELS))
