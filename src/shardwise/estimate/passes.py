"""What one microbatch takes on its way through all layers and both ends of the model, in seconds.

Derived from the works of the sharding algebra; what the algebra cannot see (element-wise steps,
routing of tokens, the way keys and values travel) is added here by name. A pipeline gives each
stage its share of the layers; that is the business of `step`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from shardwise.arrays import Num, minimum
from shardwise.estimate.activations_held import layers_held
from shardwise.estimate.local import Local
from shardwise.estimate.prices import Prices
from shardwise.estimate.rates import Rates, element_bytes, is_attention, is_end, is_routed
from shardwise.estimate.routing import SENT_ONCE
from shardwise.estimate.software import PLANNED
from shardwise.estimate.state_held import with_experts
from shardwise.models import Layer, ModelConfig, Moe
from shardwise.ops.einsum import shards
from shardwise.ops.program import Matmul, Step, Transfer
from shardwise.strategy.layout import Form, Layout, Layouts, expert_degree

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
        regather=_regather(works, split, prices, rates),
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
        if is_end(matmul.name):
            name = matmul.name.split(".")[0]
            ends[name] = ends[name] + seconds
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
    name = matmul.name.split(".")[1]
    return PART.get(name, name)


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
        if is_end(transfer.name) != at_ends or waits(transfer, works.weights, split):
            continue
        if transfer.role == "context" and split.context_kind == "ulysses":
            continue
        seconds = transfer_s(transfer, works.weights, split.sizes, prices, rates)
        found[transfer.role] = found.get(transfer.role, 0.0) + seconds
    if at_ends:
        return found
    if any(isinstance(g.layer.ffn, Moe) for g in config.groups):
        found["expert"] = _routing(config, split, prices, rates)
    if split.context_kind == "ulysses":
        found["context"] = _exchange_of_heads(config, split, prices, rates)
    if config.mambas:
        found["context"] = found.get("context", 0.0) + _states(config, split, prices, rates)
    return found


def _regather(works: Step, split: Layout | Layouts, prices: Prices, rates: Rates) -> Num:
    """Seconds to gather the inputs of blocks once more."""
    found: Num = 0.0
    for transfer in works.transfers:
        if regathers(transfer):
            found = found + transfer_s(transfer, works.weights, split.sizes, prices, rates)
    return found


def regathers(transfer: Transfer) -> bool:
    """Whether it gathers the input of a block over `tensor`, which remat of norms does again."""
    gathers = transfer.move.kind == "all_gather" and transfer.role == "tensor"
    return gathers and transfer.phase == "forward" and not is_end(transfer.name)


def _offloaded(config: ModelConfig, works: Step, split: Layout | Layouts, rates: Rates) -> Num:
    """Seconds on the chip's PCIe link for activations that wait in host memory; none where no
    public source gives its rate."""
    link = rates.chip.pcie_bytes_per_s_per_chip
    if "activations" not in split.offload or not link:
        return 0.0
    mesh = with_experts(split, split.sizes)
    local = Local(mesh, {**{d: works.logits.sizes[d] for d in "BT"}, "tensor": mesh["tensor"]})
    whole = replace(split, offload=(), offload_layers=None)
    kept = layers_held(config, rates.job, works, whole, local, config.n_layers, PLANNED)
    elements = sum(g.count * k.kept for g, k in zip(config.groups, kept, strict=True))
    n_bytes = elements * rates.job.activation_bytes
    return 2 * n_bytes / link


def waits(transfer: Transfer, weights: frozenset[str], form: Form) -> bool:
    """Sums of gradients happen once a step, unless ZeRO-3 scatters them at once."""
    name = transfer.move.before.name
    summed = name.startswith("d") and name[1:] in weights
    return transfer.role == "data" or (form.zero < 3 and summed)


def transfer_bytes(
    transfer: Transfer, weights: frozenset[str], rates: Rates, mesh: Mapping[str, Num]
) -> Num:
    """V of one occurrence of a collective, in bytes; of experts those that a chip has."""
    before = transfer.move.before
    summed = before.name.startswith("d") and before.name[1:] in weights
    each = rates.job.reduce_bytes if summed else element_bytes(before.name, weights, rates.job)
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


def residual_bytes(config: ModelConfig, split: Layout | Layouts, seq: int) -> Num:
    """The residual of one microbatch on a chip, as it lies between blocks, in 16 bits."""
    tensor = split.sizes["tensor"] if split.sequence_parallel else 1
    return split.micro_batch * seq * config.d_model * 2.0 / (split.sizes["context"] * tensor)


def _routing(config: ModelConfig, split: Layout | Layouts, prices: Prices, rates: Rates) -> Num:
    """Tokens to experts and back, forward and backward: four exchanges in a routed layer.

    Whole experts on chips of `tensor` are reached over both axes.
    """
    axes = ("tensor", "expert") if split.expert_tensor == 1 else ("expert",)
    mesh, total = split.sizes, 0.0
    residual = residual_bytes(config, split, rates.job.seq)
    for group in config.groups:
        if isinstance(group.layer.ffn, Moe):
            chosen = group.layer.ffn.experts_per_token
            here = residual * (group.layer.ffn.d_latent or config.d_model) / config.d_model
            if rates.kernels.once:
                one = rates.send_s(prices, f"{SENT_ONCE}{chosen}", axes, here, mesh)
            else:
                copies = minimum(chosen, expert_degree(split, mesh)) * shards(axes, mesh)
                one = rates.send_s(prices, "all_to_all", axes, here * copies, mesh)
            total = total + 4 * group.count * one
    return total


def _exchange_of_heads(
    config: ModelConfig, split: Layout | Layouts, prices: Prices, rates: Rates
) -> Num:
    """Ulysses: queries, keys and values leave with all their tokens and some heads, the attended
    come back: each an AllToAll, forward and backward (arXiv 2309.14509, section 3)."""
    mesh, total = split.sizes, 0.0
    for a, n in config.attentions:
        width = 2 * a.n_heads * a.d_head + 2 * a.n_kv_heads * a.d_head
        n_bytes = split.micro_batch * rates.job.seq * width * 2.0 / mesh["tensor"]
        one = rates.send_s(prices, "all_to_all", ("context",), n_bytes, mesh)
        total = total + 2 * n * one
    return total


def _states(config: ModelConfig, split: Layout | Layouts, prices: Prices, rates: Rates) -> Num:
    """Scans over `context`: the state at the end of each chip's tokens, gathered by all, forward
    and backward (arXiv 2405.21060, section 8.2)."""
    mesh, total = split.sizes, 0.0
    for m, n in config.mambas:
        held = split.micro_batch * m.d_inner * m.d_state / mesh["tensor"]
        n_bytes = held * mesh["context"] * rates.job.activation_bytes
        total = total + 2 * n * rates.send_s(prices, "all_gather", ("context",), n_bytes, mesh)
    return total
