"""Launch configurations in Python: `shardwise.export` and `shardwise.import_plan`."""

from __future__ import annotations

import os

from shardwise.errors import BadFile, BadInput
from shardwise.frameworks import registry, replan
from shardwise.frameworks.config_files import beside, text_of
from shardwise.frameworks.launch import ServingLaunch, TrainingLaunch
from shardwise.frameworks.registry import Export
from shardwise.hardware import Chip, System, parse_system
from shardwise.models import ModelConfig, load
from shardwise.plan.schema.json_io import AnyPlan


def export(plan: AnyPlan, framework: str, part: str | None = None) -> Export:
    """Write a plan as the launch configuration of a framework.

    Args:
        plan: of training or serving.
        framework: "maxtext", "torchtitan", "megatron", "megatron-bridge", "nemo", "deepspeed",
            "vllm", "sglang", "tensorrt-llm", "jobset" or "slurm".
        part: "prefill" or "decode" of a disaggregated plan.

    Returns:
        The text of the file, what it cannot say, and the command that uses it.

    Raises:
        UnknownName: no framework has this name.
        BadInput: the framework does other work, or lacks something of the plan.
    """
    return registry.export(plan, framework, part)


def import_plan(
    path: str | os.PathLike[str],
    model: ModelConfig | None = None,
    system: System | Chip | None = None,
    *,
    framework: str | None = None,
    batch: tuple[int, int] | None = None,
    context: int | None = None,
) -> AnyPlan:
    """Plan what a launch configuration runs; what it leaves open is searched.

    Args:
        path: the file.
        model, system: in the place of those that the file names.
        framework: as in `export`; None to find it by the options in the file.
        batch: sequences of a training step and their length, in the place of the file's.
        context: tokens of a sequence of serving, in the place of the file's.

    Raises:
        BadFile: the file cannot be read, or is no launch configuration.
        BadInput: the file names no model, machine or batch, and neither does the caller.
        NoPlan: the layout is not legal, or does not fit.
    """
    name = os.fspath(path)
    launch = registry.read(text_of(name), name, framework, beside(name)).launch
    name_of_model = launch.model or launch.sized_like
    config = model or (load(name_of_model) if name_of_model else None)
    machine = system or (parse_system(launch.hardware) if launch.hardware else None)
    if config is None or machine is None:
        missing = "model" if config is None else "system"
        raise BadInput(f"{name} does not name its {missing}: give {missing}=.")
    if isinstance(launch, ServingLaunch):
        return replan.serving_plan(launch, config, machine, context)
    if not isinstance(machine, System):
        raise BadInput(f"training needs a machine, and {machine.name} is a chip.")
    if not isinstance(launch, TrainingLaunch):
        raise BadFile(f"{name} says no layout.")
    return replan.training_plan(launch, config, machine, batch)
