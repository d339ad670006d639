"""What one microbatch takes on its way through all layers and both ends of the model, in seconds.

Derived from the program of the sharding algebra; what the algebra cannot see (element-wise steps,
routing of tokens, the way keys and values travel) is added here by name. A pipeline gives each
stage its share of the layers; that is the business of `step`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from shardwise.arrays import Num, minimum
from shardwise.estimate.elementwise import elementwise_widths
from shardwise.estimate.items import PricedItem
from shardwise.estimate.routing import is_routed
from shardwise.estimate.training.chip_rates import (
    ELEMENTWISE,
    Rates,
    element_bytes,
    is_attention,
    is_end,
)
from shardwise.estimate.training.extra_traffic import DISPATCH, extra_traffic, occurrences
from shardwise.estimate.training.memory.activations import layers_held
from shardwise.estimate.training.memory.framework import PLANNED
from shardwise.estimate.training.memory.local_elements import Local
from shardwise.estimate.training.memory.parameters import with_experts
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.models import ModelConfig
from shardwise.ops.program import Matmul, Step, Transfer
from shardwise.strategy.layout import Form, Layout, Layouts

BACKWARD = 2.0
# Products whose part of `strategy.layout.PARTS` has another name.
PART = {
    "scores": "attention",
    "values": "attention",
    "q_up": "mla_up",
    "k_up": "mla_up",
    "v_up": "mla_up",
    "in": "q",
    "latent_down": "up",
    "latent_up": "down",
    "states": "attention",
    "read": "attention",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrobatchTime:
    """Seconds of one microbatch. Numbers, or arrays over layouts.

    Args:
        layers: phase -> matmuls and attention of all layers.
        parts: part of a layer -> its compute in one forward pass of all layers, which remat of that
            part runs a second time.
        attention: attention in `layers`, all phases.
        embedding, unembedding: the ends of the model.
        traffic: role -> collectives inside the layers.
        end_traffic: the same at the ends of the model.
        repeated: part of a layer -> role -> the collectives of which the same holds.
        host: kept activations of all layers, out to host memory and back.
    """

    layers: Mapping[str, Num]
    parts: Mapping[str, Num]
    attention: Num
    embedding: Num
    unembedding: Num
    traffic: Mapping[str, Num] = field(default_factory=dict)
    end_traffic: Mapping[str, Num] = field(default_factory=dict)
    repeated: Mapping[str, Mapping[str, Num]] = field(default_factory=dict)
    host: Num = 0.0

    def take(self, rows: Num) -> MicrobatchTime:
        """The same of some of the layouts."""

        def some(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {name: some(item) for name, item in value.items()}
            return value[rows] if getattr(value, "ndim", 0) else value

        return MicrobatchTime(**{f.name: some(getattr(self, f.name)) for f in fields(self)})


def microbatch_time(
    priced: PricedLayout, program: Step, like: MicrobatchTime | None = None
) -> MicrobatchTime:
    """Seconds of one microbatch.

    Args:
        program: of one microbatch under the layout's table, with or without full remat.
        like: of the same program and layouts with another way of the context, whose products are
            the same.
    """
    time = like or _compute_time(priced, program)
    traffic: dict[str, Num] = {}
    end_traffic: dict[str, Num] = {}
    repeated: dict[str, dict[str, Num]] = {}
    for item in collectives(priced, program):
        role, seconds = str(item.role), item.seconds
        total = end_traffic if is_end(item.work) else traffic
        total[role] = total.get(role, 0.0) + seconds
        if item.part:
            again = repeated.setdefault(item.part, {})
            again[role] = again.get(role, 0.0) + seconds
    return replace(
        time,
        traffic=traffic,
        end_traffic=end_traffic,
        repeated=repeated,
        host=sum(item.seconds for item in offload(priced, program)),
    )


def _compute_time(priced: PricedLayout, program: Step) -> MicrobatchTime:
    """What the chip itself computes."""
    layers: dict[str, Num] = {"forward": 0.0, "backward": 0.0, "remat": 0.0}
    parts: dict[str, Num] = {}
    ends: dict[str, Num] = {"embed": 0.0, "unembed": 0.0}
    attention: Num = 0.0
    for item in compute(priced, program):
        seconds = item.seconds
        if item.work and is_end(item.work):
            end = item.work.term.module
            ends[end] = ends[end] + seconds
            continue
        layers[item.phase] = layers[item.phase] + seconds
        if item.part:
            parts[item.part] = parts.get(item.part, 0.0) + seconds
        if isinstance(item.work, Matmul) and is_attention(item.work):
            attention = attention + seconds
    return MicrobatchTime(
        layers=layers,
        parts=parts,
        attention=attention,
        embedding=ends["embed"],
        unembedding=ends["unembed"],
    )


def compute(priced: PricedLayout, program: Step) -> Iterator[PricedItem]:
    """Work of the chip for one microbatch."""
    rates, layout = priced.rates, priced.layout
    yield from rates.casts(program, priced.mesh)
    yield from rates.added_gradients(program, layout)
    for matmul in program.matmuls:
        in_forward = matmul.phase == "forward" and not is_end(matmul)
        part = part_of(matmul) if in_forward else ""
        yield rates.product(matmul, priced.config, program, layout, part)
    if rates.kernels.ideal:
        return
    n_bytes = elementwise_bytes(priced.config, layout, rates)
    yield rates.elementwise("forward", n_bytes, part=ELEMENTWISE)
    yield rates.elementwise("backward", BACKWARD * n_bytes)
    if layout.full_remat:
        yield rates.elementwise("remat", n_bytes)


def part_of(matmul: Matmul) -> str:
    """The part of a layer, in the words of remat."""
    return PART.get(matmul.term.product, matmul.term.product)


def repeated_parts(form: Form) -> tuple[str, ...]:
    """The parts of a forward pass that remat runs again, where its program does not hold them.

    The program of full remat has its own products and collectives, but not the dispatch of tokens.
    """
    parts = [*form.recomputed]
    if {"norms", "activation"} & {*form.recomputed}:
        parts.append(ELEMENTWISE)
    if form.recomputes("gate") and form.recomputes("up"):
        parts.append(DISPATCH)
    return tuple(parts)


def elementwise_bytes(config: ModelConfig, layout: Layout | Layouts, rates: Rates) -> Num:
    """Bytes that norms, sums, rotations and activations of one forward pass read and write."""
    tokens = layout.micro_batch * rates.job.seq / layout.sizes["context"]
    tensor = layout.sizes["tensor"]
    whole = 1 if layout.sequence_parallel else tensor
    total: Num = 0.0
    for group in config.groups:
        along, across = elementwise_widths(config, group.layer)
        total = total + group.count * (along * whole + across) / tensor
    return tokens * total * rates.job.activation_bytes


def collectives(priced: PricedLayout, program: Step) -> Iterator[PricedItem]:
    """Collectives for one microbatch in all layers and at both ends."""
    yield from derived_traffic(priced, program)
    yield from extra_traffic(priced)


def derived_traffic(priced: PricedLayout, program: Step) -> Iterator[PricedItem]:
    """Collectives of the sharding algebra.

    Remat of norms gathers the inputs of blocks over `tensor` again.
    """
    layout, weights = priced.layout, program.weights
    for transfer in program.transfers:
        exchanged = transfer.role == "context" and layout.context_kind == "ulysses"
        if exchanged or _once_a_step(transfer, weights, layout):
            continue
        move = transfer.move
        yield priced.collective(
            name=transfer.name,
            phase=transfer.phase,
            part="norms" if _gathers_input(transfer) else "",
            work=transfer,
            role=transfer.role,
            kind=move.kind,
            axes=move.axes,
            count=transfer.count * occurrences(transfer, priced),
            joined_bytes=_joined_bytes(transfer, weights, priced),
        )


def _gathers_input(transfer: Transfer) -> bool:
    """Whether it gathers the input of a block over `tensor`."""
    gathers = transfer.move.kind == "all_gather" and transfer.role == "tensor"
    return gathers and transfer.phase == "forward" and not is_end(transfer)


def _once_a_step(transfer: Transfer, weights: frozenset[str], form: Form) -> bool:
    """Sums of gradients happen once a step, unless ZeRO-3 scatters them at once."""
    is_gradient = transfer.move.before.gradient_of in weights
    return transfer.role == "data" or (form.zero < 3 and is_gradient)


def _joined_bytes(transfer: Transfer, weights: frozenset[str], priced: PricedLayout) -> Num:
    """V of one occurrence of a collective, in bytes; of experts those that a chip has."""
    before, job = transfer.move.before, priced.job
    is_gradient = before.gradient_of in weights
    width = job.reduce_bytes if is_gradient else element_bytes(before, weights, job)
    n_bytes = transfer.elements(priced.mesh) * width
    return n_bytes / priced.mesh["expert"] if is_routed(before) else n_bytes


def offload(priced: PricedLayout, program: Step) -> Iterator[PricedItem]:
    """Kept activations of all layers that wait in host memory, out and back over the PCIe link.

    It takes no time where no public source gives the rate of the link.
    """
    if "activations" in priced.layout.offload:
        count = 2 * priced.config.n_layers
        n_bytes = _offloaded_bytes(priced, program)
        yield PricedItem(
            name="activations.offload",
            phase="forward",
            role="host",
            kind="permute",
            what="kept activations",
            count=count,
            joined_bytes=n_bytes / count,
            n_bytes=n_bytes,
            bytes_per_s=priced.rates.chip.pcie_bytes_per_s_per_chip or math.inf,
        )


def offload_share(priced: PricedLayout) -> Num:
    """Share of a stage's layers whose activations wait in host memory."""
    layers = priced.layout.offload_layers
    return minimum(1.0, layers / priced.stage.held) if layers else 1.0


def _offloaded_bytes(priced: PricedLayout, program: Step) -> Num:
    """What all layers keep of one microbatch, out to host memory and back."""
    config, job, mesh = priced.config, priced.job, with_experts(priced.layout, priced.mesh)
    sizes = {dim: program.logits.sizes[dim] for dim in "BT"}
    local = Local(mesh, {**sizes, "tensor": mesh["tensor"]})
    whole = replace(priced.layout, offload=(), offload_layers=None)
    kept = layers_held(config, job, program, whole, local, config.n_layers, PLANNED)
    elements = sum(g.count * k.kept for g, k in zip(config.groups, kept, strict=True))
    return 2 * elements * job.activation_bytes
