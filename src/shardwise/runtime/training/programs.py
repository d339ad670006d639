"""Build the training step of a plan, for `check` to compile and for the trainer to run."""

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
from shardwise.runtime.training.partitioned import PartitionedStep, unsupported_partitioned
from shardwise.runtime.training.step import MakeOptimizer, TrainStep
from shardwise.runtime.weights.descriptions import describe, map_infos
from shardwise.search.training.legal import chunk_problems
from shardwise.search.training.problem import Case
from shardwise.strategy.layout import Layout, rules_of

# Capacity factor of experts in a plan: no expert gets more tokens than under balanced routing.
PLANNED_CAPACITY = 1.0
NOT_YET = "the planner supports it, the runtime does not yet"


def train_step(devices: np.ndarray[Any, Any], plan: str, collectives: str = "plan") -> Program:
    """Build the training step of a plan, as a program for the compiler.

    Args:
        devices: all devices of the machine, with the dims that `mesh.arrange` takes.
        collectives: who chooses the collectives, one of `program.COLLECTIVES`.
    """
    decoded = decode(plan)
    if not isinstance(decoded, Plan):
        raise TypeError("a serving plan has no training step")
    case = rebuild(decoded)
    step = step_of(case, devices, capacity=PLANNED_CAPACITY, collectives=collectives)
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
    make_optimizer: MakeOptimizer | None = None,
    collectives: str = "plan",
) -> TrainStep:
    """Build the training step of a layout, with the devices where the placement puts its chips.

    Args:
        devices: all devices of the machine, with the dims that `mesh.arrange` takes.
        capacity: capacity factor of experts, see `TrainStep`.
        make_optimizer: function that makes the optimizer; None for the plan's optimizer.
        collectives: who chooses the collectives, one of `program.COLLECTIVES`.

    Raises:
        BadInput: the runtime does not support the plan; lists all reasons.
    """
    on_devices = device_layout(case.layout, case.model, case.system)
    layout = on_devices.layout
    problems = unsupported(replace(case, layout=layout))
    step_class = TrainStep
    if collectives == "compiler":
        step_class = PartitionedStep
        problems += unsupported_partitioned(case.model, layout, case.job)
    if layout.offload and not host_offload.is_available(devices):
        kind = devices.flat[0].device_kind
        problems.append(
            f"offload {', '.join(layout.offload)}: programs of {kind} have no access to host "
            f"memory ({host_offload.KIND} in JAX). Plan without --offload."
        )
    raise_all(BadInput, problems)
    if case.system.chip.ici is None:
        devices = devices.reshape(*devices.shape[:2], 1)
    arranged = arrange(case.placement, case.layout.sizes, devices, on_devices.role)
    axis_sizes = tensor_axes(case.model, layout) | fsdp_axes(case, layout)
    mesh = role_mesh(layout.sizes, arranged, factored_roles(layout), axis_sizes)
    table = Table(rules=rules_of(layout), mesh=mesh)
    step = step_class(
        config=case.model,
        job=case.job,
        layout=layout,
        table=table,
        capacity=capacity,
        make_optimizer=make_optimizer,
    )
    raise_all(BadInput, _padded_for_adafactor(step))
    return step


def _padded_for_adafactor(step: TrainStep) -> list[str]:
    """List a padded array under Adafactor, whose means would include the padding."""
    if step.job.optimizer != "adafactor":
        return []
    pairs: list[tuple[Any, Any]] = []
    map_infos(lambda info, plain: pairs.append((info, plain)), step.infos, describe(step.config))
    for info, plain in pairs:
        if info.shape != plain.shape:
            return [
                f"adafactor takes means over whole arrays, and this layout pads {info.weight.name} "
                f"from {list(plain.shape)} to {list(info.shape)}. Plan with --optimizer adamw, or "
                "with chips that divide the vocabulary and layers."
            ]
    return []


