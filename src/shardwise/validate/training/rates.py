"""Seconds per step from the measured figures of a record.

The step time has priority, then tokens/s, then TFLOP/s and MFU by the source's FLOPs convention.
"""

from __future__ import annotations

from shardwise import units
from shardwise.errors import BadFile, UnknownFigure
from shardwise.formulas.flops import compute_s
from shardwise.hardware import Chip
from shardwise.models.count import TRAINING_PASSES, flops
from shardwise.models.model import ModelConfig
from shardwise.validate.records.fields import Fields
from shardwise.workload import Train

# FLOPs conventions whose attention and recomputation are known.
CONVENTIONS = ("full", "causal_half", "full_with_recompute")

_SINGLE_PEAK = ("bf16", "fp16")  # for other dtypes the peak behind an MFU is not known


def step_seconds(
    record: Fields, config: ModelConfig, job: Train, chip: Chip, n_chips: int
) -> tuple[float, str]:
    """Seconds of one step, and the name of the figure that gives them.

    Raises:
        BadFile: no measured figure gives a step time.
    """
    measured = record.inner("measured")
    step_time_s = measured.optional_number("step_time_s")
    if step_time_s is not None:
        return step_time_s, "step_time_s"
    amounts_per_step = {
        "tokens_per_s_per_chip": job.tokens_per_step / n_chips,
        "tokens_per_s_total": float(job.tokens_per_step),
        "samples_per_s": float(job.batch),
    }
    for name, amount in amounts_per_step.items():
        rate = measured.optional_number(name)
        if rate is not None:
            return amount / rate, name
    return _through_flops(record, config, job, chip, n_chips)


def flops_per_token(config: ModelConfig, seq: int, convention: str) -> float:
    """FLOPs of one trained token by the convention of a source.

    full: 6 per matmul parameter and 12 L N H T of attention; causal_half: half that attention;
    full_with_recompute: a fourth pass over the layers, Megatron-LM's 96 B T L D^2 (1 + T/6D +
    V/16LD) (arXiv 2104.04473, section 5.1).
    """
    counts = flops(config, seq, causal=convention == "causal_half")
    recompute = 0
    if convention == "full_with_recompute":
        recompute = counts.forward - counts.unembedding
    return float(TRAINING_PASSES * counts.forward + recompute)


def _through_flops(
    record: Fields, config: ModelConfig, job: Train, chip: Chip, n_chips: int
) -> tuple[float, str]:
    measured = record.inner("measured")
    convention = record.text("flops_convention", "unknown")
    tflops = measured.optional_number("tflops_per_chip")
    mfu = measured.optional_number("mfu")
    if tflops is None and mfu is None:
        figures = ", ".join(sorted(measured.data)) or "nothing"
        raise BadFile(f"no step time: measured is {figures}, from which none follows.")
    if convention not in CONVENTIONS:
        raise BadFile(
            f"unknown FLOPs: only {'TFLOP/s' if tflops else 'MFU'} is stated, counted as "
            f'"{convention}"; known are {", ".join(CONVENTIONS)}.'
        )
    if record.text("task", "pretrain") == "lora":
        raise BadFile("unknown FLOPs: of LoRA, where sources leave out frozen weights' gradients.")
    work = flops_per_token(config, job.seq, convention) * job.tokens_per_step
    if tflops is not None:
        return work / (tflops * units.TB * n_chips), "tflops_per_chip"
    return compute_s(work, n_chips, _peak_of_mfu(chip, job), float(mfu or 0)), "mfu"


def _peak_of_mfu(chip: Chip, job: Train) -> float:
    if job.compute not in _SINGLE_PEAK:
        raise BadFile(f"unknown FLOPs: only MFU is stated, of a peak unknown under {job.compute}.")
    try:
        return chip.peak(job.compute)
    except UnknownFigure as error:
        raise BadFile(f"unknown FLOPs: only MFU is stated, and {error.problems[0]}") from None
