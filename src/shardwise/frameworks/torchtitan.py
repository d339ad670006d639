"""torchtitan: `torchtitan.train` with its flags, in a script for torchrun; or its older TOML files.

Flags are `--section.field` of `Trainer.Config` (torchtitan/config/configs.py and trainer.py).
Expert parallelism takes ranks of data, context and tensor parallelism; within a group of experts
nothing is sharded over tensor. https://github.com/pytorch/torchtitan
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from importlib import resources
from typing import Any

from shardwise.errors import BadFile
from shardwise.frameworks import exported
from shardwise.frameworks.exported import (
    Framework,
    Settings,
    TrainingRun,
    Written,
    check_runs,
    flat,
)
from shardwise.frameworks.launch import TrainingLaunch
from shardwise.frameworks.megatron_layout import copies_of_state, expert_axis, unsaid
from shardwise.frameworks.shell_script import PROGRAM, torchrun_chips, words_of
from shardwise.frameworks.watched import as_watched
from shardwise.strategy.stages import stages

_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zb-v": "ZBVZeroBubble",
}
_SCHEDULE = "parallelism.pipeline_parallel_schedule"
_SELECTIVE = "activation_checkpoint.selective_ac_option"  # until 0.2: "op", or a number
_ROTATION = "parallelism.context_parallel_rotate_method"  # until 0.2: "allgather" or "alltoall"
_AS_ZB_V = "DualPipeV"  # the chunks of a stage in the same order, and its overlap besides
# Preset -> module and configuration in torchtitan's config_registry files.
_CONFIGS = {
    "llama3-8b": ("llama3", "llama3_8b"),
    "llama3-70b": ("llama3", "llama3_70b"),
    "llama3.1-8b": ("llama3", "llama3_8b"),
    "llama3.1-70b": ("llama3", "llama3_70b"),
    "qwen3-30b-a3b": ("qwen3", "qwen3_30b_a3b"),
    "llama3.1-405b": ("llama3", "llama3_405b"),
    "deepseek-v2-lite": ("deepseek_v3", "deepseek_v3_16b"),
    "deepseek-v3": ("deepseek_v3", "deepseek_v3_671b"),
}
# Layers that the head, and the embedding, count as in their stages, 1 each by default.
_ENDS = ("pipeline_parallel_last_stage_less_layers", "pipeline_parallel_first_stage_less_layers")
_ASYNC_TENSOR = tuple(  # first where torchtitan has it now
    f"{section}.enable_async_tensor_parallel"
    for section in ("compile", "parallelism", "experimental", "training")
)
_REMAT = {"full": "full", "dots": "selective", "mlp": "selective", "norms": "selective"}


def write(run: TrainingRun) -> Written:
    """The script of a plan."""
    layout, mesh = run.layout, run.layout.mesh
    check_runs(run, "torchtitan")
    notes = unsaid(run)
    module, config = _CONFIGS.get(run.plan.model.name, ("MODULE", "CONFIG"))
    if module == "MODULE":
        notes.append(f"--module and --config: torchtitan's names for {run.plan.model.name}.")
    replicate, shard = mesh.data, mesh.fsdp * mesh.expert
    if layout.zero in (1, 2):
        replicate, shard = 1, mesh.data * mesh.expert
    if layout.zero == 1 and not layout.is_pipelined:
        notes.append("ZeRO-1: torchtitan shards gradients too, which is ZeRO-2.")
    if layout.zero == 2 and layout.is_pipelined:
        notes.append("ZeRO-2: torchtitan scatters gradients once a step, which is ZeRO-1.")
    settings: Settings = {
        PROGRAM: f"torchrun --nnodes {run.nodes.count} --nproc-per-node {run.nodes.chips} "
        "-m torchtitan.train",
        "--module": module,
        "--config": config,
        "--parallelism.data_parallel_replicate_degree": replicate,
        "--parallelism.data_parallel_shard_degree": shard,
        "--parallelism.fsdp_reshard_after_forward": "always" if layout.zero == 3 else "never",
        "--parallelism.tensor_parallel_degree": mesh.tensor,
        "--parallelism.context_parallel_degree": mesh.context,
        "--parallelism.expert_parallel_degree": _expert_degree(run),
        "--parallelism.pipeline_parallel_degree": mesh.pipe,
        **_pipeline(run),
        **_training(run),
    }
    if "tp_comm" in layout.overlap and mesh.tensor > 1:
        settings[f"--{_ASYNC_TENSOR[0]}"] = True
    word = _REMAT.get(layout.policy, "none" if layout.policy == "none" else "selective")
    settings[f"activation-checkpoint:{word}"] = True
    if word == "selective":
        notes.append(f"remat {layout.policy}: selective is the nearest policy of torchtitan.")
    return Written(settings=settings, notes=[*notes, *_dtype_notes(run)], command="bash FILE")


def _pipeline(run: TrainingRun) -> Settings:
    layout = run.layout
    if not layout.is_pipelined:
        return {}
    settings: Settings = {
        f"--{_SCHEDULE}": _SCHEDULES[layout.schedule],
        "--parallelism.pipeline_parallel_microbatch_size": layout.micro_batch,
    }
    if layout.virtual > 1:
        stage = stages(run.plan.model.n_layers, layout)
        settings["--parallelism.pipeline_parallel_layers_per_stage"] = stage.held // stage.chunks
        for i, name in enumerate(_ENDS):
            settings[f"--parallelism.{name}"] = int(stage.spare > i)
    return settings


def _training(run: TrainingRun) -> Settings:
    layout, job = run.layout, run.job
    accumulated = layout.n_microbatches if layout.is_pipelined else 1
    return {
        "--training.local_batch_size": layout.micro_batch * accumulated,
        "--training.global_batch_size": job.batch,
        "--training.seq_len": job.seq,
        "--training.dtype": "bfloat16" if job.precision == "bf16" else "float32",
        "--training.mixed_precision_param": "float32" if job.compute == "fp32" else "bfloat16",
    }


def _dtype_notes(run: TrainingRun) -> list[str]:
    layout, job = run.layout, run.job
    notes = []
    if layout.mesh.context > 1 and layout.context_kind != "gather":
        notes.append(f"context parallelism by {layout.context_kind}: torchtitan chooses its own.")
    if job.precision == "fp32-master":
        notes.append("training state fp32-master: torchtitan keeps fp32 weights, no bf16 copy.")
    if job.compute == "fp8":
        notes.append("fp8: torchtitan converts the model in its configuration (float8).")
    return notes


def _expert_degree(run: TrainingRun) -> int:
    if not run.is_moe:
        return 1
    return run.layout.expert_degree


def read(settings: Settings) -> TrainingLaunch:
    """The layout of a script or a TOML file, with what the configuration that it names sets."""
    values = _values(settings)
    values = as_watched(settings, {**_configuration(values.get("config")), **values})
    tensor = _size(values, "tensor_parallel_degree")
    degree = _size(values, "expert_parallel_degree")
    expert_tensor = _size(values, "expert_tensor_parallel_degree") if degree > 1 else tensor
    expert = expert_axis(degree, expert_tensor, tensor, "torchtitan")
    shard = _size(values, "data_parallel_shard_degree", -1)
    pipe = _size(values, "pipeline_parallel_degree")
    zero = _zero(values, shard * _size(values, "context_parallel_degree"), pipe)
    role = "fsdp" if zero == 3 else "data"
    sizes = {
        "data": _size(values, "data_parallel_replicate_degree"),
        "tensor": tensor,
        "context": _size(values, "context_parallel_degree"),
        "expert": expert,
        "pipe": pipe,
    }
    if shard != -1:
        sizes[role] = sizes.get(role, 1) * _data_ranks(shard, expert)
    number = functools.partial(exported.number, values, framework="torchtitan")
    local = number("training.local_batch_size", None)
    batch = number("training.global_batch_size", None)
    if (batch is None or batch < 0) and local and shard != -1:
        batch = local * sizes["data"] * sizes.get("fsdp", 1) * expert
    ranks = tensor * sizes["context"] * pipe
    converters = _converters(values)
    notes = _notes(values, converters)
    copies = _size(values, "data_parallel_replicate_degree")
    if zero in (1, 2) and copies > 1:
        notes.append(copies_of_state("data_parallel_replicate_degree", copies))
    if pipe > 1 and _AS_ZB_V.lower() == str(values.get(_SCHEDULE)).lower():
        notes.append(f"schedule {_AS_ZB_V}: planned as ZBVZeroBubble, without its overlap.")
    if pipe > 1:
        data_ranks = sizes["data"] * sizes.get("fsdp", 1) * expert if shard != -1 else None
        notes += _accumulated(values, local, batch, data_ranks)
    return TrainingLaunch(
        sizes=sizes,
        fill=role if shard == -1 else None,
        n_chips=torchrun_chips(settings),
        batch=batch if batch and batch > 0 else None,
        batch_per_chip=local / ranks if local else None,
        seq=number("training.seq_len", None),
        micro_batch=number("parallelism.pipeline_parallel_microbatch_size", 1)
        if pipe > 1
        else local,
        zero=zero,
        overlap=("tp_comm",) if tensor > 1 and any(map(values.get, _ASYNC_TENSOR)) else (),
        schedule=_schedule(values, pipe),
        chunks=functools.partial(
            _chunks,
            number("parallelism.pipeline_parallel_layers_per_stage", None),
            sum(number(f"parallelism.{name}", 1) for name in _ENDS),
        ),
        remat=_read_remat(settings, values),
        context_kind="ring" if values.get(_ROTATION) == "alltoall" else "gather",
        expert_tensor=1 if degree > 1 and tensor > 1 and expert_tensor == 1 else None,
        compute="fp8" if converters else None,
        precision=_precision(values, zero),
        notes=tuple(notes),
        model=_model(values),
    )


def _converters(values: dict[str, Any]) -> str:
    """The model converters that put matmuls into 8 bits, as a text; empty if there are none."""
    named = [value for path, value in values.items() if path.rpartition(".")[2] == "converters"]
    text = " ".join(str(value) for value in named).lower()
    return text if re.search(r"float8|fp8|\bmx\b", text) else ""


def _notes(values: dict[str, Any], converters: str) -> list[str]:
    """What the file sets and the plan has otherwise."""
    notes = []
    if (layers := _selected(values) or 0) > 1:
        notes.append(
            f"selective_ac_option {layers}: the run recomputes one of {layers} layers; the plan "
            "none, which takes more memory."
        )
    if re.search(r"mxfp8|\bmx\b", converters):
        notes.append("the converter for MX formats is planned as fp8, without scales of blocks.")
    gathers = [path for path, value in values.items() if path.endswith("float8_all_gather")]
    if converters and any(values[path] is True for path in gathers):
        notes.append("float8 all-gathers of FSDP: planned in the dtype of the weights' compute.")
    config = str(values.get("config"))
    if not converters and re.search(r"float8|fp8", config):
        notes.append(f"by its name {config} converts matmuls to 8 bits; bf16 is planned.")
    return notes


def _size(values: dict[str, Any], name: str, default: int = 1) -> int:
    """The size of an axis; -1 if it is left to the number of chips."""
    value = values.get(f"parallelism.{name}", default)
    if isinstance(value, str):
        raise BadFile(exported.no_number("torchtitan", name, value))
    if not isinstance(value, int) or value < -1 or value == 0:
        raise BadFile(f"torchtitan: {name} is {value!r}; it must be a number from 1, or -1.")
    return value


def _zero(values: dict[str, Any], ranks: int, pipe: int) -> int:
    """ZeRO stage of FSDP, which by default gathers weights again, but not in a pipeline.

    A pipeline sums whole gradients of all microbatches first, and scatters them once a step.
    `get_fsdp_reshard_after_forward_policy` of torchtitan; `backward_maybe_with_nosync` of PyTorch's
    pipelining.

    Args:
        ranks: of data and context parallelism, among which weights are sharded; below 0 where the
            file leaves them to the number of chips.
    """
    policy = values.get("parallelism.fsdp_reshard_after_forward", "default")
    if policy == "always" or (policy != "never" and pipe == 1):
        return 3
    if ranks == 1:
        return 0
    return 1 if pipe > 1 else 2


def _precision(values: dict[str, Any], zero: int) -> str:
    """Precision of the state; if weights stay gathered, their 16-bit copy is beside the master."""
    if values.get("training.dtype") == "bfloat16":
        return "bf16"
    return "fp32-master" if zero in (1, 2) else "fp32"


def _accumulated(
    values: dict[str, Any], local: int | None, batch: int | None, ranks: int | None
) -> Iterator[str]:
    """A note on the schedules of a step, if it has several, one after the other."""
    size = exported.number(
        values, "parallelism.pipeline_parallel_microbatch_size", 1, framework="torchtitan"
    )
    if local and batch and ranks is None:
        yield (
            f"global_batch_size {batch} with local_batch_size {local}: with more than {local} for "
            "each data rank, torchtitan runs its schedule several times a step, and the plan once, "
            "with a smaller bubble."
        )
    if local and batch and ranks and batch > local * ranks:
        yield (
            f"torchtitan runs its schedule {batch // (local * ranks)} times a step, each with "
            f"{local // size} microbatches; the plan runs all in one, whose bubble is smaller. "
            "Another local_batch_size does so too."
        )


def _data_ranks(shard: int, expert: int) -> int:
    """Ranks of `data_parallel_shard_degree` that hold the same experts."""
    if shard % expert:
        raise BadFile(
            f"torchtitan: data_parallel_shard_degree {shard} does not hold whole groups of "
            f"experts, of {expert} data ranks each. Plans have multiples of {expert}."
        )
    return shard // expert


def _schedule(values: dict[str, Any], pipe: int) -> str:
    word = str(values.get(_SCHEDULE, "1F1B"))
    names = {title.lower(): name for name, title in _SCHEDULES.items()}
    if word.lower() == _AS_ZB_V.lower():
        return "zb-v"
    if pipe > 1 and word.lower() not in names:
        raise BadFile(
            f"torchtitan: plans have no schedule {word}. They have "
            f"{', '.join(_SCHEDULES.values())}."
        )
    return names.get(word.lower(), "1f1b")


def _chunks(layers: int | None, ends: int, n_layers: int, n_stages: int) -> int:
    """Virtual stages of a rank under a schedule with several, as `pipeline_llm` counts them.

    It has 2 by default; with layers of a stage, embeddings and head count as layers too.
    torchtitan/distributed/pipeline_parallel.py

    Args:
        layers: layers of a virtual stage, if the file says so.
        ends: layers that embeddings and head count as.
    """
    if not layers:
        return 2
    n_chunks = -(-(n_layers + ends) // layers)
    if n_chunks % n_stages or n_chunks < 2 * n_stages:
        raise BadFile(
            f"torchtitan: pipeline_parallel_layers_per_stage {layers} makes {n_chunks} virtual "
            f"stages of {n_layers} layers and {ends} for embeddings and head; it needs a multiple "
            f"of {n_stages}, from {2 * n_stages}."
        )
    return int(n_chunks // n_stages)


def _values(settings: Settings) -> dict[str, Any]:
    """Path -> value, whether the file has flags or tables."""
    return {
        path.lstrip("-").replace("-", "_"): value
        for path, value in flat(settings).items()
        if path != PROGRAM
    }


def _configuration(name: Any) -> dict[str, Any]:
    """What one of torchtitan's own configurations sets: path -> value."""
    file = resources.files("shardwise.frameworks") / "torchtitan_configs.json"
    fields: dict[str, Any] = json.loads(file.read_text("utf-8"))["configs"].get(str(name), {})
    return fields


