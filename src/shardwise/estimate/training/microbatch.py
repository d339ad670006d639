"""Time of one microbatch through all layers, the embedding and the head.

Derived from the program of the sharding algebra; what the algebra does not express (element-wise
steps, routing of tokens, Ulysses) is added here by name. `step` gives each pipeline stage its share
of the layers.
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
    is_embedding_or_head,
)
from shardwise.estimate.training.extra_traffic import DISPATCH, extra_traffic, occurrences
from shardwise.estimate.training.memory.activations import layer_activations
from shardwise.estimate.training.memory.framework import DEFAULT_FRAMEWORK
from shardwise.estimate.training.memory.local_elements import LocalElements
from shardwise.estimate.training.memory.parameters import mesh_with_experts
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.models import ModelConfig
from shardwise.ops.program import Matmul, Step, Transfer
from shardwise.strategy.layout import Form, Layout, Layouts

BACKWARD_WIDTHS = 2.0  # bytes of element-wise steps in a backward pass per byte of a forward pass
# Matmuls whose part of `strategy.layout.PARTS` has another name.
PART_OF_PRODUCT = {
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
        layers: phase -> compute of all layers.
        parts: part of a layer -> its compute in one forward pass of all layers, which remat of that
            part runs a second time.
        attention: attention in `layers`, all phases.
        embedding: compute of the embedding.
        unembedding: compute of the unembedding.
        traffic: role -> collectives inside the layers.
        outer_traffic: role -> collectives of the embedding and the unembedding.
        part_traffic: part of a layer -> role -> collectives that its remat runs a second time.
        offload: transfers of all layers' saved activations to host memory and back.
    """

    layers: Mapping[str, Num]
    parts: Mapping[str, Num]
    attention: Num
    embedding: Num
    unembedding: Num
    traffic: Mapping[str, Num] = field(default_factory=dict)
    outer_traffic: Mapping[str, Num] = field(default_factory=dict)
    part_traffic: Mapping[str, Mapping[str, Num]] = field(default_factory=dict)
    offload: Num = 0.0

    def take(self, rows: Num) -> MicrobatchTime:
        """Times of the layouts at `rows` only."""

        def select(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {name: select(item) for name, item in value.items()}
            return value[rows] if getattr(value, "ndim", 0) else value

        return MicrobatchTime(**{f.name: select(getattr(self, f.name)) for f in fields(self)})


def microbatch_time(
    priced: PricedLayout, program: Step, compute_of: MicrobatchTime | None = None
) -> MicrobatchTime:
    """Time of one microbatch.

    Args:
        priced: one layout, or arrays of layouts.
        program: one microbatch under the layout's table, with or without full remat.
        compute_of: time of the same program and layouts with another `context_kind`, whose compute
            is the same.
    """
    traffic: dict[str, Num] = {}
    outer_traffic: dict[str, Num] = {}
    part_traffic: dict[str, dict[str, Num]] = {}
    for item in collectives(priced, program):
        totals = [outer_traffic if is_embedding_or_head(item.work) else traffic]
        if item.part:
            totals.append(part_traffic.setdefault(item.part, {}))
        role = str(item.role)
        seconds = item.seconds
        for seconds_by_role in totals:
            seconds_by_role[role] = seconds_by_role.get(role, 0.0) + seconds
    return replace(
        compute_of or _compute_time(priced, program),
        traffic=traffic,
        outer_traffic=outer_traffic,
        part_traffic=part_traffic,
        offload=sum(item.seconds for item in offload(priced, program)),
    )


def _compute_time(priced: PricedLayout, program: Step) -> MicrobatchTime:
    """Time of the chip's own work."""
    layers: dict[str, Num] = {"forward": 0.0, "backward": 0.0, "remat": 0.0}
    parts: dict[str, Num] = {}
    outer: dict[str, Num] = {"embed": 0.0, "unembed": 0.0}
    attention: Num = 0.0
    for item in compute(priced, program):
        seconds = item.seconds
        if item.work and is_embedding_or_head(item.work):
            module = item.work.term.module
            outer[module] = outer[module] + seconds
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
        embedding=outer["embed"],
        unembedding=outer["unembed"],
    )


def compute(priced: PricedLayout, program: Step) -> Iterator[PricedItem]:
    """Work of the chip for one microbatch."""
    rates = priced.rates
    layout = priced.layout
    yield from rates.casts(program, priced.mesh)
    yield from rates.gradient_adds(program, layout)
    for matmul in program.matmuls:
        part = ""
        if matmul.phase == "forward" and not is_embedding_or_head(matmul):
            part = PART_OF_PRODUCT.get(matmul.term.product, matmul.term.product)
        yield rates.matmul(matmul, priced.config, program, layout, part)
    if rates.fusion.ideal:
        return
    n_bytes = elementwise_bytes(priced.config, layout, rates)
    yield rates.elementwise("forward", n_bytes, part=ELEMENTWISE)
    yield rates.elementwise("backward", BACKWARD_WIDTHS * n_bytes)
    if layout.full_remat:
        yield rates.elementwise("remat", n_bytes)


