"""Seconds per step of a record, converted from whichever rate it publishes.

A published step time is used first, then tokens/s or samples/s, then TFLOP/s, then MFU. The last
two depend on how the source counts FLOPs, its convention.
"""

from __future__ import annotations

from shardwise import units
from shardwise.errors import BadFile, UnknownFigure
from shardwise.formulas.flops import compute_s
from shardwise.hardware import Chip
from shardwise.models.count import TRAINING_PASSES, flops
from shardwise.models.model import ModelConfig
from shardwise.validate.records.fields import JsonReader
from shardwise.workload import Train

# Known conventions to count FLOPs; see `flops_per_token`.
CONVENTIONS = ("full", "causal_half", "full_with_recompute")

# Dtypes whose peak an MFU refers to. With others, sources divide by different peaks.
_SINGLE_PEAK = ("bf16", "fp16")


def step_seconds(
    record: JsonReader, config: ModelConfig, job: Train, chip: Chip, n_chips: int
) -> tuple[float, str]:
    """Return the seconds of one step, and the name of the field that they follow from.

    Raises:
        BadFile: no step time follows from the published values.
    """
    measured = record.section("measured")
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
    return _seconds_from_flops(record, config, job, chip, n_chips)


def flops_per_token(config: ModelConfig, seq: int, convention: str) -> float:
    """Return the FLOPs to train on one token, by one of three conventions.

    - full: 6 FLOPs per matmul parameter, and 12 L N H T for attention (L layers, N heads of
      dimension H, sequences of T tokens);
    - causal_half: the same with half the attention, 6 L N H T, due to the causal mask;
    - full_with_recompute: full plus the recomputed forward pass of the layers. This is
      Megatron-LM's 96 B T L D^2 (1 + T/6D + V/16LD) (arXiv 2104.04473, section 5.1).
    """
    counts = flops(config, seq, causal=convention == "causal_half")
    recompute = 0
    if convention == "full_with_recompute":
        recompute = counts.forward - counts.unembedding
    return float(TRAINING_PASSES * counts.forward + recompute)


def _seconds_from_flops(
    record: JsonReader, config: ModelConfig, job: Train, chip: Chip, n_chips: int
) -> tuple[float, str]:
    """Return the seconds of one step from TFLOP/s or MFU, and the name of that field."""
    measured = record.section("measured")
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
    step_flops = flops_per_token(config, job.seq, convention) * job.tokens_per_step
    if tflops is not None:
        return step_flops / (tflops * units.TB * n_chips), "tflops_per_chip"
    return compute_s(step_flops, n_chips, _peak_of_mfu(chip, job), float(mfu or 0)), "mfu"


def _peak_of_mfu(chip: Chip, job: Train) -> float:
    """Return the peak FLOP/s that an MFU refers to."""
    if job.compute not in _SINGLE_PEAK:
        raise BadFile(f"unknown FLOPs: only MFU is stated, of a peak unknown under {job.compute}.")
    try:
        return chip.peak(job.compute)
    except UnknownFigure as error:
        raise BadFile(f"unknown FLOPs: only MFU is stated, and {error.problems[0]}") from None
