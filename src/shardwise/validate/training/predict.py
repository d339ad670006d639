"""Step times of published runs, predicted by the planner's formulas."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.errors import ShardwiseError
from shardwise.estimate.calibration import calibration
from shardwise.estimate.training.layout_step import LayoutStep
from shardwise.estimate.training.run_variant import FusionProfile, RunVariant
from shardwise.validate.records.files import SkippedRecord, skipped_run
from shardwise.validate.records.runs import Graded
from shardwise.validate.training.runs import Run

FLASH_SINCE = "2023-03"  # month in which Megatron-style frameworks got FlashAttention
WITHOUT_FLASH = ("VIA-Research/vTrain",)  # sources of later runs with unfused attention
# Sources that use FlashAttention-2 on all GPUs, also where there is a newer version: PyTorch's
# scaled_dot_product_attention and llm-foundry.
WARP_ATTENTION = ("mosaicml/", "pytorch/", "foundation-model-stack/")
# Sources whose FSDP does not prefetch in the backward pass: Composer's default (backward_prefetch
# BACKWARD_POST) gathers the weights of a layer after the backward pass of the layer before it.
WITHOUT_PREFETCH = ("mosaicml/",)
# Sources without fusion of the matmul that computes a gradient with the addition to the accumulated
# gradient: nanotron's FP32GradientAccumulator adds in a hook. Megatron has
# gradient_accumulation_fusion since 2022, about as long as FlashAttention.
WITHOUT_ACCUMULATION_FUSION = ("huggingface/nanotron",)
# Frameworks that recompute a layer to its end (CheckpointFunction of Megatron-LM and of DeepSpeed).
# PyTorch's checkpoint stops at the last tensor that the backward pass needs, and XLA removes
# operations whose results are not used.
WHOLE_LAYER_RECOMPUTE = ("megatron", "deepspeed")
# Dispatchers that send a token once per node, not once per expert.
SEND_ONCE_PER_NODE = ("deepep", "hybridep")
# Frameworks that do not fuse element-wise operations, except with torch.compile or in AutoModel's
# modules for experts (known by their use of DeepEP).
EAGER = ("fsdp", "deepspeed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction(Graded):
    """Predicted and measured seconds of a step.

    Args:
        predicted: expected seconds of a step.
        lower, upper: interval that should contain the measured seconds of four of five runs.
        measured: measured seconds of a step.
        unit: "s".
        err: predicted / measured - 1.
        peers: other predictor -> the seconds that it predicts.
    """

    predicted: float
    lower: float
    upper: float
    measured: float
    unit: str
    err: float
    peers: dict[str, float]


def predict(run: Run) -> Prediction | SkippedRecord:
    """Predict the step time of a run; return a `SkippedRecord` if a formula does not support it."""
    rates = calibration(run.system.chip.name)
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
        peers=dict(run.peers),
    )


def layout_step_of(run: Run) -> LayoutStep:
    """Return the step of a run, whose time can be computed at any rates of the chip.

    Raises:
        ShardwiseError: the formulas do not support something in the run.
    """
    variant = RunVariant(
        frozen=run.task == "lora",
        whole_remat=run.framework in WHOLE_LAYER_RECOMPUTE,
        packed=run.packed,
        mtp_layers=run.mtp_layers,
    )
    return LayoutStep(run.config, run.system, run.job, run.layout, variant=variant)


def fusion_of(run: Run) -> FusionProfile:
    """Return the kernels and fusions that the framework of a run used at its date."""
    return FusionProfile(
        flash=has_flash(run),
        warp_attention=run.source.startswith(WARP_ATTENTION),
        narrow_attention=run.narrow_attention,
        fused=run.framework not in EAGER or run.compiled or bool(run.dispatcher),
        fused_gradient_add=has_flash(run)
        and not run.source.startswith(WITHOUT_ACCUMULATION_FUSION),
        backward_prefetch=not run.source.startswith(WITHOUT_PREFETCH),
        cuda_graphs=run.graphs,
        send_once=run.dispatcher in SEND_ONCE_PER_NODE,
    )


def has_flash(run: Run) -> bool:
    """Whether the framework of a run used FlashAttention at its date."""
    before_flash = run.framework in ("megatron", "deepspeed") and run.date < FLASH_SINCE
    return not before_flash and run.source not in WITHOUT_FLASH
