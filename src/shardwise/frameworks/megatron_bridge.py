"""Megatron Bridge: a YAML file of the fields of its `ConfigContainer` that a plan decides.

It overrides a recipe of the model: `ConfigContainer` has the sections `model` (Megatron Core's
configuration), `train`, `ddp`, `comm_overlap`, `dataset`, `checkpoint` and `mixed_precision` (a
name).
https://github.com/NVIDIA-NeMo/Megatron-Bridge
"""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.frameworks import (
    megatron_layout,
    megatron_overlap,
    megatron_recompute,
    megatron_stages,
)
from shardwise.frameworks.exported import (
    Framework,
    Settings,
    TrainingRun,
    Written,
    flat,
    nested,
    setting,
)
from shardwise.frameworks.launch import TrainingLaunch
from shardwise.frameworks.watched import as_watched

# Field of Megatron Core -> section; all others are fields of the model.
_SECTIONS = {
    "micro_batch_size": "train",
    "global_batch_size": "train",
    "use_distributed_optimizer": "ddp",
    "overlap_grad_reduce": "ddp",
    "overlap_param_gather": "ddp",
    "use_megatron_fsdp": "ddp",
    "data_parallel_sharding_strategy": "ddp",
    "num_distributed_optimizer_instances": "ddp",
    megatron_overlap.EXPERTS: "comm_overlap",  # which all recipes of models with experts have
}
# Sizes and order of the model's layers that a file may override.
_MODEL_SIZES = (
    "hidden_size", "ffn_hidden_size", "moe_ffn_hidden_size", "num_attention_heads",
    "num_query_groups", "moe_router_topk", "moe_shared_expert_intermediate_size",
    "moe_layer_freq",
)  # fmt: skip
_MIXED_PRECISION = {"bf16": "bf16_mixed", "fp8": "bf16_with_fp8_delayed_scaling_mixed"}


def write(run: TrainingRun) -> Written:
    """The file of a plan."""
    values, notes = megatron_layout.write(run, "megatron-bridge", over_recipe=True)
    paths = {f"{_SECTIONS.get(key, 'model')}.{key}": value for key, value in values.items()}
    paths["dataset.sequence_length"] = run.job.seq
    paths["mixed_precision"] = _MIXED_PRECISION.get(run.job.compute, "bf16_mixed")
    if values.get("use_megatron_fsdp"):
        paths["checkpoint.ckpt_format"] = "fsdp_dtensor"  # the only format that it takes
    notes.append(
        f"the recipe of {run.plan.model.name} that this file overrides, and "
        f"{run.plan.hardware.n_chips:,} GPUs: torchrun --nnodes {run.nodes.count} "
        f"--nproc-per-node {run.nodes.chips}."
    )
    if run.job.precision != "fp32-master":
        notes.append(f"training state {run.job.precision}: Megatron has fp32-master.")
    settings = nested(paths)
    if values.get(megatron_overlap.EXPERTS) and run.layout.mesh.pipe > 1:
        # Megatron Bridge asks for it before Megatron Core finds it in the written-out layout.
        settings["model"]["virtual_pipeline_model_parallel_size"] = run.layout.virtual
    # Recipes of large models have chunks of layers, which would stay beside another `pipe`.
    settings["model"].setdefault("virtual_pipeline_model_parallel_size", None)
    settings["model"].setdefault(megatron_stages.LAYOUT, None)
    settings["model"].setdefault(megatron_stages.MTP, None)  # of recipes that have some
    for field in megatron_recompute.FIELDS:  # most recipes set them; None recomputes nothing
        settings["model"].setdefault(field, None)
    return Written(settings=settings, notes=notes)


def read(settings: Settings) -> TrainingLaunch:
    """The layout of a file."""
    values = as_watched(
        settings, {path.rpartition(".")[2]: value for path, value in flat(settings).items()}
    )
    values.setdefault("seq_length", values.get("sequence_length"))
    precision = str(setting(settings, "mixed_precision", ""))
    values.setdefault("use_distributed_optimizer", True)  # so in all recipes
    return megatron_layout.read(
        values,
        "megatron-bridge",
        None,
        [*_recipe_notes(values), *_expert_tensor(values)],
        compute="fp8" if "fp8" in precision else "bf16",
        precision="fp32-master",
        n_layers=values.get("num_layers"),
        n_experts=values.get("num_moe_experts"),
    )


def _expert_tensor(values: Settings) -> Iterator[str]:
    """Fill in the tensor size of experts, and say so where it matters.

    Without a value Megatron Core has that of dense layers; recipes of models with experts set 1.
    """
    sizes = [values.get(f"{kind}_model_parallel_size") for kind in ("tensor", "expert")]
    if values.get("expert_tensor_parallel_size") is not None or None in sizes or 1 in sizes:
        return
    values["expert_tensor_parallel_size"] = 1
    yield (
        "expert_tensor_parallel_size is not in the file; 1 is planned, as the recipes of models "
        "with experts set it. Without a recipe it is tensor_model_parallel_size."
    )


def _recipe_notes(values: Settings) -> Iterator[str]:
    """Overrides of the recipe's model that are not read."""
    overrides = [key for key in _MODEL_SIZES if values.get(key) is not None]
    if overrides:
        yield (
            f"{', '.join(overrides)} of the file {'are' if len(overrides) > 1 else 'is'} not read: "
            "sizes are those of MODEL, which may have its own, as MODEL,d_model=4096."
        )


def knows(settings: Settings) -> int:
    """How many of its keys the file has."""
    if "trainer" in settings:
        return 0
    sections = ("model", "train", "ddp", "dataset", "mixed_precision")
    parallel = setting(settings, "model.tensor_model_parallel_size") is not None
    return (sum(section in settings for section in sections) + 1) * parallel


FRAMEWORK = Framework(
    name="megatron-bridge",
    title="Megatron Bridge",
    work="train",
    suffix=".yaml",
    as_of="0.3.1, 2026-11",
    write=write,
    read=read,
    knows=knows,
)
