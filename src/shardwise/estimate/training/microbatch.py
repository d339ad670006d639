"""Time of one microbatch in all layers, the embedding and the head.

The matmuls and most collectives come from the program that the sharding algebra derives. The rest
(element-wise steps, routing of tokens, Ulysses) is added here. `step` gives each pipeline stage its
share of the layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from shardwise.arrays import Num, maximum
from shardwise.estimate.elementwise import BACKWARD_ELEMENTWISE, elementwise_widths
from shardwise.estimate.items import PricedItem
from shardwise.estimate.routing import is_routed
from shardwise.estimate.training import measured_rates
from shardwise.estimate.training.chip_rates import (
    ELEMENTWISE,
    Rates,
)
from shardwise.estimate.training.extra_traffic import DISPATCH, extra_traffic, occurrences
from shardwise.estimate.training.local_work import element_bytes
from shardwise.estimate.training.matmul_kinds import is_attention, is_embedding_or_head
from shardwise.estimate.training.offload import offload
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.estimate.training.ring_merge import ring_merges
from shardwise.models import ModelConfig
from shardwise.ops.program import Matmul, Step, Transfer
from shardwise.strategy.layout import Form, Layout, Layouts, expert_sharers

# Layer group and name of a matmul, its einsum on one chip, and `expert_tensor` if it has experts.
MatmulKey = tuple[int, str, str, int | None]
MatmulSeconds = dict[MatmulKey, Num]  # seconds of a matmul's occurrences in one phase

# Matmul -> its part in `strategy.layout.PARTS`, for matmuls whose part has another name.
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
    """Seconds of one microbatch: single numbers, or arrays with one element per layout.

    Args:
        layers: phase -> seconds of compute in all layers.
        parts: part of a layer -> seconds of its compute in the forward pass of all layers, which
            remat of that part runs a second time.
        attention: seconds of attention in all phases, included in `layers`.
        embedding: seconds of compute of the embedding.
        unembedding: seconds of compute of the unembedding.
        traffic: mesh role -> seconds of collectives inside the layers.
        outer_traffic: mesh role -> seconds of collectives of embedding and unembedding.
        part_traffic: part of a layer -> mesh role -> seconds of collectives that remat of that part
            runs a second time.
        offload: seconds to copy the saved activations of all layers to host memory and back.
        ring_merges: phase -> seconds to merge the outputs of a ring's steps.
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
    ring_merges: Mapping[str, Num] = field(default_factory=dict)

    def take(self, rows: Num) -> MicrobatchTime:
        """The times of the layouts at the indices `rows`."""

        def select(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {name: select(item) for name, item in value.items()}
            return value[rows] if getattr(value, "ndim", 0) else value

        return MicrobatchTime(**{f.name: select(getattr(self, f.name)) for f in fields(self)})


def microbatch_time(
    priced: PricedLayout,
    program: Step,
    same_compute: MicrobatchTime | None = None,
) -> MicrobatchTime:
    """Estimate the time of one microbatch.

    Args:
        priced: one layout, or arrays of layouts.
        program: matmuls and collectives of one microbatch under the layout's sharding rules, with
            or without full remat.
        same_compute: an earlier result whose compute times are the same, to save time: of the same
            program and layouts on other placements, or with another `context_kind`.
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
        same_compute or compute_time(priced, program),
        traffic=traffic,
        outer_traffic=outer_traffic,
        part_traffic=part_traffic,
        offload=sum(item.seconds for item in offload(priced, program)),
        ring_merges={item.phase: item.seconds for item in ring_merges(priced)},
    )


def compute_time(
    priced: PricedLayout, program: Step, matmul_s: MatmulSeconds | None = None
) -> MicrobatchTime:
    """Time of one microbatch without collectives and offload. It depends on no placement.

    Args:
        priced: one layout, or arrays of layouts.
        program: see `microbatch_time`.
        matmul_s: cache of the time of matmuls, for programs of layouts that have the same sizes and
            batch, in the same order, and the same rates.
    """
    layers: dict[str, Num] = {"forward": 0.0, "backward": 0.0, "remat": 0.0}
    parts: dict[str, Num] = {}
    outer: dict[str, Num] = {"embed": 0.0, "unembed": 0.0}
    attention: Num = 0.0
    if matmul_s is None:
        matmul_s = {}

    def add(phase: str, part: str, seconds: Num) -> None:
        layers[phase] = layers[phase] + seconds
        if part:
            parts[part] = parts.get(part, 0.0) + seconds

    for item in _casts_and_adds(priced, program):
        add(item.phase, item.part, item.seconds)
    for matmul in program.matmuls:
        key = _matmul_key(matmul, priced.layout)
        if key not in matmul_s:
            matmul_s[key] = _priced_matmul(priced, program, matmul).seconds
        seconds = matmul_s[key]
        if is_embedding_or_head(matmul):
            module = matmul.term.module
            outer[module] = outer[module] + seconds
            continue
        add(matmul.phase, _part(matmul), seconds)
        if is_attention(matmul):
            attention = attention + seconds
    for item in _elementwise(priced):
        add(item.phase, item.part, item.seconds)
    for item in _waits_for_host(priced, layers):
        layers[item.phase] = layers[item.phase] + item.seconds
    return MicrobatchTime(
        layers=layers,
        parts=parts,
        attention=attention,
        embedding=outer["embed"],
        unembedding=outer["unembed"],
    )


def _matmul_key(matmul: Matmul, layout: Layout | Layouts) -> MatmulKey:
    """What tells apart the times of matmuls, of which a recomputed one takes that of the first."""
    degree = layout.expert_tensor if matmul.program.einsum.chosen else None
    return (matmul.group, matmul.name, matmul.program.expression, degree)


def compute(priced: PricedLayout, program: Step) -> Iterator[PricedItem]:
    """Items for all work on one chip for one microbatch, except collectives and offload."""
    layers: dict[str, Num] = {}
    for item in _chip_work(priced, program):
        yield item
        if not is_embedding_or_head(item.work):
            layers[item.phase] = layers.get(item.phase, 0.0) + item.seconds
    yield from _waits_for_host(priced, layers)
    yield from ring_merges(priced)


def _chip_work(priced: PricedLayout, program: Step) -> Iterator[PricedItem]:
    """Items for the work that does not wait for the host."""
    yield from _casts_and_adds(priced, program)
    for matmul in program.matmuls:
        yield _priced_matmul(priced, program, matmul)
    yield from _elementwise(priced)


def _waits_for_host(priced: PricedLayout, layers: Mapping[str, Num]) -> Iterator[PricedItem]:
    """Items for the time in which a chip waits for the host to launch its kernels.

    The host runs ahead of the chip: it delays a phase only if it takes longer than the chip.

    Args:
        layers: phase -> seconds of the chip's work in all layers.
    """
    rates = priced.rates
    if rates.fusion.ideal or rates.measured:
        return
    launched = 1.0 - rates.fusion.captured
    host_s = launched * priced.config.n_layers * rates.calibration.host_s
    for phase, seconds in layers.items():
        if phase == "remat" and not priced.layout.full_remat:
            continue
        yield PricedItem(name="host", phase=phase, occurrence_s=maximum(host_s - seconds, 0.0))


def _casts_and_adds(priced: PricedLayout, program: Step) -> Iterator[PricedItem]:
    """Items for casts to narrow dtypes and for sums of gradients over microbatches."""
    yield from priced.rates.casts(program, priced.mesh)
    yield from priced.rates.gradient_adds(program, priced.layout)


def _priced_matmul(priced: PricedLayout, program: Step, matmul: Matmul) -> PricedItem:
    key = (matmul.group, matmul.name, priced.rates.has_tiles)
    if key not in priced.work:
        priced.work[key] = priced.rates.local_work(matmul, program, priced.layout)
    return priced.rates.matmul(
        matmul, priced.config, program, priced.layout, _part(matmul), priced.work[key]
    )


def _part(matmul: Matmul) -> str:
    """The part of a layer whose remat repeats a matmul; none of matmuls outside forward passes."""
    if matmul.phase != "forward" or is_embedding_or_head(matmul):
        return ""
    return PART_OF_PRODUCT.get(matmul.term.product, matmul.term.product)


def _elementwise(priced: PricedLayout) -> Iterator[PricedItem]:
    """Items for norms, rotary embeddings, activation functions and sums."""
    rates = priced.rates
    layout = priced.layout
    if rates.fusion.ideal:
        return
    n_bytes = elementwise_bytes(priced.config, layout, rates)
    if rates.measured:
        yield from _measured_elementwise(priced, n_bytes)
        return
    yield rates.elementwise("forward", n_bytes, part=ELEMENTWISE)
    yield rates.elementwise("backward", BACKWARD_ELEMENTWISE * n_bytes)
    if layout.full_remat:
        yield rates.elementwise("remat", n_bytes)


def _measured_elementwise(priced: PricedLayout, n_bytes: Num) -> Iterator[PricedItem]:
    """The items of `_elementwise` at measured rates, with what a layer takes whatever its sizes."""
    rates = priced.rates
    layout = priced.layout
    chip = rates.chip
    tensor = layout.sizes["tensor"]
    copies = 1 if layout.sequence_parallel else tensor
    tokens = layout.micro_batch * rates.job.seq / layout.sizes["context"]
    for phase in ("forward", "backward", "remat"):
        if phase == "remat" and not layout.full_remat:
            continue
        token_s = measured_rates.elementwise_s(
            chip, rates.job.compute, phase, priced.config, tensor, copies, tokens
        )
        item = rates.elementwise(phase, n_bytes, ELEMENTWISE if phase == "forward" else "")
        yield replace(
            item,
            bytes_per_s=item.n_bytes / (tokens * token_s),
            count=priced.config.n_layers,
            occurrence_s=measured_rates.layer_s(chip, phase),
        )


def recomputed_parts(form: Form) -> tuple[str, ...]:
    """Parts of the forward pass that remat recomputes and that the program does not repeat itself.

    With full remat, the program contains the repeated matmuls and collectives, but not the repeated
    dispatch of tokens.
    """
    parts = [*form.recomputed]
    if {"norms", "activation"} & {*form.recomputed}:
        parts.append(ELEMENTWISE)
    if form.recomputes("gate") and form.recomputes("up"):
        parts.append(DISPATCH)
    return tuple(parts)


def elementwise_bytes(config: ModelConfig, layout: Layout | Layouts, rates: Rates) -> Num:
    """Bytes that element-wise steps of one microbatch's forward pass read and write on a chip.

    The chips of `tensor` that share an expert all copy the tokens that are routed to it.
    """
    tokens = layout.micro_batch * rates.job.seq / layout.sizes["context"]
    tensor = layout.sizes["tensor"]
    copies = 1 if layout.sequence_parallel else tensor
    sharers = expert_sharers(layout.expert_tensor, layout.sizes)
    width: Num = 0.0
    for group in config.groups:
        residual, routed, sharded = elementwise_widths(config, group.layer)
        width = width + group.count * (residual * copies + routed * sharers + sharded) / tensor
    return tokens * width * rates.job.activation_bytes


def collectives(priced: PricedLayout, program: Step) -> Iterator[PricedItem]:
    """Priced collectives of one microbatch in all layers, the embedding and the head."""
    yield from derived_traffic(priced, program)
    yield from extra_traffic(priced)


def derived_traffic(priced: PricedLayout, program: Step) -> Iterator[PricedItem]:
    """Priced collectives of the program, for one microbatch.

    Gathers of the blocks' inputs over `tensor` belong to the part `norms`, whose remat repeats
    them. Collectives over a single chip, those that Ulysses replaces, and those that run once per
    step are left out.
    """
    layout = priced.layout
    for transfer in program.transfers:
        if priced.unsharded.issuperset(transfer.move.axes):
            continue
        is_replaced = transfer.role == "context" and layout.context_kind == "ulysses"
        if is_replaced or _is_once_per_step(transfer, program.weights, layout):
            continue
        yield priced.collective(
            name=transfer.name,
            phase=transfer.phase,
            part="norms" if _gathers_block_input(transfer) else "",
            work=transfer,
            role=transfer.role,
            kind=transfer.move.kind,
            axes=transfer.move.axes,
            count=transfer.count * occurrences(transfer, priced) * priced.head_passes(transfer),
            joined_bytes=_joined_bytes(transfer, program.weights, priced),
        )


def _gathers_block_input(transfer: Transfer) -> bool:
    """Whether a collective gathers a block's input over `tensor` in the forward pass."""
    gathers = transfer.move.kind == "all_gather" and transfer.role == "tensor"
    return gathers and transfer.phase == "forward" and not is_embedding_or_head(transfer)


def _is_once_per_step(transfer: Transfer, weights: frozenset[str], form: Form) -> bool:
    """Whether a collective syncs gradients, which runs once per step except under ZeRO-3."""
    is_gradient = transfer.move.before.gradient_of in weights
    return transfer.role == "data" or (form.zero < 3 and is_gradient)


def _joined_bytes(transfer: Transfer, weights: frozenset[str], priced: PricedLayout) -> Num:
    """V of one occurrence of a collective: bytes summed over the shards that it joins.

    Of routed experts, only those on one chip of `expert` count.
    """
    array = transfer.move.before
    bytes_per_element = element_bytes(array, weights, priced.job)
    if array.gradient_of in weights:
        bytes_per_element = priced.job.reduce_bytes
    n_bytes = transfer.elements(priced.mesh) * bytes_per_element
    return n_bytes / priced.mesh["expert"] if is_routed(array) else n_bytes
