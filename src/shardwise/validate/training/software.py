"""The framework that ran a published training run, and the kernels that it used at its date."""

from __future__ import annotations

from dataclasses import replace

from shardwise.estimate.training.framework_profiles import PROFILES
from shardwise.estimate.training.run_variant import FusionProfile
from shardwise.validate.training.runs import Run
from shardwise.vocabulary import UNKNOWN_FRAMEWORK

FLASH_SINCE = "2023-03"  # month in which Megatron-style frameworks got FlashAttention
WITHOUT_FLASH = ("VIA-Research/vTrain",)  # sources of later runs with unfused attention
# Dispatchers that send a token once per node, not once per expert.
SEND_ONCE_PER_NODE = ("deepep", "hybridep")
# Start of the name of a source -> framework. MLPerf's submissions by NVIDIA run NeMo.
_BY_SOURCE = {
    "pytorch/torchtitan": "torchtitan",
    "mosaicml/": "llm-foundry",
    "NVIDIA-NeMo/Automodel": "automodel",
    "NVIDIA-NeMo/": "nemo",
    "NVIDIA NeMo": "nemo",
    "NVIDIA/NeMo": "nemo",
    "NVIDIA/dgxc": "nemo",
    "mlcommons/": "nemo",
    "huggingface/nanotron": "nanotron",
    "bigscience-workshop/": "megatron-deepspeed",
    "stas00/": "deepspeed",
    "DeepSeek-V3 ": "hai-llm",
}
# Family of frameworks of a record -> framework, where the source says no more.
_BY_FAMILY = {"megatron": "megatron", "jax": "maxtext", "deepspeed": "deepspeed"}
# Edge of the blocks of masked attention in recipes that set it (sa_block_q, sa_block_kv).
_MASK_TILES = {"AI-Hypercomputer/tpu-recipes": 2048}


def framework_of(run: Run) -> str:
    """Return the framework of a run, one of `vocabulary.FRAMEWORKS`."""
    if run.framework == "jax":
        return UNKNOWN_FRAMEWORK if "paxml" in run.group else "maxtext"
    for prefix, framework in _BY_SOURCE.items():
        if run.source.startswith(prefix):
            return framework
    return _BY_FAMILY.get(run.framework, UNKNOWN_FRAMEWORK)


def fusion_of(run: Run) -> FusionProfile:
    """Return the kernels and fusions that the framework of a run used at its date."""
    profile = PROFILES[framework_of(run)]
    fused = profile.fused
    if run.framework == "fsdp":  # fused by torch.compile, or by AutoModel's modules for experts
        fused = run.compiled or bool(run.dispatcher)
    return replace(
        profile,
        flash=has_flash(run),
        mask_tile=_MASK_TILES.get(run.source),
        narrow_attention=run.narrow_attention,
        fused=fused,
        fused_gradient_add=profile.fused_gradient_add and has_flash(run),
        captured=run.captured,
        send_once=run.dispatcher in SEND_ONCE_PER_NODE,
    )


def has_flash(run: Run) -> bool:
    """Whether the framework of a run used FlashAttention at its date."""
    before_flash = run.framework in ("megatron", "deepspeed") and run.date < FLASH_SINCE
    return not before_flash and run.source not in WITHOUT_FLASH
