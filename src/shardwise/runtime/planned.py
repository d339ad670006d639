"""The programs of a plan: what check compiles, and what the trainer and the engine run."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardwise.errors import BadInput, raise_all
from shardwise.models import ModelConfig, stack
from shardwise.plan.document import decode
from shardwise.plan.rebuild import rebuild
from shardwise.plan.value import Plan
from shardwise.runtime.elementwise import ACTIVATIONS
from shardwise.runtime.mesh import arrange, role_mesh
from shardwise.runtime.positions import SCALINGS
from shardwise.runtime.program import Program
from shardwise.runtime.step import TrainStep
from shardwise.runtime.table import Table
from shardwise.search.case import Case
from shardwise.strategy.layout import Layout, rules_of


def train_step(devices: np.ndarray[Any, Any], plan: str) -> Program:
    """The training step of a plan.

    Args:
        devices: of the machine, in its own shape.
        plan: the plan as JSON.
    """
    found = decode(plan)
    if not isinstance(found, Plan):
        raise TypeError("a serving plan has no training step")
    case = rebuild(found)
    step = step_of(case, devices)
    return Program(
        name="train step",
        fn=step.function(),
        args=step.shapes(),
        mesh=step.table.on.mesh,
        donate=(0,),
    )


def step_of(case: Case, devices: np.ndarray[Any, Any]) -> TrainStep:
    """The step of a layout on devices, each where the placement has it.

    Raises:
        BadInput: what a plan may say and this runtime does not do yet; all of it.
    """
    raise_all(BadInput, not_run(case))
    layout = case.layout
    chips = (
        devices.reshape(devices.shape[0], -1) if case.system.chip.ici is None else devices[..., 0]
    )
    arranged = arrange(case.placement, layout.sizes, chips)
    on = role_mesh(layout.sizes, arranged, factored(layout))
    table = Table(rules=rules_of(layout), on=on)
    return TrainStep(config=case.model, job=case.job, layout=layout, table=table)


def not_run(case: Case) -> list[str]:
    """What this plan asks for that the runtime does not do."""
    layout, sizes = case.layout, case.layout.sizes
    found = [
        f"{role} {sizes[role]} is planned for, but not run: plan with --max {role}=1."
        for role in ("context", "expert")
        if sizes[role] > 1
    ]
    found += _unknown_layers(case.model)
    segments = len(stack(case.model))
    if sizes["pipe"] > 1 and segments > 1:
        found.append(
            f"{case.model.name} has {segments} runs of different layers, which stages cannot share "
            "in equal chunks: plan with --max pipe=1."
        )
    if layout.schedule == "dualpipe":
        found.append("schedule dualpipe is planned for, but not run: --fix schedule=zb-v runs.")
    if layout.offload:
        found.append(f"offload {', '.join(layout.offload)} is planned for, but not run.")
    if layout.remat_layers is not None:
        found.append(f"remat in {layout.remat_layers} layers only is planned for, but not run.")
    per_chip = case.system.chip.n_devices or 1
    if per_chip > 1:
        found.append(f"{case.system.chip.name} has {per_chip} devices a chip; one is run.")
    heads = [a.n_kv_heads for a, _ in case.model.attentions if a.n_kv_heads % sizes["tensor"]]
    if heads:
        found.append(f"n_kv_heads {heads[0]} over tensor {sizes['tensor']}: copies are not run.")
    return found


def _unknown_layers(model: ModelConfig) -> list[str]:
    """Blocks, activations and scaled positions that are planned for, but not run."""
    layers = [group.layer for group in model.groups]
    found = []
    for what, has in (
        ("latent attention", any(layer.attention and layer.attention.mla for layer in layers)),
        ("experts", model.is_moe),
        ("Mamba blocks", bool(model.mambas)),
    ):
        if has:
            found.append(f"{model.name} has {what}, planned for, but not run.")
    told = {layer.ffn.activation for layer in layers if layer.ffn} - set(ACTIVATIONS)
    found += [
        f'activation "{name}" of {model.name} is not run. Run: {", ".join(ACTIVATIONS)}.'
        for name in sorted(told)
    ]
    rotary = [a.rotary.scaling for a, _ in model.attentions if a.rope and a.rotary.scaling]
    found += [
        f'rope scaling "{kind}" of {model.name} is not run. Run: {", ".join(SCALINGS)}.'
        for kind in sorted({scaling.kind for scaling in rotary} - set(SCALINGS))
    ]
    return found


def factored(layout: Layout) -> tuple[str, ...]:
    """Roles over which copies share an update (ZeRO 1 and 2), whose sizes may divide no dim."""
    return ("data", "context", "expert") if layout.zero in (1, 2) else ()
