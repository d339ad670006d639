"""Transformers' Trainer: its flags, beside the configuration of DeepSpeed or FSDP that runs it.

https://huggingface.co/docs/transformers/main_classes/trainer
"""

from __future__ import annotations

from typing import Any

from shardwise.frameworks.exported import Settings

BATCH = "--per_device_train_batch_size"
_LENGTHS = (
    "--block_size", "--max_seq_length", "--max_length", "--model_max_length", "--cutoff_len",
)  # fmt: skip


def is_trainer(settings: Settings) -> bool:
    """Whether a script has the Trainer's number of sequences."""
    return isinstance(settings.get(BATCH), int)


def batch_of(
    settings: Settings, micro: int | None = None, steps: int | None = None
) -> tuple[int | None, int | None]:
    """Sequences of a microbatch and microbatches, where a configuration does not say them."""
    if not is_trainer(settings):
        return micro, steps
    n_steps = first_number(settings, "--gradient_accumulation_steps")
    return micro or settings[BATCH], steps or n_steps or 1


def batch_per_chip(
    settings: Settings, micro: int | None, steps: int | None, shards: int = 1
) -> float | None:
    """Sequences of a step for each GPU, which the Trainer counts; `shards` share one sequence."""
    if not (micro and steps and is_trainer(settings)):
        return None
    return micro * steps / shards


def words_of_run(settings: Settings) -> dict[str, Any]:
    """Fields of a launch that the Trainer's flags say."""
    return {
        "seq": first_number(settings, *_LENGTHS),
        "model": settings.get("--model_name_or_path"),
    }


def recomputes(settings: Settings) -> bool:
    """Whether all layers are recomputed."""
    return settings.get("--gradient_checkpointing") is True


def first_number(settings: Settings, *keys: str) -> int | None:
    """The value of the first of some keys that is a number; None if all are left out or "auto"."""
    return next((settings[key] for key in keys if isinstance(settings.get(key), int)), None)