def unsupported(case: Case) -> list[str]:
    """List the parts of a plan that the runtime does not support yet."""
    layout = case.layout
    sizes = layout.sizes
    seq = case.job.seq
    problems = _unsupported_layers(case.model) + chunk_problems(layout, seq)
    problems += _too_few_positions(case.model, seq)
    n_segments = len(stack(case.model))
    if sizes["pipe"] > 1 and n_segments > 1:
        problems.append(
            f"{case.model.name} has {n_segments} runs of different layers, which stages cannot "
            "share in equal chunks: run shardwise plan with --max pipe=1."
        )
    if layout.expert_tensor not in (None, 1, sizes["tensor"]):
        problems.append(
            f"expert_tensor {layout.expert_tensor}: {NOT_YET}. It supports 1 (whole experts), or "
            "the size of tensor."
        )
    if layout.schedule == "dualpipe":
        problems.append(
            f"schedule dualpipe: {NOT_YET}. Run shardwise plan with --fix schedule=zb-v."
        )
    if case.job.sums_in_int8 and layout.zero == 2 and layout.n_microbatches > 1:
        problems.append(
            f"reduce int8 under zero 2 would round gradients {layout.n_microbatches} times per "
            "step, once per microbatch: shardwise plan --fix zero=1 rounds them once."
        )
    elif case.job.reduce_bytes < 2:
        problems.append(f"reduce {case.job.reduce}: {NOT_YET}. It supports int8 and 16 bits.")
    problems += _unsupported_offload(layout)
    if layout.remat_layers is not None:
        problems.append(f"remat in {layout.remat_layers} layers only: {NOT_YET}.")
    if layout.context_kind == "ring" and sizes["context"] > 1:
        problems += _unsupported_ring(case.model, seq, sizes["context"])
    if layout.context_kind != "gather" and sizes["context"] > 1:
        problems += _unsupported_scores(case.model, layout.context_kind)
    return problems


def _too_few_positions(model: ModelConfig, seq: int) -> list[str]:
    """List sequences longer than the learned positions: a lookup would repeat the last row."""
    n_positions = model.n_positions
    if not n_positions or seq <= n_positions:
        return []
    return [
        f"{seq:,} tokens a sequence: {model.name} has {n_positions:,} learned positions. Plan with "
        f"--batch Nx{n_positions}, or the model with n_positions={seq}."
    ]


def _unsupported_offload(layout: Layout) -> list[str]:
    """List the parts of a plan's host offload that the runtime does not support."""
    unsupported_parts = [part for part in layout.offload if part in ("weights", "gradients")]
    problems = [f"offload {part}: {NOT_YET}." for part in unsupported_parts]
    if layout.offload_layers is not None:
        problems.append(
            f"offload of {layout.offload_layers} layers only: {NOT_YET}. It offloads all layers."
        )
    if layout.schedule != "none" and {*layout.offload} - {*unsupported_parts, "optimizer"}:
        problems.append(
            f"offload of activations with a pipeline: {NOT_YET}. Its stages hold them on the chip. "
            "Run shardwise plan with --max pipe=1, or with --offload optimizer."
        )
    return problems


def _unsupported_layers(model: ModelConfig) -> list[str]:
    """List the blocks, activations and rope scalings that the runtime does not support."""
    layers = [group.layer for group in model.groups]
    blocks = [layer.ffn for layer in layers if layer.ffn]
    uses = {
        "Mamba blocks": bool(model.mambas),
        "experts or latent attention in parallel to another block": any(
            map(_has_parallel_block, layers)
        ),
        "experts of a latent": any(isinstance(block, Moe) and block.d_latent for block in blocks),
    }
    problems = [f"{model.name} has {block}: {NOT_YET}." for block, used in uses.items() if used]
    activations = {block.activation for block in blocks} - set(ACTIVATIONS)
    for name in sorted(activations):
        problems.append(
            f'activation "{name}" of {model.name}: {NOT_YET}. It supports {", ".join(ACTIVATIONS)}.'
        )
    scalings = {a.rotary.scaling.kind for a, _ in model.attentions if a.rope and a.rotary.scaling}
    for kind in sorted(scalings - set(SCALINGS)):
        problems.append(
            f'rope scaling "{kind}" of {model.name}: {NOT_YET}. It supports {", ".join(SCALINGS)}.'
        )
    return problems


