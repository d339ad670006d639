"""How training frameworks run a step: what their kernels fuse, and what they prefetch.

`estimate/calibration/training.toml` has how far their rates are from those of all frameworks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import MappingProxyType

from shardwise.errors import BadInput
from shardwise.estimate.training.run_variant import FusionProfile
from shardwise.hardware import Chip
from shardwise.vocabulary import (
    DEFAULT_OVERLAPS,
    FRAMEWORKS,
    GRAPH_SHARES,
    NO_KERNELS,
    UNKNOWN_FRAMEWORK,
)
from shardwise.workload import Train

# Framework -> its profile, where it is not that of `FusionProfile()`:
# - PyTorch's scaled_dot_product_attention and llm-foundry use FlashAttention-2 on all GPUs, also
#   where there is a newer version;
# - FSDP in eager mode and DeepSpeed do not fuse element-wise operations;
# - Composer's default (backward_prefetch BACKWARD_POST) gathers the weights of a layer after the
#   backward pass of the layer before it;
# - nanotron's FP32GradientAccumulator adds gradients in a hook. Megatron has
#   gradient_accumulation_fusion;
# - Megatron Core's flex dispatcher and NeMo AutoModel send tokens by DeepEP or HybridEP; HAI-LLM,
#   the framework of DeepSeek, in 8 bits (DeepSeek-V3, arXiv 2412.19437, sections 3.2.2, 3.3.3).
_PROFILES = {
    "torchtitan": FusionProfile(warp_attention=True),
    "llm-foundry": FusionProfile(warp_attention=True, fused=False, backward_prefetch=False),
    "megatron": FusionProfile(send_once=True),
    "nemo": FusionProfile(send_once=True),
    "automodel": FusionProfile(fused=False, send_once=True),
    "hai-llm": FusionProfile(send_once=True, narrow_dispatch=True),
    "deepspeed": FusionProfile(fused=False),
    "megatron-deepspeed": FusionProfile(fused=False, flash=False, fused_gradient_add=False),
    "nanotron": FusionProfile(fused_gradient_add=False),
}
# Framework -> what it overlaps by default beyond `DEFAULT_OVERLAPS`: NeMo's user buffers.
FRAMEWORK_OVERLAPS = {"nemo": ("tp_comm",)}
ON_TPU = ("maxtext", UNKNOWN_FRAMEWORK)
PROFILES = MappingProxyType({name: _PROFILES.get(name, FusionProfile()) for name in FRAMEWORKS})


def framework_of(job: Train, chip: Chip) -> str:
    """The framework of a job, one of `FRAMEWORKS`: if the job names none, MaxText on a TPU.

    Raises:
        BadInput: the framework does not run on the chip.
    """
    if chip.kind != "tpu":
        return job.framework or UNKNOWN_FRAMEWORK
    if job.framework not in ("", *ON_TPU):
        raise BadInput(
            f"{job.framework} runs on GPUs. Of {chip.name}, the rates are known "
            f"under {' and '.join(ON_TPU)}: name one of them, or none."
        )
    return job.framework or ON_TPU[0]


def profile_of(job: Train, chip: Chip) -> FusionProfile:
    """The kernels and fusions of a job's framework, with the settings of the job.

    Raises:
        BadInput: the framework does not run on the chip, or the chip has no such settings.
    """
    profile = PROFILES[framework_of(job, chip)]
    kernels = [word for word in job.kernels if word != NO_KERNELS]
    if not kernels:
        return profile
    if chip.kind != "gpu":
        raise BadInput(f"{', '.join(kernels)}: settings of kernels on GPUs, not {chip.name}.")
    return replace(
        profile,
        captured=captured_share(kernels),
        narrow_attention="fp8_attention" in kernels,
    )


def captured_share(kernels: Iterable[str]) -> float:
    """Share of a layer's kernels that CUDA graphs hold, under settings of kernels."""
    return min(1.0, sum((GRAPH_SHARES.get(word, 0.0) for word in kernels), 0.0))


def overlaps_of(job: Train) -> tuple[str, ...]:
    """Communication that overlaps with compute under a job's framework."""
    by_framework = FRAMEWORK_OVERLAPS.get(job.framework, ())
    return tuple(dict.fromkeys((*DEFAULT_OVERLAPS, *by_framework, *job.overlap)))
