"""Step times of published runs, predicted by the planner's formulas."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.errors import ShardwiseError
from shardwise.estimate.calibration import calibration
from shardwise.estimate.training.layout_step import LayoutStep
from shardwise.estimate.training.run_variant import RunVariant
from shardwise.validate.records.files import SkippedRecord, bundled, skipped_run
from shardwise.validate.records.runs import Graded
from shardwise.validate.training.runs import Run
from shardwise.validate.training.software import framework_of, fusion_of

# Frameworks that recompute a layer to its end (CheckpointFunction of Megatron-LM and of DeepSpeed).
# PyTorch's checkpoint stops at the last tensor that the backward pass needs, and XLA removes
# operations whose results are not used.
WHOLE_LAYER_RECOMPUTE = ("megatron", "deepspeed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction(Graded):
    """Predicted and measured seconds of a step.

    Args:
        predicted: expected seconds of a step.
        lower, upper: interval that should contain the measured seconds of four of five runs.
        measured: measured seconds of a step.
        unit: "s".
        err: predicted / measured - 1.
        left_out_err: the same with rates fitted without the row's group; None for rows that were
            not fitted.
        peers: other predictor -> the seconds that it predicts.
    """

    predicted: float
    lower: float
    upper: float
    measured: float
    unit: str
    err: float
    left_out_err: float | None
    peers: dict[str, float]


def predict(run: Run) -> Prediction | SkippedRecord:
    """Predict the step time of a run; return a `SkippedRecord` if a formula does not support it."""
    rates = calibration(run.system.chip, framework_of(run))
    try:
        step = layout_step_of(run).time(rates, fusion_of(run))
    except ShardwiseError as error:
        return skipped_run(run, " ".join(error.problems))
    expected = float(step.step_s)
    return Prediction(
        id=run.id,
        source=run.source,
        group=run.group,
        quality=run.quality,
        tier=run.tier,
        predicted=expected,
        lower=expected / (1 + rates.spread),
        upper=expected * (1 + rates.spread),
        measured=run.measured_step_s,
        unit="s",
        err=expected / run.measured_step_s - 1,
        left_out_err=_left_out_err(run),
        peers=dict(run.peers),
    )


def _left_out_err(run: Run) -> float | None:
    """`Prediction.left_out_err`, from the last run of bench/calibrate.py."""
    ratio = bundled("left_out.json").get(run.id)
    return None if ratio is None else float(ratio) - 1


def layout_step_of(run: Run) -> LayoutStep:
    """Return the step of a run, whose time can be computed at any rates of the chip.

    Raises:
        ShardwiseError: the formulas do not support something in the run.
    """
    variant = RunVariant(
        frozen=run.task == "lora",
        whole_remat=run.framework in WHOLE_LAYER_RECOMPUTE,
        packed=run.packed,
    )
    return LayoutStep(run.config, run.system, run.job, run.layout, variant=variant)
