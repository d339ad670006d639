"""The programs of a plan: what check compiles, and what the trainer and the engine run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from shardwise.errors import BadInput, raise_all
from shardwise.models import Layer, ModelConfig, Moe, stack
from shardwise.plan.schema.json_io import decode
from shardwise.plan.schema.training import Plan
from shardwise.plan.training.rebuild import rebuild
from shardwise.runtime.blocks.elementwise import ACTIVATIONS
from shardwise.runtime.blocks.positions import SCALINGS
from shardwise.runtime.layout.chip_devices import device_layout
from shardwise.runtime.layout.context_order import is_local
from shardwise.runtime.layout.mesh import arrange, role_mesh
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.program import Program
from shardwise.runtime.training import host_offload
from shardwise.runtime.training.partitioned import PartitionedStep, not_partitioned
from shardwise.runtime.training.step import TrainStep, Update
from shardwise.runtime.weights.descriptions import describe, each
from shardwise.search.training.legal import chunk_problems
from shardwise.search.training.problem import Case
from shardwise.strategy.layout import Layout, rules_of
from shardwise.strategy.schedules import find

AS_PLANNED = 1.0  # room of experts that are used alike, which is what a plan counts


def train_step(devices: np.ndarray[Any, Any], plan: str, collectives: str = "plan") -> Program:
    """The training step of a plan.

    Args:
        devices: of the machine, in its own shape, the last dim the devices of a chip on a torus.
        plan: the plan as JSON.
        collectives: who chooses them, of `program.COLLECTIVES`.
    """
    found = decode(plan)
    if not isinstance(found, Plan):
        raise TypeError("a serving plan has no training step")
    case = rebuild(found)
    step = step_of(case, devices, capacity=AS_PLANNED, collectives=collectives)
    return Program(
        name="train step",
        fn=step.function(),
        args=step.shapes(),
        mesh=step.table.mesh.jax_mesh,
        donate=(0,),
    )


def step_of(
    case: Case,
    devices: np.ndarray[Any, Any],
    *,
    capacity: float | None = None,
    update: Update | None = None,
    collectives: str = "plan",
) -> TrainStep:
    """The step of a layout on devices, each where the placement has it.

    Args:
        case: the inputs of a plan.
        devices: of the machine, in its own shape.
        capacity: room of an expert, see `TrainStep`.
        update: makes its optimizer; None for the one of the plan's word.
        collectives: who chooses them, of `program.COLLECTIVES`.

    Raises:
        BadInput: what a plan may say and this runtime does not do yet; all of it.
    """
    dealt = device_layout(case.layout, case.model, case.system)
    layout = dealt.layout
    by_compiler = collectives == "compiler"
    refused = not_partitioned(case.model, layout, case.job) if by_compiler else []
    if layout.offload and not host_offload.has_room(devices):
        kind = devices.flat[0].device_kind
        refused.append(
            f"offload {', '.join(layout.offload)}: programs of {kind} reach no host memory "
            f"({host_offload.KIND} of JAX). Plan without --offload."
        )
    raise_all(BadInput, [*not_run(replace(case, layout=layout)), *refused])
    if case.system.chip.ici is None:
        devices = devices.reshape(*devices.shape[:2], 1)
    arranged = arrange(case.placement, case.layout.sizes, devices, dealt.role)
    cut = parts(case.model, layout) | rings(case, layout)
    on = role_mesh(layout.sizes, arranged, factored(layout), cut)
    table = Table(rules=rules_of(layout), mesh=on)
    step = (PartitionedStep if by_compiler else TrainStep)(
        config=case.model,
        job=case.job,
        layout=layout,
        table=table,
        capacity=capacity,
        update=update,
    )
    raise_all(BadInput, _filled(step))
    return step


def _filled(step: TrainStep) -> list[str]:
    """Adafactor takes means over arrays, in which what fills them up would count."""
    if step.job.optimizer != "adafactor":
        return []
    pairs: list[tuple[Any, Any]] = []
    each(lambda info, plain: pairs.append((info, plain)), step.infos, describe(step.config))
    filled = [(info, plain) for info, plain in pairs if info.shape != plain.shape]
    return [
        f"adafactor takes means over whole arrays, and this layout fills {info.weight.name} up: "
        f"{list(plain.shape)} to {list(info.shape)}. Plan with --optimizer adamw, or with chips "
        "that divide the vocabulary and layers."
        for info, plain in filled[:1]
    ]


def not_run(case: Case) -> list[str]:
    """What this plan asks for that the runtime does not do."""
    layout, sizes = case.layout, case.layout.sizes
    found = _unknown_layers(case.model) + chunk_problems(layout, case.job.seq)
    found += _no_rows(case.model, case.job.seq)
    segments = len(stack(case.model))
    if sizes["pipe"] > 1 and segments > 1:
        found.append(
            f"{case.model.name} has {segments} runs of different layers, which stages cannot share "
            "in equal chunks: plan with --max pipe=1."
        )
    if layout.expert_tensor not in (None, 1, sizes["tensor"]):
        found.append(
            f"expert_tensor {layout.expert_tensor} is planned for, but not run: 1 (whole experts) "
            "or as many as tensor."
        )
    if layout.is_pipelined and find(layout.schedule).weight_copies > 1:
        found.append(
            f"schedule {layout.schedule} is planned for, but not run: --fix schedule=zb-v runs."
        )
    if case.job.sums_in_int8 and layout.zero == 2 and layout.n_microbatches > 1:
        found.append(
            f"reduce int8 under zero 2 would round gradients {layout.n_microbatches} times a step, "
            "once a microbatch: --fix zero=1 rounds them once."
        )
    elif case.job.reduce_bytes < 2:
        found.append(f"reduce {case.job.reduce} is planned for, but not run: int8, or 16 bits.")
    found += _not_outside(layout)
    if layout.remat_layers is not None:
        found.append(f"remat in {layout.remat_layers} layers only is planned for, but not run.")
    if layout.context_kind == "ring" and sizes["context"] > 1:
        found += _ring(case.model, case.job.seq, sizes["context"])
    if layout.context_kind != "gather" and sizes["context"] > 1:
        found += _beside_scores(case.model, layout.context_kind)
    return found


def _no_rows(model: ModelConfig, seq: int) -> list[str]:
    """Sequences beyond learned positions: a lookup would take the last row for all of them."""
    rows = model.n_positions
    if not rows or seq <= rows:
        return []
    return [
        f"{seq:,} tokens a sequence: {model.name} has {rows:,} learned positions. Plan with "
        f"--batch Nx{rows}, or the model with n_positions={seq}."
    ]


def _not_outside(layout: Layout) -> list[str]:
    """What a plan puts into host memory and the runtime does not."""
    held = [word for word in layout.offload if word in ("weights", "gradients")]
    found = [f"offload {word} is planned for, but not run." for word in held]
    if layout.offload_layers is not None:
        found.append(
            f"offload of {layout.offload_layers} layers only is planned for, but not run: what "
            "waits in host memory is of all layers."
        )
    if layout.is_pipelined and {*layout.offload} - {*held, "optimizer"}:
        found.append(
            "offload of activations beside a pipeline is planned for, but not run: its stages keep "
            "them on the chip. Plan with --max pipe=1, or with --offload optimizer."
        )
    return found


def _unknown_layers(model: ModelConfig) -> list[str]:
    """Blocks, activations and scaled positions that are planned for, but not run."""
    layers = [group.layer for group in model.groups]
    ffns = [layer.ffn for layer in layers]
    found = []
    for what, has in (
        ("Mamba blocks", bool(model.mambas)),
        ("experts or latent attention beside another block", any(map(_beside, layers))),
        ("experts of a latent", any(isinstance(f, Moe) and f.d_latent for f in ffns)),
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


def _beside(layer: Layer) -> bool:
    latent = layer.attention and layer.attention.mla
    return layer.parallel and bool(latent or isinstance(layer.ffn, Moe))


def factored(layout: Layout) -> tuple[str, ...]:
    """Roles over which copies share an update (ZeRO 1 and 2), whose sizes may divide no dim."""
    return ("data", "context", "expert") if layout.zero in (1, 2) else ()


def parts(model: ModelConfig, layout: Layout) -> dict[str, tuple[int, ...]]:
    """`tensor` as several axes where its chips are more than KV heads: along the first axes lie
    different heads, along the last their copies.

    Raises:
        BadInput: layers whose numbers of KV heads do not divide each other.
    """
    tensor = layout.mesh.tensor
    every = {a.n_kv_heads for a, _ in model.attentions if not a.mla}
    cuts: list[int] = []
    for n_heads in sorted({n for n in every if n < tensor} | {tensor}):
        size, rest = divmod(n_heads, math.prod(cuts))
        if rest:
            raise BadInput(f"n_kv_heads {', '.join(map(str, sorted(every)))} over tensor {tensor}.")
        cuts += [size] if size > 1 else []
    return {"tensor": tuple(cuts)} if len(cuts) > 1 else {}


def rings(case: Case, layout: Layout) -> dict[str, tuple[int, ...]]:
    """`fsdp` as an axis for each ring of a torus where it is on all chips of a slice: `scatter`
    goes along them one after the other."""
    span, n = dict(case.placement.spans).get("fsdp"), layout.sizes["fsdp"]
    sizes = [ring.size for ring in span.rings if ring.size > 1] if span else []
    chips = math.prod(sizes)
    if len(sizes) < 2 or chips * case.system.n_slices != case.system.n_chips:
        return {}
    return {"fsdp": (*reversed(sizes), *([n // chips] if n > chips else []))}


def _beside_scores(model: ModelConfig, kind: str) -> list[str]:
    """What is done to scores that only the way `gather` does."""
    told = {
        "ALiBi": any(a.alibi for a, _ in model.attentions),
        "sinks": any(a.sinks for a, _ in model.attentions),
        "a cap of scores": kind == "ring" and any(a.softcap for a, _ in model.attentions),
    }
    return [
        f"context_kind {kind} with {what}, which {model.name} has, is planned for, but not run: "
        "plan with --fix context_kind=gather."
        for what, has in told.items()
        if has
    ]


def _ring(model: ModelConfig, seq: int, n: int) -> list[str]:
    """What a ring of chips does not attend."""
    found = []
    for a, _ in model.attentions:
        if a.causal and is_local(a, seq):
            found.append(
                f"context_kind ring passes on the keys of whole sequences; {model.name} has layers "
                f"with a window of {a.window:,}: plan with --fix context_kind=gather."
            )
    if seq % (2 * n) and any(a.causal for a, _ in model.attentions):
        found.append(
            f"context_kind ring cuts sequences into {2 * n} chunks, which do not divide "
            f"{seq:,} tokens: plan with --fix context_kind=gather."
        )
    return list(dict.fromkeys(found))
