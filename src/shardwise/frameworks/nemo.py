"""NeMo 2: `nemo llm pretrain` with the overrides of a recipe that a plan decides.

Overrides are paths into the recipe: `trainer.strategy` is a `MegatronStrategy`, `data` the data
module, `trainer.plugins` the precision, `model.config` Megatron Core's configuration.
https://docs.nvidia.com/nemo-framework/user-guide/25.04/nemo-2.0
"""

from __future__ import annotations

from typing import Any

from shardwise.frameworks import megatron_layout, megatron_recompute, megatron_stages
from shardwise.frameworks.exported import Framework, Settings, TrainingRun, Written
from shardwise.frameworks.launch import TrainingLaunch
from shardwise.frameworks.shell_script import PROGRAM
from shardwise.frameworks.watched import as_watched

_STRATEGY = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
    "virtual_pipeline_model_parallel_size", "sequence_parallel", "expert_model_parallel_size",
    "expert_tensor_parallel_size", "num_layers_in_last_pipeline_stage", *megatron_stages.ENDS,
    megatron_stages.LAYOUT,
)  # fmt: skip
_DATA = ("micro_batch_size", "global_batch_size", "seq_length")
_DDP = (
    "use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather",
    "use_megatron_fsdp", "data_parallel_sharding_strategy", "num_distributed_optimizer_instances",
)  # fmt: skip
_RECIPE_STAGES = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
_PLACES = {
    **dict.fromkeys(_STRATEGY, "trainer.strategy"),
    **dict.fromkeys(_DATA, "data"),
    **dict.fromkeys(_DDP, "trainer.strategy.ddp"),
}
# Presets whose recipes have other names in nemo.collections.llm.recipes.
_RECIPES = {
    "llama3-8b": "llama3_8b", "llama3-70b": "llama3_70b", "llama3.1-8b": "llama31_8b",
    "llama3.1-70b": "llama31_70b", "llama3.1-405b": "llama31_405b", "mixtral-8x7b": "mixtral_8x7b",
    "mixtral-8x22b": "mixtral_8x22b", "deepseek-v3": "deepseek_v3",
}  # fmt: skip


def write(run: TrainingRun) -> Written:
    """The command of a plan."""
    values, notes = megatron_layout.write(run, "nemo", over_recipe=True)
    recipe = _RECIPES.get(run.plan.model.name)
    if recipe is None:
        recipe = "RECIPE"
        notes.append(f"the recipe of {run.plan.model.name}: put its name for RECIPE.")
    settings: Settings = {
        PROGRAM: f"nemo llm pretrain --factory {recipe}",
        "trainer.num_nodes": run.nodes.count,
        "trainer.devices": run.nodes.chips,
    }
    for key, value in values.items():
        settings[f"{_PLACES.get(key, 'model.config')}.{key}"] = _written(value)
    for key in _RECIPE_STAGES:  # which a recipe may have for its own pipeline
        if key not in values:
            settings[f"trainer.strategy.{key}"] = "None"
    for key in megatron_recompute.FIELDS:
        settings.setdefault(f"model.config.{key}", "None")
    settings["trainer.strategy.ddp.grad_reduce_in_fp32"] = str(run.job.gradients == "fp32")
    if run.job.compute == "fp8":
        settings["trainer.plugins.fp8"] = "hybrid"
    if run.job.precision != "fp32-master":
        notes.append(f"training state {run.job.precision}: NeMo has fp32-master.")
    return Written(settings=settings, notes=notes, command="bash FILE")


def _written(value: Any) -> Any:
    if isinstance(value, list):
        return "[" + ",".join(value) + "]"
    return str(value) if isinstance(value, bool) else value


def read(settings: Settings) -> TrainingLaunch:
    """The layout of a command."""
    values = as_watched(settings, {})
    for path, value in settings.items():
        is_list = isinstance(value, str) and value[:1] == "[" and value[-1:] == "]"
        name = path.rpartition(".")[2]
        values[name] = value[1:-1].split(",") if is_list else value
    n_chips = None
    if isinstance(values.get("num_nodes"), int) and isinstance(values.get("devices"), int):
        n_chips = values["num_nodes"] * values["devices"]
    models = {recipe: name for name, recipe in _RECIPES.items()}
    values.setdefault("use_distributed_optimizer", True)  # so in all recipes
    return megatron_layout.read(
        values,
        "nemo",
        n_chips,
        compute="fp8" if settings.get("trainer.plugins.fp8") else "bf16",
        precision="fp32-master",
        model=models.get(str(settings.get("--factory"))),
    )


def knows(settings: Settings) -> int:
    """How many overrides are of NeMo's trainer."""
    return 2 * sum(path.startswith("trainer.") for path in settings)


FRAMEWORK = Framework(
    name="nemo",
    title="NeMo 2",
    work="train",
    suffix=".sh",
    as_of="2.5, 2026-11",
    write=write,
    read=read,
    knows=knows,
)
