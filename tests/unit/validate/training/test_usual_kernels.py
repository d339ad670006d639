"""Settings of kernels that plans take from practice are those of the published runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import shardwise as sw
from shardwise.estimate.training.usual_kernels import (
    USUAL,
    UsualKernels,
    usual_kernels,
    with_usual_kernels,
)
from shardwise.plan.schema.training_reasons import UsualSettings
from shardwise.validate.training.runs import Run, load
from shardwise.validate.training.software import framework_of
from shardwise.vocabulary import NO_KERNELS

NEARLY_ALL = 0.85
BRIDGE = "NVIDIA-NeMo/Megatron-Bridge"


def runs_since(month: str, chip: str) -> Iterator[Run]:
    for run in load():
        if not isinstance(run, Run) or run.source != BRIDGE or run.task != "pretrain":
            continue
        if run.date >= month and run.system.chip.name == chip:
            yield run


def states(run: Run, usual: UsualKernels) -> bool:
    """Whether a run has all the settings."""
    share = 1.0 if "cuda_graphs" in usual.kernels else 0.5
    if not set(usual.overlap) <= set(run.layout.overlap):
        return False
    return run.captured >= share and run.narrow_attention >= ("fp8_attention" in usual.kernels)


@pytest.mark.parametrize("usual", USUAL, ids=lambda u: f"{u.chip}-{u.kernels}")
def test_the_table_counts_published_runs(usual: UsualKernels) -> None:
    runs = [
        run
        for run in runs_since(usual.since, usual.chip)
        if run.config.is_moe and bool(run.config.mambas) == usual.has_mamba
    ]
    assert {framework_of(run) for run in runs} == {usual.framework}
    assert {run.precision for run in runs} <= {"mxfp8", "nvfp4"}
    stating = [run for run in runs if states(run, usual)]
    assert (len(stating), len(runs)) == (usual.n_stating, usual.n_runs)
    assert usual.n_stating >= NEARLY_ALL * usual.n_runs


def test_only_runs_with_mamba_blocks_leave_tokens_exposed() -> None:
    for chip in ("gb200", "gb300"):
        for run in runs_since("2026-06", chip):
            if run.config.is_moe and "Kimi" not in run.config.name and "kimi" not in run.id:
                assert ("expert_all_to_all" in run.layout.overlap) != bool(run.config.mambas)


def test_the_overlap_that_is_asked_for_stays() -> None:
    model, chip = sw.model("qwen3-30b-a3b"), sw.hardware("gb300:8").chip
    job = sw.Train(batch=512, seq=4096, compute="fp8", framework="nemo", overlap=("tp_comm",))
    assert with_usual_kernels(model, chip, job).overlap == ("tp_comm",)
    assert with_usual_kernels(model, chip, job).kernels == ("cuda_graphs", "fp8_attention")


def test_no_dense_run_and_no_other_chip_has_enough() -> None:
    dense = [
        run
        for chip in ("gb200", "gb300", "b200", "b300")
        for run in runs_since("2026-02", chip)
        if not run.config.is_moe
    ]
    assert len(dense) > 20
    assert not any(run.captured for run in dense)
    for chip in ("b200", "b300"):
        assert not [*runs_since("2026-06", chip)]
        runs = [*runs_since("2026-02", chip)]
        assert sum(run.captured > 0 for run in runs) < NEARLY_ALL * len(runs)
    assert not any(run.captured for run in runs_since("2025-01", "h100"))


def test_a_plan_has_them_unless_it_names_others() -> None:
    model, system = sw.model("qwen3-30b-a3b"), sw.hardware("gb300:8")
    layout = {"expert": 8, "micro_batch": 8, "zero": 1, "remat": "none"}
    plans = {}
    for kernels in ((), ("cuda_graphs", "fp8_attention"), ("attn_graphs",), (NO_KERNELS,)):
        job = sw.Train(batch=512, seq=4096, compute="fp8", framework="nemo", kernels=kernels)
        plans[kernels] = sw.plan(model, system, job, layout)
    usual = plans[()]
    for kernels, plan in plans.items():
        assert ("expert_all_to_all" in plan.job.overlap) == (not kernels)
    assert usual.job.kernels == ("cuda_graphs", "fp8_attention")
    named = sw.Train(
        batch=512,
        seq=4096,
        compute="fp8",
        framework="nemo",
        kernels=("cuda_graphs", "fp8_attention"),
        overlap=("expert_all_to_all",),
    )
    assert usual.step == sw.plan(model, system, named, layout).step
    assert usual.step.expected < plans["attn_graphs",].step.expected
    assert plans["attn_graphs",].step.expected < plans[NO_KERNELS,].step.expected
    assert plans[NO_KERNELS,].job.kernels == ()
    counts = {
        kernels: [(r.n_stating, r.n_runs) for r in plan.why if isinstance(r, UsualSettings)]
        for kernels, plan in plans.items()
    }
    assert counts.pop(()) == [(13, 14)]
    assert not any(counts.values())


@pytest.mark.parametrize(
    ("name", "machine", "compute", "framework"),
    [
        ("llama3.1-405b", "gb200:64", "fp8", "nemo"),
        ("qwen3-30b-a3b", "b200:8", "fp8", "nemo"),
        ("qwen3-30b-a3b", "h100:8", "fp8", "nemo"),
        ("qwen3-30b-a3b", "gb300:8", "bf16", "nemo"),
        ("qwen3-30b-a3b", "gb300:8", "fp8", "megatron"),
        ("qwen3-30b-a3b", "gb300:8", "fp8", ""),
    ],
)
def test_other_plans_have_none(name: str, machine: str, compute: str, framework: str) -> None:
    model, chip = sw.model(name), sw.hardware(machine).chip
    job = sw.Train(batch=64, seq=4096, compute=compute, framework=framework)
    assert usual_kernels(model, chip, job) is None
    assert with_usual_kernels(model, chip, job) == job
