"""DeepSpeed: the JSON configuration of `deepspeed.initialize`.

The data-parallel ranks follow from the batch: `train_batch_size` = micro batch x accumulation x
ranks. https://www.deepspeed.ai/docs/config-json
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from shardwise.errors import BadFile
from shardwise.frameworks import accelerate, trainer
from shardwise.frameworks.engine_layout import Values
from shardwise.frameworks.exported import (
    Framework,
    Settings,
    TrainingRun,
    Written,
    check_runs,
    nested,
    setting,
)
from shardwise.frameworks.launch import TrainingLaunch
from shardwise.frameworks.megatron_layout import unsaid, without_sequences
from shardwise.frameworks.shell_script import torchrun_chips
from shardwise.frameworks.trainer import first_number

_HPZ = "zero_hpz_partition_size"  # of ZeRO++: ranks that share a copy of the weights
_OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD", "muon": "Muon"}


def write(run: TrainingRun) -> Written:
    """The configuration of a plan."""
    layout, mesh, job = run.layout, run.layout.mesh, run.job
    check_runs(run, "deepspeed")
    notes = unsaid(run, offloads=("optimizer",))
    values: dict[str, Any] = {
        "train_batch_size": job.batch,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.n_microbatches,
        "zero_optimization.stage": layout.zero,
        "zero_optimization.overlap_comm": True,
        "bf16.enabled": job.compute != "fp32",
        "gradient_clipping": 1.0,
    }
    if layout.zero == 3 and mesh.data > 1:
        values[f"zero_optimization.{_HPZ}"] = mesh.fsdp * mesh.expert * mesh.context
    if mesh.tensor > 1:
        values["tensor_parallel.autotp_size"] = mesh.tensor
        notes += without_sequences(mesh.tensor)
    if mesh.context > 1:
        values["sequence_parallel_size"] = mesh.context
    if mesh.expert > 1:
        values["expert_parallel.enabled"] = True
        values["expert_parallel.autoep_size"] = mesh.expert
    if mesh.pipe > 1:
        values["pipeline.stages"] = mesh.pipe
        notes.append(f"PipelineModule(num_stages={mesh.pipe}) of your code makes the pipeline.")
    values |= _gradients(run, notes)
    if job.optimizer in _OPTIMIZERS:
        values["optimizer.type"] = _OPTIMIZERS[job.optimizer]
    if layout.policy != "none":
        values["activation_checkpointing.partition_activations"] = False
        notes.append(f"remat {layout.policy}: checkpointing is called by your model's code.")
    if "optimizer" in layout.offload:
        values["zero_optimization.offload_optimizer.device"] = "cpu"
    notes.append("learning rate and schedule: optimizer.params and scheduler of yours.")
    notes.append(f"sequence length {job.seq:,}: of your data loader.")
    notes.append(
        f"launch on {run.nodes.count:,} nodes of {run.nodes.chips} GPUs: deepspeed "
        f"--num_nodes {run.nodes.count} --num_gpus {run.nodes.chips} train.py."
    )
    return Written(settings=nested(values), notes=notes)


def _gradients(run: TrainingRun, notes: list[str]) -> Settings:
    """The dtypes in which gradients are summed and sent, where they are not those of weights."""
    job, zero = run.job, run.layout.zero
    values: Settings = {}
    if job.gradients != job.weights and zero == 1:
        values["data_types.grad_accum_dtype"] = job.gradients
    elif job.gradients != job.weights:
        notes.append(f"gradients in {job.gradients}: under ZeRO-{zero} in {job.weights}.")
    if (sent := job.reduce or job.gradients) != job.weights:
        values["communication_data_type"] = sent
    return values


def read(settings: Settings) -> TrainingLaunch:
    """The layout of a configuration."""
    tensor = setting(settings, "tensor_parallel.autotp_size", 1) or 1
    expert = setting(settings, "expert_parallel.autoep_size", 1)
    stage = setting(settings, "zero_optimization.stage", 0)
    stages = setting(settings, "pipeline.stages", 1)
    sizes = {
        "tensor": tensor,
        "context": setting(settings, "sequence_parallel_size", 1),
        "expert": expert,
        "pipe": stages if isinstance(stages, int) else 1,
    }
    batch, micro, steps = (
        first_number(settings, key)
        for key in (
            "train_batch_size",
            "train_micro_batch_size_per_gpu",
            "gradient_accumulation_steps",
        )
    )
    micro, steps = trainer.batch_of(settings, micro, steps)
    shards = _shards(settings, expert * sizes["context"])
    role = "fsdp" if stage == 3 and not shards else "data"
    if shards:
        sizes["fsdp"] = shards
    fill: str | None = role
    n_chips = _n_started(settings)
    if batch and micro and steps:
        if batch % (micro * steps * expert):
            raise BadFile(
                f"deepspeed: train_batch_size {batch:,} is no multiple of micro batch {micro} x "
                f"accumulation {steps} x expert {expert}."
            )
        ranks = batch // (micro * steps * expert)
        if shards and ranks % shards:
            raise BadFile(
                f"deepspeed: {_HPZ} {shards * expert} does not divide the {ranks * expert} ranks "
                "that the batch has."
            )
        sizes[role] = ranks // (shards or 1)
        fill = None
        n_chips = math.prod(sizes.values())
    names = {word: name for name, word in _OPTIMIZERS.items()}
    return TrainingLaunch(
        sizes=sizes,
        fill=fill,
        n_chips=n_chips,
        batch=batch,
        batch_per_chip=trainer.batch_per_chip(settings, micro, steps, tensor * expert),
        **trainer.words_of_run(settings),
        micro_batch=micro,
        n_microbatches=steps,
        zero=stage,
        schedule="1f1b",
        context_kind="ulysses",
        compute=_half(settings),
        precision="fp32-master",
        dtypes=_dtypes(settings),
        notes=(*_notes(settings), *without_sequences(tensor)),
        offload=("optimizer",) if _is_offloaded(settings, "optimizer") else (),
        ignored=tuple(_ignored(settings)),
        optimizer=names.get(str(setting(settings, "optimizer.type", "AdamW"))),
        remat="full" if trainer.recomputes(settings) else None,
    )


def _half(settings: Settings) -> str:
    """Dtype of the weights that a step computes with, and of gradients by default."""
    return "fp16" if setting(settings, "fp16.enabled") is True else "bf16"


def _shards(settings: Settings, ranks: int) -> int | None:
    """Ranks of fsdp that share the weights under ZeRO++; None without it.

    Args:
        ranks: of experts and of sequence parallelism, which share the weights too.

    Raises:
        BadFile: they are no number, or hold no whole groups of these ranks.
    """
    size = setting(settings, f"zero_optimization.{_HPZ}", 1)
    if size == 1 or setting(settings, "zero_optimization.stage", 0) != 3:
        return None
    if not isinstance(size, int) or size < 1 or size % ranks:
        raise BadFile(
            f"deepspeed: {_HPZ} is {size!r}; it must be a number from 1"
            f"{f', a multiple of the {ranks} ranks of experts and sequences' if ranks > 1 else ''}."
        )
    return size // ranks


def _n_started(settings: Settings) -> int | None:
    """GPUs that `deepspeed`, `accelerate` or `torchrun` starts, if the file says so."""
    per_node = first_number(settings, "--num_gpus")
    if per_node:
        return per_node * (Values(settings, "deepspeed").number("num_nodes") or 1)
    return accelerate.processes(settings) or torchrun_chips(settings)


def _dtypes(settings: Settings) -> dict[str, str | None]:
    """Dtypes of the training state beside those of fp32-master."""
    half = _half(settings)
    accumulated = setting(settings, "data_types.grad_accum_dtype", half)
    sent = setting(settings, "communication_data_type", half)
    dtypes: dict[str, str | None] = {"gradients": str(accumulated)}
    if sent != accumulated:
        dtypes["reduce"] = str(sent)
    if setting(settings, "bf16.bf16_master_weights_and_grads") is True:
        dtypes = {"gradients": "bf16", "master": None}
        if setting(settings, "bf16.bf16_optimizer_states") is True:
            dtypes["moments"] = "bf16"
    return dtypes


def _notes(settings: Settings) -> list[str]:
    notes = []
    words = ("bf16", "fp16", "torch_autocast")
    is_half = any(setting(settings, f"{word}.enabled") or f"--{word}" in settings for word in words)
    if not is_half:
        notes.append("neither bf16 nor fp16 is enabled, which is fp32; bf16 is planned.")
    if "--deepspeed" in settings and "zero_optimization" not in settings:
        notes.append("its file --deepspeed is not there: the ZeRO stage is a guess, 0.")
    if _shards(settings, 1):
        notes.append(
            f"{_HPZ}: the run has a copy of the weights in each such group of ranks, and one of "
            "gradients and optimizer state in all; the plan has one of each in a group, which "
            "takes more memory."
        )
    if setting(settings, "activation_checkpointing.cpu_checkpointing"):
        notes.append(
            "cpu_checkpointing moves saved activations to host memory, where the model's code "
            "checkpoints by deepspeed.checkpointing; the plan has them on the device."
        )
    if setting(settings, "fp16.fp16_master_weights_and_grads"):
        notes.append("fp16_master_weights_and_grads: fp32 master weights are planned.")
    return notes


def _ignored(settings: Settings) -> Iterator[str]:
    """Keys that change memory or speed, and that plans have no word for."""
    if _is_offloaded(settings, "param"):
        yield "zero_optimization.offload_param"
    for word in ("zenflow", "zero_quantized_weights", "zero_quantized_gradients"):
        if setting(settings, f"zero_optimization.{word}"):
            yield f"zero_optimization.{word}"
    if setting(settings, "activation_checkpointing.partition_activations"):
        yield "activation_checkpointing.partition_activations"


def _is_offloaded(settings: Settings, part: str) -> bool:
    """Whether a part of the state is kept in host memory, or on its disks."""
    device = setting(settings, f"zero_optimization.offload_{part}.device", "none")
    return str(device) in ("cpu", "nvme")


def knows(settings: Settings) -> int:
    """How many keys are DeepSpeed's."""
    keys = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "fp16")
    if "--tensor-model-parallel-size" in settings or "--pipeline-model-parallel-size" in settings:
        return 0  # Megatron-DeepSpeed, whose flags say its layout
    by_accelerate = accelerate.is_launched(settings)
    is_trainer = "--deepspeed" in settings and trainer.BATCH in settings
    return 2 * sum((*(key in settings for key in keys), is_trainer, by_accelerate))


FRAMEWORK = Framework(
    name="deepspeed",
    title="DeepSpeed",
    work="train",
    suffix=".json",
    as_of="0.19.8, 2026-11",
    write=write,
    read=read,
    knows=knows,
)
