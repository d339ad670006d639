"""What one microbatch takes on its way through all layers and both ends of the model, in seconds.

Derived from the works of the sharding algebra; what the algebra cannot see (element-wise steps,
routing of tokens, the way keys and values travel) is added here by name. A pipeline gives each
stage its share of the layers; that is the business of `step`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from shardwise.arrays import Num
from shardwise.estimate.collective_cost import Prices
from shardwise.estimate.training.chip_rates import (
    Rates,
    element_bytes,
    is_attention,
    is_end,
    is_routed,
)
from shardwise.estimate.training.extra_traffic import exchanges, remat_share, sent_again, times_sent
from shardwise.estimate.training.memory.activations import layers_held
from shardwise.estimate.training.memory.framework import PLANNED
from shardwise.estimate.training.memory.local_elements import Local
from shardwise.estimate.training.memory.parameters import with_experts
from shardwise.models import Layer, ModelConfig, Moe
from shardwise.ops.program import Matmul, Step, Transfer
from shardwise.strategy.layout import Form, Layout, Layouts

# Reads and writes of element-wise steps in one layer, forward, in multiples of each width: two
# norms and two sums of D (half of them in a layer of one block), rotation of queries and keys,
# activation of F; in a Mamba block the convolution, the gated norm, and states, which are written
# in fp32 (one more than the product writes), read, and passed on in 16 bits (state-spaces/mamba,
# ssd_combined.py, `states_in_fp32`). The backward pass has twice as many.
ELEMENTWISE = {"D": 10.0, "heads": 2.0, "F": 3.0, "conv": 2.0, "gated_norm": 3.0, "states": 4.0}
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
class Passes:
    """Seconds of one microbatch. Numbers, or arrays over layouts.

    Args:
        layers: phase -> matmuls and attention of all layers.
        parts: part of a layer -> its matmuls in one forward pass of all layers.
        elementwise: element-wise steps of one forward pass of all layers.
        attention: attention in `layers`, all phases.
        first, last: embedding; unembedding.
        traffic: role -> collectives inside the layers, and `ends` the same at the ends.
        regather: gathers over `tensor` of the inputs of blocks, in one forward pass.
        resent: role -> what goes to experts in one forward pass.
        offloaded: what all layers keep, out to host memory and back.
    """

    layers: Mapping[str, Num]
    parts: Mapping[str, Num]
    elementwise: Num
    attention: Num
    first: Num
    last: Num
    traffic: Mapping[str, Num] = field(default_factory=dict)
    ends: Mapping[str, Num] = field(default_factory=dict)
    regather: Num = 0.0
    resent: Mapping[str, Num] = field(default_factory=dict)
    offloaded: Num = 0.0

    def take(self, rows: Num) -> Passes:
        """The same of some of the layouts."""

        def some(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {name: some(one) for name, one in value.items()}
            return value[rows] if getattr(value, "ndim", 0) else value

        return Passes(**{f.name: some(getattr(self, f.name)) for f in fields(self)})


def passes(
    config: ModelConfig,
    works: Step,
    split: Layout | Layouts,
    prices: Prices,
    rates: Rates,
    like: Passes | None = None,
) -> Passes:
    """Seconds of one microbatch under the layouts of a split.

    Args:
        works: of one microbatch under the split's table, with or without full remat.
        prices: of collectives on the layouts' placements.
        like: of the same works and layouts with another way of the context, whose products are
            the same.
    """
    found = like or _products(config, works, split, rates)
    return replace(
        found,
        traffic=_traffic(config, works, split, prices, rates, at_ends=False),
        ends=_traffic(config, works, split, prices, rates, at_ends=True),
        regather=_regather(config, works, split, prices, rates),
        resent=_resent(config, split, prices, rates),
        offloaded=_offloaded(config, works, split, rates),
    )


def _products(config: ModelConfig, works: Step, split: Layout | Layouts, rates: Rates) -> Passes:
    """What the chip itself computes."""
    layers = {p: rates.casts_s(works, split.sizes, p) for p in ("forward", "backward", "remat")}
    layers["backward"] = layers["backward"] + rates.added_s(works, split)
    parts: dict[str, Num] = {}
    ends: dict[str, Num] = {"embed": 0.0, "unembed": 0.0}
    attention: Num = 0.0
    for matmul in works.matmuls:
        seconds = rates.matmul_s(matmul, config, works, split)
        if is_end(matmul):
            end = matmul.term.module
            ends[end] = ends[end] + seconds
            continue
        layers[matmul.phase] = layers[matmul.phase] + seconds
        attention = attention + (seconds if is_attention(matmul) else 0.0)
        if matmul.phase == "forward":
            part = part_of(matmul)
            parts[part] = parts.get(part, 0.0) + seconds
    return Passes(
        layers=layers,
        parts=parts,
        elementwise=rates.elementwise_s(elementwise_bytes(config, split, rates)),
        attention=attention,
        first=ends["embed"],
        last=ends["unembed"],
    )


def part_of(matmul: Matmul) -> str:
    """The part of a layer, in the words of remat."""
    return PART.get(matmul.term.product, matmul.term.product)


def elementwise_bytes(config: ModelConfig, split: Layout | Layouts, rates: Rates) -> Num:
    """Bytes that norms, sums, rotations and activations of one forward pass read and write."""
    tokens = split.micro_batch * rates.job.seq / split.sizes["context"]
    tensor = split.sizes["tensor"]
    whole = 1 if split.sequence_parallel else tensor
    total: Num = 0.0
    for group in config.groups:
        along, across = elementwise_widths(config, group.layer)
        total = total + group.count * (along * whole + across) / tensor
    return tokens * total * rates.job.activation_bytes


def elementwise_widths(config: ModelConfig, layer: Layer) -> tuple[float, float]:
    """Reads and writes of a token in one layer: of width D, and of widths that `tensor` splits."""
    D = config.d_model
    along, across = ELEMENTWISE["D"] * D * (1.0 if layer.has_both else 0.5), 0.0
    if a := layer.attention:
        across += ELEMENTWISE["heads"] * (a.n_heads + a.n_kv_heads) * a.d_head
    if m := layer.mamba:
        across += ELEMENTWISE["conv"] * m.d_scanned + ELEMENTWISE["gated_norm"] * m.d_inner
        across += ELEMENTWISE["states"] * m.d_inner * m.d_state / m.chunk
    if isinstance(ffn := layer.ffn, Moe):
        across += ELEMENTWISE["F"] * (ffn.d_ff * ffn.experts_per_token + ffn.d_ff_shared)
        # Tokens are copied to their experts and their results back and added.
        along += 4.0 * ffn.experts_per_token * (ffn.d_latent or D)
    elif ffn:
        across += ELEMENTWISE["F"] * ffn.d_ff
    return along, across


def _traffic(
    config: ModelConfig,
    works: Step,
    split: Layout | Layouts,
    prices: Prices,
    rates: Rates,
    *,
    at_ends: bool,
) -> dict[str, Num]:
    """Seconds of collectives by role, in the layers or at the ends."""
    found: dict[str, Num] = {}
    for transfer in works.transfers:
        if is_end(transfer) != at_ends or waits(transfer, works.weights, split):
            continue
        if transfer.role == "context" and split.context_kind == "ulysses":
            continue
        seconds = transfer_s(transfer, works.weights, split.sizes, prices, rates)
        seconds = seconds * times_sent(transfer, config, split)
        found[transfer.role] = found.get(transfer.role, 0.0) + seconds
    if at_ends:
        return found
    for sent in exchanges(config, split, rates):
        seconds = sent.time_s(prices, rates, split.sizes)
        found[sent.role] = found.get(sent.role, 0.0) + seconds
    return found


def _resent(
    config: ModelConfig, split: Layout | Layouts, prices: Prices, rates: Rates
) -> dict[str, Num]:
    """Seconds, by role, to send tokens to their experts once more."""
    found: dict[str, Num] = {}
    for sent in sent_again(config, split, rates):
        seconds = sent.time_s(prices, rates, split.sizes)
        found[sent.role] = found.get(sent.role, 0.0) + seconds
    return found


def _regather(
    config: ModelConfig, works: Step, split: Layout | Layouts, prices: Prices, rates: Rates
) -> Num:
    """Seconds to gather the inputs of blocks once more."""
    found: Num = 0.0
    for transfer in works.transfers:
        if regathers(transfer):
            seconds = transfer_s(transfer, works.weights, split.sizes, prices, rates)
            found = found + seconds * times_sent(transfer, config, split)
    return found * remat_share(config, split)


def regathers(transfer: Transfer) -> bool:
    """Whether it gathers the input of a block over `tensor`, which remat of norms does again."""
    gathers = transfer.move.kind == "all_gather" and transfer.role == "tensor"
    return gathers and transfer.phase == "forward" and not is_end(transfer)


def _offloaded(config: ModelConfig, works: Step, split: Layout | Layouts, rates: Rates) -> Num:
    """Seconds on the chip's PCIe link for activations that wait in host memory; none where no
    public source gives its rate."""
    link = rates.chip.pcie_bytes_per_s_per_chip
    if "activations" not in split.offload or not link:
        return 0.0
    return offloaded_bytes(config, works, split, rates) / link


def offloaded_bytes(config: ModelConfig, works: Step, split: Layout | Layouts, rates: Rates) -> Num:
    """What all layers keep of one microbatch, out to host memory and back."""
    mesh = with_experts(split, split.sizes)
    local = Local(mesh, {**{d: works.logits.sizes[d] for d in "BT"}, "tensor": mesh["tensor"]})
    whole = replace(split, offload=(), offload_layers=None)
    kept = layers_held(config, rates.job, works, whole, local, config.n_layers, PLANNED)
    elements = sum(g.count * k.kept for g, k in zip(config.groups, kept, strict=True))
    return 2 * elements * rates.job.activation_bytes


def waits(transfer: Transfer, weights: frozenset[str], form: Form) -> bool:
    """Sums of gradients happen once a step, unless ZeRO-3 scatters them at once."""
    summed = transfer.move.before.gradient_of in weights
    return transfer.role == "data" or (form.zero < 3 and summed)


def transfer_bytes(
    transfer: Transfer, weights: frozenset[str], rates: Rates, mesh: Mapping[str, Num]
) -> Num:
    """V of one occurrence of a collective, in bytes; of experts those that a chip has."""
    before = transfer.move.before
    summed = before.gradient_of in weights
    each = rates.job.reduce_bytes if summed else element_bytes(before, weights, rates.job)
    n_bytes = transfer.elements(mesh) * each
    return n_bytes / mesh["expert"] if is_routed(before) else n_bytes


def transfer_s(
    transfer: Transfer,
    weights: frozenset[str],
    mesh: Mapping[str, Num],
    prices: Prices,
    rates: Rates,
) -> Num:
    """Seconds of all occurrences of a collective in one microbatch."""
    n_bytes = transfer_bytes(transfer, weights, rates, mesh)
    move = transfer.move
    return transfer.count * rates.send_s(prices, move.kind, move.axes, n_bytes, mesh)
