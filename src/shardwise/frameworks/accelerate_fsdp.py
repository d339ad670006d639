"""Hugging Face accelerate with FSDP or DDP: `fsdp_config` of its file, or flags of its launcher.

Version 1 of FSDP names a sharding strategy; version 2 says whether weights are gathered again in
the backward pass. Weights are fp32; matmuls, and sums of gradients, are in the 16 bits of
`mixed_precision`. https://huggingface.co/docs/accelerate/usage_guides/fsdp
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardwise.errors import BadFile
from shardwise.frameworks import accelerate, trainer
from shardwise.frameworks.engine_layout import Values
from shardwise.frameworks.exported import Framework, Settings, TrainingRun, Written, refuse, setting
from shardwise.frameworks.launch import TrainingLaunch
from shardwise.frameworks.megatron_layout import without_sequences

# `ShardingStrategy` of PyTorch, by name and by number, -> ZeRO stage.
_STAGES = {
    "FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "HYBRID_SHARD_ZERO2": 2,
}  # fmt: skip
_HALVES = ("bf16", "fp16")
_ROLES = {"data": "dp_replicate", "fsdp": "dp_shard", "tensor": "tp", "context": "cp"}
_NUMBERED = {str(number): name for number, name in enumerate(_STAGES, 1)}


def is_launched(settings: Settings) -> bool:
    """Whether accelerate starts FSDP or DDP by these settings."""
    is_ddp = settings.get(accelerate.KIND) == "MULTI_GPU" or "--multi_gpu" in settings
    return _is_fsdp(settings) or (is_ddp and "--use_deepspeed" not in settings)


def _is_fsdp(settings: Settings) -> bool:
    return settings.get(accelerate.KIND) == "FSDP" or "--use_fsdp" in settings


def read(settings: Settings) -> TrainingLaunch:
    """The layout of a configuration, or of a script that names one."""
    strategy = _strategy(settings)
    stage = _STAGES[strategy]
    sizes = _parallelism(settings, stage)
    fill = "fsdp" if stage == 3 and "fsdp" not in sizes else "data"
    if strategy == "HYBRID_SHARD":
        sizes["fsdp"], fill = _of_node(settings), "data"
    micro, steps = trainer.batch_of(
        settings, None, trainer.first_number(settings, "gradient_accumulation_steps")
    )
    precision = settings.get("--mixed_precision", settings.get("mixed_precision"))
    half = next((word for word in _HALVES if f"--{word}" in settings), precision)
    is_offloaded = _option(settings, "offload_params") is True
    of_fsdp = _option(settings, "activation_checkpointing") is True
    of_trainer = trainer.recomputes(settings)
    return TrainingLaunch(
        sizes=sizes,
        fill=fill,
        n_chips=accelerate.processes(settings),
        batch_per_chip=trainer.batch_per_chip(
            settings, micro, steps, sizes.get("tensor", 1) * sizes.get("context", 1)
        ),
        micro_batch=micro,
        n_microbatches=steps,
        zero=stage,
        remat="full" if of_fsdp or of_trainer else None,
        compute=half if half in ("fp16", "fp8") else "bf16",
        # Weights that stay gathered are in 16 bits, beside fp32 shards.
        precision="fp32-master" if stage == 2 and half in _HALVES else "fp32",
        dtypes=_dtypes(half, stage) if half in _HALVES and _is_fsdp(settings) else {},
        offload=("optimizer",) if is_offloaded else (),
        notes=(
            *_notes(settings, strategy, half, is_offloaded=is_offloaded),
            *without_sequences(sizes.get("tensor", 1)),
        ),
        **trainer.words_of_run(settings),
    )


def _dtypes(half: Any, stage: int) -> dict[str, str | None]:
    """Dtypes in 16 bits of the training state: sums of gradients, and weights that stay whole."""
    return {"reduce": half, "weights": half} if stage == 2 else {"reduce": half}


def _parallelism(settings: Settings, stage: int) -> dict[str, int]:
    """Mesh sizes above 1 of `parallelism_config`, of accelerate from 1.10 on."""
    sizes = {}
    for role, name in _ROLES.items():
        key = f"parallelism_config_{name}_size"
        of_file = setting(settings, f"parallelism_config.{key}")
        size = Values({key: settings.get(f"--{key}", of_file)}, "accelerate").size(key)
        if size > 1:
            sizes[role] = size
    if stage != 3 and "fsdp" in sizes:  # all ranks have whole weights
        sizes["data"] = sizes.get("data", 1) * sizes.pop("fsdp")
    return sizes


def _option(settings: Settings, name: str) -> Any:
    """An option of FSDP: a flag of the launcher, before its file."""
    of_file = setting(settings, f"fsdp_config.fsdp_{name}")
    return settings.get(f"--fsdp_{name}", of_file)


def _strategy(settings: Settings) -> str:
    """The sharding strategy, in the words of version 1.

    Raises:
        BadFile: it is none.
    """
    if not _is_fsdp(settings):
        return "NO_SHARD"
    gathers_again = _option(settings, "reshard_after_forward")
    if isinstance(gathers_again, bool):
        return "FULL_SHARD" if gathers_again else "SHARD_GRAD_OP"
    word = gathers_again or _option(settings, "sharding_strategy") or "FULL_SHARD"
    strategy = _NUMBERED.get(str(word), str(word).upper())
    if strategy not in _STAGES:
        raise BadFile(
            f"accelerate: fsdp_sharding_strategy is {word}; it must be one of {', '.join(_STAGES)}."
        )
    return strategy


def _of_node(settings: Settings) -> int:
    """GPUs of a node, over which HYBRID_SHARD shards.

    Raises:
        BadFile: the file does not say them.
    """
    n_processes = accelerate.processes(settings)
    n_machines = trainer.first_number(settings, "--num_machines", "num_machines")
    if not n_processes or not n_machines or n_processes % n_machines:
        raise BadFile(
            "accelerate: HYBRID_SHARD shards over the GPUs of a node. Give num_processes, those of "
            "all nodes, as a multiple of num_machines."
        )
    return n_processes // n_machines


def _notes(settings: Settings, strategy: str, half: object, *, is_offloaded: bool) -> Iterator[str]:
    """What the file sets and the plan has otherwise."""
    if half not in ("bf16", "fp16", "fp8"):
        yield "mixed_precision is no, which is fp32; bf16 is planned."
    if strategy == "HYBRID_SHARD_ZERO2":
        yield (
            "HYBRID_SHARD_ZERO2 shards gradients and optimizer state over the GPUs of a node; the "
            "plan does over all, which takes less memory than the run needs."
        )
    if is_offloaded:
        yield (
            "fsdp_offload_params has weights and gradients in host memory too; the plan has them "
            "on the device."
        )
    if _option(settings, "auto_wrap_policy") == "NO_WRAP":
        yield (
            "fsdp_auto_wrap_policy NO_WRAP gathers the weights of all layers at once; the plan "
            "gathers those of a layer, less memory than the run needs."
        )


def _write(run: TrainingRun) -> Written:
    raise refuse("accelerate", run.plan.model.name, "its files are only read", "--to torchtitan")


def knows(settings: Settings) -> int:
    """Whether it starts FSDP or DDP."""
    return 2 * is_launched(settings)


FRAMEWORK = Framework(
    name="accelerate",
    title="accelerate",
    work="train",
    suffix=".yaml",
    as_of="1.12, 2026-11",
    write=_write,
    read=read,
    knows=knows,
)
