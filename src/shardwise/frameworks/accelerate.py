"""Hugging Face accelerate: its configuration, which names the words of DeepSpeed in its own way.

https://huggingface.co/docs/accelerate/package_reference/cli, and `DeepSpeedPlugin` of its source.
"""

from __future__ import annotations

from typing import Any

from shardwise.errors import BadFile
from shardwise.frameworks.exported import Settings

KIND = "distributed_type"
# Key of `deepspeed_config` -> key of DeepSpeed's own configuration.
_KEYS = {
    "zero_stage": "zero_optimization.stage",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_param_device": "zero_optimization.offload_param.device",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}
# Flags of `accelerate launch`, which count before its file.
_FLAGS = {
    "--zero_stage": "zero_optimization.stage",
    "--offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "--offload_param_device": "zero_optimization.offload_param.device",
}


def is_launched(settings: Settings) -> bool:
    """Whether accelerate starts DeepSpeed by these settings."""
    return settings.get(KIND) == "DEEPSPEED" or "--use_deepspeed" in settings


def named_file(settings: Settings) -> str:
    """The configuration of DeepSpeed that one of accelerate names; empty without one."""
    plugin = settings.get("deepspeed_config")
    name = plugin.get("deepspeed_config_file") if isinstance(plugin, dict) else None
    return name if isinstance(name, str) else ""


def processes(settings: Settings) -> int | None:
    """GPUs of all machines, one for each process; None if they are not given."""
    number = settings.get("--num_processes", settings.get("num_processes"))
    return number if isinstance(number, int) else None


def translated(settings: Settings) -> Settings:
    """The settings with DeepSpeed's own words for those of accelerate.

    Raises:
        BadFile: they start another kind of run, which is not read.
    """
    kind = settings.get(KIND)
    if kind not in (None, "DEEPSPEED", "FSDP", "MULTI_GPU"):
        raise BadFile(
            f"accelerate with {KIND} {kind} is not read; DEEPSPEED, FSDP and MULTI_GPU are. Plan "
            "what it says: shardwise plan MODEL HARDWARE --train --batch NxT --mesh fsdp=N."
        )
    if not is_launched(settings):
        return settings
    plugin = settings.get("deepspeed_config")
    words: dict[str, Any] = {}
    if isinstance(plugin, dict):
        words = {key: plugin[name] for name, key in _KEYS.items() if name in plugin}
    words |= {key: settings[flag] for flag, key in _FLAGS.items() if flag in settings}
    precision = settings.get("--mixed_precision", settings.get("mixed_precision"))
    if precision in ("bf16", "fp16"):
        words[f"{precision}.enabled"] = True
    return _with(settings, words)


def _with(settings: Settings, words: dict[str, Any]) -> Settings:
    """Settings with further ones, whose names have dots; those that are there stay."""
    result = dict(settings)
    for name, value in words.items():
        *parents, last = name.split(".")
        part = result
        for parent in parents:
            inner = part.get(parent)
            part[parent] = dict(inner) if isinstance(inner, dict) else {}
            part = part[parent]
        part.setdefault(last, value)
    return result
