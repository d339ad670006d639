"""A published run -> the step time that the planner's formulas give its layout."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.errors import ShardwiseError
from shardwise.estimate.calibration import calibration
from shardwise.estimate.training.layout_step import LayoutStep
from shardwise.estimate.training.run_variant import FusionProfile, RunVariant
from shardwise.validate.records.files import Underivable
from shardwise.validate.training.runs import Run

# FlashAttention in Megatron-style frameworks, and what their published runs used before.
FLASH_SINCE = "2023-03"
WITHOUT_FLASH = ("VIA-Research/vTrain",)  # its profiles are of unfused attention
# PyTorch's scaled_dot_product_attention and llm-foundry run FlashAttention-2 on every GPU.
WARP_ATTENTION = ("mosaicml/", "pytorch/", "foundation-model-stack/")
# Composer's default for FSDP: backward_prefetch BACKWARD_POST gathers a layer's weights when the
# backward pass of the layer before is done.
GATHERS_LATE = ("mosaicml/",)
# Megatron fuses sums of gradients into products (gradient_accumulation_fusion) since 2022, about
# when attention in tiles came. nanotron's FP32GradientAccumulator adds in a hook.
ADDS_APART = ("huggingface/nanotron",)
# CheckpointFunction of Megatron-LM and of DeepSpeed calls the whole layer again. PyTorch's own
# stops once it has what the backward pass reads, XLA drops what nothing reads.
RUNS_ALL_AGAIN = ("megatron", "deepspeed")
SEND_ONCE = ("deepep", "hybridep")  # a token goes once to a node, whatever experts it has there
# Element-wise operations run one by one, but where torch.compile or modules written for experts
# (AutoModel's own, which send by DeepEP) fuse them.
EAGER = ("fsdp", "deepspeed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One row: predicted and measured seconds of a step.

    Args:
        lower, upper: the calibration's `spread` about the prediction: four runs of five.
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
    cal = calibration(run.system.chip.name)
    try:
        step = derived(run).time(cal, kernels_of(run))
    except ShardwiseError as error:
        return _not(run, " ".join(error.problems))
    expected = float(step.step_s)
    return Prediction(
        id=run.id,
        source=run.source,
        group=run.group,
        quality=run.quality,
        tier=run.tier,
        predicted=expected,
        lower=expected / (1 + cal.spread),
        upper=expected * (1 + cal.spread),
        measured=run.measured_step_s,
        unit="s",
        err=expected / run.measured_step_s - 1,
        peers=dict(run.peers),
    )


def derived(run: Run) -> LayoutStep:
    """The step of a run, ready to be priced at any rates.

    Raises:
        ShardwiseError: what of the run the formulas do not know.
    """
    extras = RunVariant(
        frozen=run.task == "lora",
        whole_remat=run.framework in RUNS_ALL_AGAIN,
        packed=run.packed,
        mtp_layers=run.mtp_layers,
    )
    return LayoutStep(run.config, run.system, run.job, run.layout, variant=extras)


def kernels_of(run: Run) -> FusionProfile:
    """What the run's framework fuses."""
    return FusionProfile(
        flash=has_flash(run),
        warp_attention=run.source.startswith(WARP_ATTENTION),
        narrow_attention=run.narrow_attention,
        fused=run.framework not in EAGER or run.compiled or bool(run.dispatcher),
        fused_gradient_add=has_flash(run) and not run.source.startswith(ADDS_APART),
        backward_prefetch=not run.source.startswith(GATHERS_LATE),
        cuda_graphs=run.graphs,
        send_once=run.dispatcher in SEND_ONCE,
    )


def has_flash(run: Run) -> bool:
    """Whether its framework computed attention in tiles."""
    old = run.framework in ("megatron", "deepspeed") and run.date < FLASH_SINCE
    return not old and run.source not in WITHOUT_FLASH


def _not(run: Run, reason: str) -> Underivable:
    return Underivable(id=run.id, source=run.source, reason=reason)