def _model(values: dict[str, Any]) -> str | None:
    """The model of a script's --config, or of an older file's name and flavor."""
    config = str(values.get("config", ""))
    if "model.name" in values:
        config = f"{values['model.name']}_{values.get('model.flavor')}".lower()
    names = {config: name for name, (_, config) in reversed(_CONFIGS.items())}
    return names.get(config)


def _read_remat(settings: Settings, values: dict[str, Any]) -> str | None:
    mode = values.get("activation_checkpoint.mode", "selective")
    for word in words_of(settings):
        if word.startswith("activation-checkpoint:"):
            mode = word.partition(":")[2]
    if mode == "selective" and (layers := _selected(values)) is not None:
        return "full" if layers == 1 else "none"
    return {"full": "full", "selective": "dots", "none": "none"}.get(mode)


def _selected(values: dict[str, Any]) -> int | None:
    """The number n if selective recomputation is of all of every n-th layer, not of parts."""
    layers = str(values.get(_SELECTIVE))
    return int(layers) if layers.isdecimal() else None


def knows(settings: Settings) -> int:
    """How many settings are of torchtitan's sections; more if the script starts its trainer."""
    sections = ("parallelism.", "training.local_batch", "training.seq_len")
    named = "torchtitan.train" in settings.values()
    return 5 * named + sum(path.startswith(sections) for path in _values(settings))


FRAMEWORK = Framework(
    name="torchtitan",
    title="torchtitan",
    work="train",
    suffix=".sh",
    as_of="0.3.0, 2026-11",
    write=write,
    read=read,
    knows=knows,
)
