"""What was measured -> seconds per step.

Step time first, then tokens/s, then TFLOP/s and MFU through the source's own way to count FLOPs.
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

# Ways to count FLOPs of which both the attention and the recomputation are known.
CONVENTIONS = ("full", "causal_half", "full_with_recompute")

_SINGLE_PEAK = ("bf16", "fp16")  # under other dtypes sources divide by the peak of one or another


def step_seconds(
    record: Fields, config: ModelConfig, job: Train, chip: Chip, n_chips: int
) -> tuple[float, str]:
    """Seconds of one step, and the name of the figure that they come from.

    Raises:
        BadFile: nothing was measured that a step time follows from.
    """
    measured, tokens = record.inner("measured"), job.tokens_per_step
    rates = {
        "step_time_s": 1.0,
        "tokens_per_s_per_chip": tokens / n_chips,
        "tokens_per_s_total": float(tokens),
        "samples_per_s": float(job.batch),
    }
    for name, amount in rates.items():
        value = measured.maybe_number(name)
        if value is not None:
            return (value if name == "step_time_s" else amount / value), name
    return _through_flops(record, config, job, chip, n_chips)


def flops_per_token(config: ModelConfig, seq: int, convention: str) -> float:
    """FLOPs of one trained token as a source counts them.

    full: 6 per matmul parameter and 12 L N H T of attention; causal_half: half that attention;
    full_with_recompute: a fourth pass over the layers, Megatron-LM's 96 B T L D^2 (1 + T/6D +
    V/16LD) (arXiv 2104.04473, section 5.1).
    """
    counted = flops(config, seq, causal=convention == "causal_half")
    again = counted.forward - counted.unembedding if convention == "full_with_recompute" else 0
    return float(TRAINING_PASSES * counted.forward + again)


def _through_flops(
    record: Fields, config: ModelConfig, job: Train, chip: Chip, n_chips: int
) -> tuple[float, str]:
    measured, convention = record.inner("measured"), record.text("flops_convention", "unknown")
    tflops, mfu = measured.maybe_number("tflops_per_chip"), measured.maybe_number("mfu")
    if tflops is None and mfu is None:
        known = ", ".join(sorted(measured.data)) or "nothing"
        raise BadFile(f"no step time: measured is {known}, from which none follows.")
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
