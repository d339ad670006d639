"""MaxText: a YAML file for `python -m maxtext.trainers.pre_train.train FILE`, over base.yml.

MaxText has a mesh axis for each role of a plan, split into the part within a slice (`ici_`) and
the part over slices (`dcn_`). `per_device_batch_size` counts sequences per device of JAX and may be
a fraction; chips of 7x are two devices each (`chip_devices`).
https://github.com/AI-Hypercomputer/maxtext, src/maxtext/configs/types.py
"""

from __future__ import annotations

import functools
import math
from typing import Any

from shardwise.errors import BadFile
from shardwise.frameworks import exported, maxtext_remat
from shardwise.frameworks.chip_devices import device_sizes
from shardwise.frameworks.exported import (
    Framework,
    Settings,
    TrainingRun,
    Written,
    check_runs,
)
from shardwise.frameworks.launch import TrainingLaunch
from shardwise.frameworks.megatron_layout import unsaid
from shardwise.frameworks.spelling import unknown_options
from shardwise.hardware import Switched

_AXES = {
    "data": "data", "fsdp": "fsdp", "tensor": "tensor", "context": "context", "expert": "expert",
    "pipe": "pipeline",
}  # fmt: skip
_SEQUENCES = "tensor_sequence"  # tensor parallelism whose residual is sharded over tokens
_OUTSIDE_IN = ("data", "pipe", "fsdp", "expert", "context", "tensor")
_CONTEXT = {"gather": "all_gather", "ring": "ring", "ulysses": "ulysses"}
_DTYPES = {"bf16": "bfloat16", "fp32": "float32", "fp16": "float16"}
_AS_PLANNED = {"adam_pax": "adamw"}  # with as many moments
_OPTIMIZERS = {"adamw": "adamw", "sgd": "sgd", "muon": "muon"}
# Presets that have the same name in MaxText, and those that have another one.
_SAME = (
    "llama2-7b", "llama2-13b", "llama2-70b", "llama3-8b", "llama3-70b", "llama3.1-8b",
    "llama3.1-70b", "llama3.1-405b", "llama3.3-70b", "mistral-7b", "mixtral-8x7b", "mixtral-8x22b",
    "gemma-2b", "gemma-7b", "gemma2-2b", "gemma2-9b", "gemma2-27b", "gemma3-4b", "gemma3-12b",
    "gemma3-27b", "qwen2.5-1.5b", "qwen2.5-7b", "qwen2.5-14b", "qwen3-0.6b", "qwen3-1.7b",
    "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-32b", "qwen3-30b-a3b", "qwen3-235b-a22b",
    "gpt3-175b", "gpt-oss-20b", "gpt-oss-120b",
)  # fmt: skip
_OPEN = ("ici_fsdp_parallelism", "dcn_data_parallelism")  # -1 in base.yml
# Options that count slices: of MaxText, and of launchers beside it.
_SLICES = ("num_slices", "compile_topology_num_slices", "--num-slices", "--num_slices")
# Options that change memory or speed, and that plans have no word for.
_UNREAD = (
    "parameter_memory_host_offload", "enable_lora", "enable_rampup_batch_size",
)  # fmt: skip
MODELS = {name: name for name in _SAME} | {
    "deepseek-v2-lite": "deepseek2-16b", "deepseek-v2": "deepseek2-236b",
    "deepseek-v3": "deepseek3-671b", "llama4-scout": "llama4-17b-16e",
    "llama4-maverick": "llama4-17b-128e",
}  # fmt: skip


def write(run: TrainingRun) -> Written:
    """The file of a plan."""
    layout, mesh, job = run.layout, run.layout.mesh, run.job
    notes = unsaid(run, names_mtp=True)
    check_runs(run, "maxtext")
    settings: Settings = {"base_config": "base.yml"}
    model = MODELS.get(run.plan.model.name)
    if model:
        settings["model_name"] = model
    else:
        notes.append(f"model_name: MaxText has no name for {run.plan.model.name}.")
    is_gpu = isinstance(run.system.topology, Switched)
    settings["hardware"] = "gpu" if is_gpu else "tpu"
    remaining = run.nodes.domains if is_gpu else run.nodes.slices  # to JAX, domains are slices
    sizes = device_sizes(run, "maxtext")
    for role in _OUTSIDE_IN:
        over_slices = math.gcd(mesh.sizes[role], remaining)
        remaining //= over_slices
        settings[f"dcn_{_AXES[role]}_parallelism"] = over_slices
        settings[f"ici_{_AXES[role]}_parallelism"] = sizes[role] // over_slices
    accumulated = 1 if layout.is_pipelined else layout.n_microbatches
    per_device = job.batch / (math.prod(sizes.values()) * accumulated)
    settings |= {
        "per_device_batch_size": int(per_device) if per_device.is_integer() else per_device,
        "gradient_accumulation_steps": accumulated,
        "max_target_length": job.seq,
        "remat_policy": maxtext_remat.WORDS.get(layout.policy, "full"),
        "dtype": _DTYPES.get(job.compute, "bfloat16"),
        "weight_dtype": _DTYPES.get(job.master or job.weights, "float32"),
    }
    if layout.policy not in maxtext_remat.WORDS or layout.policy in ("norms", "none"):
        notes.append(f"remat {layout.policy}: the nearest policy of MaxText is written.")
    if layout.is_pipelined:
        settings |= _pipeline(run)
    if mesh.context > 1:
        settings |= _context(run, is_gpu=is_gpu)
    if job.mtp_layers:
        settings["mtp_num_layers"] = job.mtp_layers
    if job.compute == "fp8":
        settings["quantization"] = "fp8"
    if layout.zero in (1, 2):
        settings["shard_optimizer_over_data"] = True
    settings["opt_type"] = _OPTIMIZERS.get(job.optimizer, "adamw")
    if (n_devices := math.prod(sizes.values())) > mesh.n_chips:
        per_chip = n_devices // mesh.n_chips
        notes.append(f"{mesh.n_chips:,} chips are {n_devices:,} devices of JAX, {per_chip} each.")
    if job.precision == "fp32-master":
        notes.append("training state fp32-master: MaxText keeps fp32 weights and no bf16 copy.")
    notes.append("run_name, base_output_directory, steps, the dataset and its tokenizer.")
    return Written(
        settings=settings,
        notes=notes,
        command="python -m maxtext.trainers.pre_train.train FILE",
    )


