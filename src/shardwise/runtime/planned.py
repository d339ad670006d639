"""The programs of a plan: what check compiles, and what the trainer and the engine run."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardwise.errors import BadInput, raise_all
from shardwise.models import Layer, Mlp, ModelConfig
from shardwise.plan.document import decode
from shardwise.plan.rebuild import rebuild
from shardwise.plan.value import Plan
from shardwise.runtime.mesh import arrange, role_mesh
from shardwise.runtime.program import Program
from shardwise.runtime.step import TrainStep, Update
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


def step_of(case: Case, devices: np.ndarray[Any, Any], update: Update | None = None) -> TrainStep:
    """The step of a layout on devices, each where the placement has it.

    Args:
        update: makes its optimizer; None for the one of the plan's word.

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
    return TrainStep(config=case.model, job=case.job, layout=layout, table=table, update=update)


def not_run(case: Case) -> list[str]:
    """What this plan asks for that the runtime does not do."""
    layout, sizes = case.layout, case.layout.sizes
    found = [
        f"{role} {sizes[role]} is planned for, but not run: plan with --max {role}=1."
        for role in ("context", "expert", "pipe")
        if sizes[role] > 1
    ]
    if not _is_llama(case.model):
        found.append(
            f"{case.model.name} has layers that are planned for, but not run. Run are layers of "
            "attention and a gated MLP, each after an RMS norm, without biases (LLaMA, Mistral)."
        )
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
    if case.model.vocab % sizes["tensor"]:
        found.append(f"vocab {case.model.vocab:,} over tensor {sizes['tensor']} is not run.")
    return found


def _is_llama(model: ModelConfig) -> bool:
    """Layers in a row, each of the same blocks as Llama's, and nothing else around them."""
    around = (model.n_positions, model.final_norm_bias, model.unembedding_bias)
    beside = (model.order, model.scaled_embeddings, model.logit_softcap, model.norm.plus_one)
    plain = all(_is_plain(group.layer) for group in model.groups)
    return plain and model.norm.kind == "rms" and not any((*around, *beside))


def _is_plain(layer: Layer) -> bool:
    """Attention and a gated MLP, each after a norm, and nothing beside them."""
    a, mlp = layer.attention, layer.ffn
    if a is None or not isinstance(mlp, Mlp) or layer.norms != "pre" or layer.norm_bias:
        return False
    extras = (a.mla, a.q_bias, a.kv_bias, a.o_bias, a.qk_norm, a.sinks, mlp.bias, layer.parallel)
    beside = (a.alibi, a.softcap, a.qk_unit, a.temperature, a.rotary.interleaved)
    scaled = a.rotary.scaling.kind if a.rotary.scaling else "llama3"
    known = scaled == "llama3" and mlp.activation == "silu"
    return not any((*extras, *beside)) and a.rope and mlp.gated and known


def factored(layout: Layout) -> tuple[str, ...]:
    """Roles over which copies share an update (ZeRO 1 and 2), whose sizes may divide no dim."""
    return ("data", "context", "expert") if layout.zero in (1, 2) else ()