def recomputed_parts(form: Form) -> tuple[str, ...]:
    """Parts of a forward pass that remat recomputes and that are not in the program itself.

    The program of full remat has its own matmuls and collectives, but not the dispatch of tokens.
    """
    parts = [*form.recomputed]
    if {"norms", "activation"} & {*form.recomputed}:
        parts.append(ELEMENTWISE)
    if form.recomputes("gate") and form.recomputes("up"):
        parts.append(DISPATCH)
    return tuple(parts)


def elementwise_bytes(config: ModelConfig, layout: Layout | Layouts, rates: Rates) -> Num:
    """Bytes that norms, sums, rotary and activations of one forward pass read and write."""
    tokens = layout.micro_batch * rates.job.seq / layout.sizes["context"]
    tensor = layout.sizes["tensor"]
    copies = 1 if layout.sequence_parallel else tensor
    width: Num = 0.0
    for group in config.groups:
        replicated, sharded = elementwise_widths(config, group.layer)
        width = width + group.count * (replicated * copies + sharded) / tensor
    return tokens * width * rates.job.activation_bytes


def collectives(priced: PricedLayout, program: Step) -> Iterator[PricedItem]:
    """Collectives of one microbatch in all layers, the embedding and the head."""
    yield from derived_traffic(priced, program)
    yield from extra_traffic(priced)


def derived_traffic(priced: PricedLayout, program: Step) -> Iterator[PricedItem]:
    """Collectives of the sharding algebra.

    Remat of norms repeats the gathers of the blocks' inputs over `tensor`.
    """
    layout = priced.layout
    for transfer in program.transfers:
        replaced = transfer.role == "context" and layout.context_kind == "ulysses"
        if replaced or _is_once_per_step(transfer, program.weights, layout):
            continue
        yield priced.collective(
            name=transfer.name,
            phase=transfer.phase,
            part="norms" if _gathers_block_input(transfer) else "",
            work=transfer,
            role=transfer.role,
            kind=transfer.move.kind,
            axes=transfer.move.axes,
            count=transfer.count * occurrences(transfer, priced),
            joined_bytes=_joined_bytes(transfer, program.weights, priced),
        )


def _gathers_block_input(transfer: Transfer) -> bool:
    """Whether a collective gathers the input of a block over `tensor`."""
    gathers = transfer.move.kind == "all_gather" and transfer.role == "tensor"
    return gathers and transfer.phase == "forward" and not is_embedding_or_head(transfer)


def _is_once_per_step(transfer: Transfer, weights: frozenset[str], form: Form) -> bool:
    """Whether a collective syncs gradients once per step: all but the scatters of ZeRO-3."""
    is_gradient = transfer.move.before.gradient_of in weights
    return transfer.role == "data" or (form.zero < 3 and is_gradient)


def _joined_bytes(transfer: Transfer, weights: frozenset[str], priced: PricedLayout) -> Num:
    """V of one occurrence of a collective, in bytes; of experts, those of one chip."""
    array = transfer.move.before
    width = element_bytes(array, weights, priced.job)
    if array.gradient_of in weights:
        width = priced.job.reduce_bytes
    n_bytes = transfer.elements(priced.mesh) * width
    return n_bytes / priced.mesh["expert"] if is_routed(array) else n_bytes


def offload(priced: PricedLayout, program: Step) -> Iterator[PricedItem]:
    """Transfers of all layers' saved activations to host memory and back, over the PCIe link.

    They take no time where no public source states the rate of the link.
    """
    if "activations" in priced.layout.offload:
        count = 2 * priced.config.n_layers
        n_bytes = _offloaded_bytes(priced, program)
        yield PricedItem(
            name="activations.offload",
            phase="forward",
            role="host",
            kind="permute",
            description="kept activations",
            count=count,
            joined_bytes=n_bytes / count,
            n_bytes=n_bytes,
            bytes_per_s=priced.rates.chip.pcie_bytes_per_s_per_chip or math.inf,
        )


def offload_share(priced: PricedLayout) -> Num:
    """Share of a stage's layers whose saved activations are offloaded."""
    if not priced.layout.offload_layers:
        return 1.0
    return minimum(1.0, priced.layout.offload_layers / priced.stage.held)


def _offloaded_bytes(priced: PricedLayout, program: Step) -> Num:
    """Bytes that all layers save of one microbatch, out to host memory and back."""
    config = priced.config
    job = priced.job
    mesh = mesh_with_experts(priced.layout, priced.mesh)
    sizes = {name: program.logits.sizes[name] for name in "BT"}
    local = LocalElements(mesh, {**sizes, "tensor": mesh["tensor"]})
    on_chip = replace(priced.layout, offload=(), offload_layers=None)
    layers = layer_activations(
        config, job, program, on_chip, local, config.n_layers, DEFAULT_FRAMEWORK
    )
    elements: Num = 0
    for group, layer in zip(config.groups, layers, strict=True):
        elements = elements + group.count * layer.saved
    return 2 * elements * job.activation_bytes