def _context(run: TrainingRun, *, is_gpu: bool) -> Settings:
    """How tokens are shared out, and on TPUs the one kernel that has ring and Ulysses."""
    kind = run.layout.context_kind
    settings: Settings = {"context_parallel_strategy": _CONTEXT[kind]}
    if is_gpu:  # other kinds of attention have no tokens of other ranks
        settings |= {"attention": "cudnn_flash_te", "packing": False}
    elif kind != "gather":
        settings |= {"attention": "flash", "use_tokamax_splash": True}
        if kind == "ulysses":
            settings["context_parallel_load_balance"] = False  # each rank sees whole sequences
        elif run.latent:
            settings["packing"] = False
    return settings


def _pipeline(run: TrainingRun) -> Settings:
    layout = run.layout
    chunks = layout.mesh.pipe * layout.virtual
    return {
        "num_layers_per_pipeline_stage": max(1, run.plan.model.n_layers // chunks),
        "num_pipeline_repeats": layout.virtual,
        "num_pipeline_microbatches": layout.n_microbatches,
    }


def read(settings: Settings) -> TrainingLaunch:
    """The layout of a file."""
    sizes, fill = _sizes(settings)
    sizes, n_slices, slice_role = _over_slices(settings, sizes)
    n_chips = None if fill else math.prod(sizes.values())
    pipe = sizes.get("pipe", 1)
    number = functools.partial(exported.number, settings, framework="maxtext")
    repeats = number("num_pipeline_repeats", 1)
    interleaved = pipe > 1 and isinstance(repeats, int) and repeats > 1
    accumulated = number("gradient_accumulation_steps", 1)
    microbatches = number("num_pipeline_microbatches", -1) if pipe > 1 else accumulated
    per_chip = number("per_device_batch_size", 12.0) * accumulated
    if per_chip <= 0:
        raise BadFile(
            f"maxtext: per_device_batch_size {settings.get('per_device_batch_size', 12.0)} x "
            f"gradient_accumulation_steps {accumulated} must be positive; fractions such as 0.25 "
            "are sequences shared by several devices."
        )
    optimizer = settings.get("opt_type", "adamw")
    return TrainingLaunch(
        sizes=sizes,
        fill=fill,
        n_chips=n_chips,
        n_slices=n_slices,
        slice_role=slice_role,
        counts_devices=True,
        batch=round(per_chip * n_chips) if n_chips else None,
        batch_per_chip=per_chip,
        seq=number("max_target_length", 2048),
        loss_chunks=number("num_vocab_tiling", 1),
        mtp_layers=number("mtp_num_layers", 0),
        n_microbatches=microbatches if microbatches > 0 else None,
        zero=_zero(settings, sizes, fill),
        schedule="interleaved" if interleaved else "gpipe",
        virtual=repeats if interleaved else None,
        compute="fp8" if "fp8" in str(settings.get("quantization")) else "bf16",
        precision="bf16" if settings.get("weight_dtype") == "bfloat16" else "fp32",
        dtypes={"gradients": "bf16"} if settings.get("grad_dtype") == "bfloat16" else {},
        notes=tuple(_notes(settings)),
        optimizer=_AS_PLANNED.get(optimizer, optimizer),
        **_words(settings),
    )


def _sizes(settings: Settings) -> tuple[dict[str, int], str | None]:
    """The sizes that a file gives, and the role that it leaves to the number of chips."""
    sizes = {role: _axis(settings, axis) for role, axis in _AXES.items()}
    open_roles = [role for role, size in sizes.items() if size is None]
    if len(open_roles) > 1:
        raise BadFile(f"maxtext: {' and '.join(open_roles)} are both -1. Give all sizes but one.")
    known = {role: size for role, size in sizes.items() if size is not None}
    return known, open_roles[0] if open_roles else None


def _over_slices(
    settings: Settings, sizes: dict[str, int]
) -> tuple[dict[str, int], int, str | None]:
    """The sizes on all slices, the slices that they count, and the role of any that are left open.

    Raises:
        BadFile: it names another number of slices, or leaves two axes open.
    """
    of_slices = {role: _network_size(settings, "dcn", axis) for role, axis in _AXES.items()}
    open_roles = [role for role, size in of_slices.items() if size == -1]
    if len(open_roles) > 1:
        names = " and ".join(f"dcn_{_AXES[role]}_parallelism" for role in open_roles)
        raise BadFile(f"maxtext: {names} are both -1. Give all but one.")
    n_slices = math.prod(size for size in of_slices.values() if size > 0)
    named = _named_slices(settings)
    if named and (named % n_slices or (not open_roles and named != n_slices)):
        raise BadFile(
            f"maxtext: the file is for {named} slices, and its dcn_* sizes are {n_slices} slices. "
            f"Write sizes whose product is {named}."
        )
    if not open_roles:
        return sizes, n_slices, None
    role = open_roles[0]
    if not named:
        return sizes, n_slices, role
    return {**sizes, role: sizes.get(role, 1) * (named // n_slices)}, named, None


def _named_slices(settings: Settings) -> int | None:
    """The number of slices that the file says, beside the sizes over them."""
    for key in _SLICES:
        number = settings.get(key)
        if isinstance(number, int) and number > 0:
            return number
    return None


def _zero(settings: Settings, sizes: dict[str, int], fill: str | None) -> int | None:
    if fill == "fsdp" or sizes.get("fsdp", 1) > 1:
        return 3
    if not settings.get("shard_optimizer_over_data"):
        return None
    steps = settings.get("gradient_accumulation_steps", 1)  # their sum is that of whole gradients
    return 1 if steps != 1 or sizes.get("pipe", 1) > 1 else 2


def _words(settings: Settings) -> dict[str, Any]:
    """Fields of a launch that MaxText has other words for."""
    context = {word: kind for kind, word in _CONTEXT.items()}
    models = {word: name for name, word in MODELS.items()}
    ignored = [
        key
        for key, value in settings.items()
        if key.endswith("_parallelism") and not _is_axis(key) and value != 1
    ]
    ignored += [key for key in _UNREAD if settings.get(key) not in (None, False, 0)]
    if "int8" in (quantization := str(settings.get("quantization"))):
        ignored.append(f"quantization {quantization}")
    return {
        **maxtext_remat.read(settings),
        "context_kind": context.get(str(settings.get("context_parallel_strategy", "all_gather"))),
        "model": models.get(str(settings.get("model_name"))),
        "ignored": tuple(ignored),
        "n_layers": settings.get("base_num_decoder_layers"),
    }


def _notes(settings: Settings) -> list[str]:
    """What the file sets and the plan has otherwise."""
    notes = []
    if unknown := unknown_options(settings, "maxtext"):
        notes.append(f"MaxText has no option {', '.join(unknown)}, and stops at one; passed over.")
    weights = settings.get("weight_dtype", "float32")
    first = settings.get("mu_dtype") or weights
    if first != weights:
        notes.append(
            f"mu_dtype {first} is of the first moment only; both are planned in {weights}."
        )
    optimizer = settings.get("opt_type")
    if optimizer in _AS_PLANNED:
        notes.append(
            f"opt_type {optimizer} is planned as {_AS_PLANNED[optimizer]}, which has the same "
            "two moments."
        )
    return notes


def _axis(settings: Settings, axis: str) -> int | None:
    """The size of an axis over slices and within one; None if that within one is open (-1)."""
    within = _network_size(settings, "ici", axis)
    if axis == "tensor":  # with sequences, which plans have, or without
        within *= max(1, _network_size(settings, "ici", _SEQUENCES))
    return None if within == -1 else within * max(1, _network_size(settings, "dcn", axis))


def _network_size(settings: Settings, network: str, axis: str) -> int:
    """The size of an axis over one network; -1 if it is left open."""
    key = f"{network}_{axis}_parallelism"
    value = settings.get(key, -1 if key in _OPEN else 1)
    if isinstance(value, str):
        raise BadFile(exported.no_number("maxtext", key, value))
    if not isinstance(value, int) or isinstance(value, bool) or value < -1 or value == 0:
        raise BadFile(f"maxtext: {key} is {value!r}; it must be a number from 1, or -1.")
    return value


def _is_axis(key: str) -> bool:
    return key[4:].removesuffix("_parallelism") in (*_AXES.values(), _SEQUENCES)


def knows(settings: Settings) -> int:
    """How many keys are MaxText's."""
    return sum(key.endswith("_parallelism") for key in settings) + (
        2 * ("per_device_batch_size" in settings)
    )


FRAMEWORK = Framework(
    name="maxtext",
    title="MaxText",
    work="train",
    suffix=".yml",
    as_of="main of 2026-08-22",
    write=write,
    read=read,
    knows=knows,
    tpus=True,
)
