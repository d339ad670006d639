"""A published run -> the step time that the planner's formulas give its layout."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.errors import ShardwiseError
from shardwise.estimate.calibration import PEAK, calibration
from shardwise.estimate.layout_step import LayoutStep
from shardwise.estimate.rates import Kernels
from shardwise.validate.runs import Run, Underivable

# FlashAttention in Megatron-style frameworks, and what their published runs used before.
FLASH_SINCE = "2023-03"
WITHOUT_FLASH = ("VIA-Research/vTrain",)  # its profiles are of unfused attention
EAGER = ("fsdp", "deepspeed")  # element-wise operations run one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One row: predicted and measured seconds of a step.

    Args:
        lower: everything at peak rates and all communication hidden.
        upper: achieved rates and no communication hidden.
        err: predicted / measured - 1.
    """

    id: str
    source: str
    group: str
    quality: str
    tier: str
    predicted: float
    lower: float
    upper: float
    measured: float
    unit: str
    err: float
    peers: dict[str, float]


def predict(run: Run) -> Prediction | Underivable:
    """Predict one run, or say what of it the formulas do not know."""
    if run.task == "lora":
        return _not(run, "LoRA: frozen weights need no gradients, and the program has them all.")
    kernels = Kernels(flash=has_flash(run), fused=run.framework not in EAGER)
    cal = calibration(run.system.chip.name)
    try:
        found = LayoutStep(run.config, run.system, run.job, run.layout)
        step, peak = found.at(cal, kernels), found.at(PEAK, Kernels())
    except ShardwiseError as error:
        return _not(run, " ".join(error.problems))
    return Prediction(
        id=run.id,
        source=run.source,
        group=run.group,
        quality=run.quality,
        tier=run.tier,
        predicted=step.step_s,
        lower=peak.on_chip_s,
        upper=step.upper_s,
        measured=run.measured_step_s,
        unit="s",
        err=step.step_s / run.measured_step_s - 1,
        peers=dict(run.peers),
    )


def has_flash(run: Run) -> bool:
    """Whether its framework computed attention in tiles."""
    old = run.framework in ("megatron", "deepspeed") and run.date < FLASH_SINCE
    return not old and run.source not in WITHOUT_FLASH


def _not(run: Run, reason: str) -> Underivable:
    return Underivable(id=run.id, source=run.source, reason=reason)