def _has_parallel_block(layer: Layer) -> bool:
    """Whether experts or latent attention are in parallel to another block."""
    latent = layer.attention and layer.attention.mla
    return layer.parallel and bool(latent or isinstance(layer.ffn, Moe))


def factored_roles(layout: Layout) -> tuple[str, ...]:
    """Roles that become one mesh axis for each prime factor of their size.

    These are the roles over which ZeRO 1 and 2 partition updates: their whole size may divide no
    dim of a weight, while some of its prime factors do.
    """
    if layout.zero in (1, 2):
        return ("data", "context", "expert")
    return ()


def tensor_axes(model: ModelConfig, layout: Layout) -> dict[str, tuple[int, ...]]:
    """Sizes of the mesh axes of `tensor`, if it has more chips than there are KV heads.

    The first axes shard the KV heads; the chips along the last axis have copies of the same heads.

    Raises:
        BadInput: the numbers of KV heads of layers do not divide each other.
    """
    tensor = layout.mesh.tensor
    head_counts = {a.n_kv_heads for a, _ in model.attentions if not a.mla}
    sizes: list[int] = []
    for n_heads in sorted({n for n in head_counts if n < tensor} | {tensor}):
        size, remainder = divmod(n_heads, math.prod(sizes))
        if remainder:
            counts = ", ".join(map(str, sorted(head_counts)))
            raise BadInput(f"n_kv_heads {counts} over tensor {tensor}.")
        if size > 1:
            sizes.append(size)
    if len(sizes) < 2:
        return {}
    return {"tensor": tuple(sizes)}


def fsdp_axes(case: Case, layout: Layout) -> dict[str, tuple[int, ...]]:
    """Sizes of the mesh axes of `fsdp`, one for each ring, if `fsdp` spans all chips of a slice.

    `sharding.scatter` then reduces along one ring after the other.
    """
    span = dict(case.placement.spans).get("fsdp")
    if not span:
        return {}
    sizes = [ring.size for ring in span.rings if ring.size > 1]
    n_chips = math.prod(sizes)
    if len(sizes) < 2 or n_chips * case.system.n_slices != case.system.n_chips:
        return {}
    sizes.reverse()
    fsdp = layout.sizes["fsdp"]
    if fsdp > n_chips:
        sizes.append(fsdp // n_chips)
    return {"fsdp": tuple(sizes)}


def _unsupported_scores(model: ModelConfig, kind: str) -> list[str]:
    """List the changes of attention scores that this `context_kind` does not support."""
    attentions = [a for a, _ in model.attentions]
    uses = {
        "ALiBi": any(a.alibi for a in attentions),
        "sinks": any(a.sinks for a in attentions),
        "a cap of scores": kind == "ring" and any(a.softcap for a in attentions),
    }
    return [
        f"context_kind {kind} with {feature}, which {model.name} has: {NOT_YET}. Run "
        "shardwise plan with --fix context_kind=gather."
        for feature, used in uses.items()
        if used
    ]


def _unsupported_ring(model: ModelConfig, seq: int, n: int) -> list[str]:
    """List why ring attention does not support a model's masks or the sequence length `seq`."""
    problems: dict[str, None] = {}
    for a, _ in model.attentions:
        if a.causal and is_local(a, seq):
            window = (
                f"context_kind ring sends the keys of whole sequences; {model.name} has layers "
                f"with a window of {a.window:,}: run shardwise plan with --fix context_kind=gather."
            )
            problems[window] = None
    if seq % (2 * n) and any(a.causal for a, _ in model.attentions):
        chunks = (
            f"context_kind ring cuts sequences into {2 * n} chunks, which do not divide "
            f"{seq:,} tokens: run shardwise plan with --fix context_kind=gather."
        )
        problems[chunks] = None
    return list(problems)
