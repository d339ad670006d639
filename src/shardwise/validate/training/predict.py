"""Predicted step times of published runs, by the planner's formulas for their layouts."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.errors import ShardwiseError
from shardwise.estimate.calibration import calibration
from shardwise.estimate.training.layout_step import LayoutStep
from shardwise.estimate.training.run_variant import FusionProfile, RunVariant
from shardwise.validate.records.files import SkippedRecord, skipped_run
from shardwise.validate.training.runs import Run

FLASH_SINCE = "2023-03"  # FlashAttention in Megatron-style frameworks
WITHOUT_FLASH = ("VIA-Research/vTrain",)  # profiled with unfused attention
# Sources that run FlashAttention-2 on every GPU: PyTorch's scaled_dot_product_attention and
# llm-foundry.
WARP_ATTENTION = ("mosaicml/", "pytorch/", "foundation-model-stack/")
# Sources without prefetch in the backward pass: Composer's default for FSDP (backward_prefetch
# BACKWARD_POST) gathers the weights of a layer after the backward pass of the previous one.
WITHOUT_PREFETCH = ("mosaicml/",)
# Sources without gradient accumulation in the matmul: nanotron's FP32GradientAccumulator adds in a
# hook. Megatron has gradient_accumulation_fusion since 2022, about as long as FlashAttention.
WITHOUT_ACCUMULATION_FUSION = ("huggingface/nanotron",)
# Frameworks that recompute the whole layer: CheckpointFunction of Megatron-LM and of DeepSpeed.
# PyTorch's checkpoint stops at the last tensor that the backward pass needs, and XLA removes
# unused operations.
WHOLE_LAYER_RECOMPUTE = ("megatron", "deepspeed")
SEND_ONCE_PER_NODE = ("deepep", "hybridep")  # a token is sent once to the experts of a node
# Frameworks that do not fuse element-wise operations, except with torch.compile or AutoModel's
# expert modules (which use DeepEP).
EAGER = ("fsdp", "deepspeed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The predicted and measured seconds of a step.

    Args:
        lower, upper: the interval that should contain four of five runs, by the calibration.
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


def predict(run: Run) -> Prediction | SkippedRecord:
    """Predict the step time of a run, or give the reason why the formulas do not support it."""
    rates = calibration(run.system.chip.name)
    try:
        step = derived(run).time(rates, kernels_of(run))
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


def derived(run: Run) -> LayoutStep:
    """The step of a run, to be evaluated at any rates.

    Raises:
        ShardwiseError: the formulas do not support something in the run.
    """
    extras = RunVariant(
        frozen=run.task == "lora",
        whole_remat=run.framework in WHOLE_LAYER_RECOMPUTE,
        packed=run.packed,
        mtp_layers=run.mtp_layers,
    )
    return LayoutStep(run.config, run.system, run.job, run.layout, variant=extras)


def kernels_of(run: Run) -> FusionProfile:
    """The kernels and fusions of the framework of a run."""
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
