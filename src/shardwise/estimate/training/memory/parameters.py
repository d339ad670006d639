"""Parameters that one chip of a stage holds, whole and as ZeRO shards them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.arrays import Num, ceil_div, maximum, minimum
from shardwise.estimate.training.memory.local_elements import Local, weight_term
from shardwise.models.model import ModelConfig
from shardwise.models.weights import Weight, layer_weights, outer_weights
from shardwise.strategy.layout import Form, Layout, Layouts
from shardwise.strategy.rules import Rules
from shardwise.strategy.stages import stages

# How the experts of a layer are dealt out: whole ones first, then parts of one.
EXPERTS: Rules = {
    "weights.E": ("expert", "whole_experts"),
    "weights.F": ("expert_tensor",),
}

FIRST = ("embedding", "position")  # outer weights of the first stage; the others are of the last


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Parameters on one chip before ZeRO: those of experts, and all others.

    `matmuls` are those of either in the products of layers.
    """

    dense: Num = 0
    routed: Num = 0
    matmuls: Num = 0

    def plus(self, other: Parameters, times: Num = 1) -> Parameters:
        """The sum, the other one `times`."""
        return Parameters(
            dense=self.dense + times * other.dense,
            routed=self.routed + times * other.routed,
            matmuls=self.matmuls + times * other.matmuls,
        )

    @property
    def all(self) -> Num:
        """Both together."""
        return self.dense + self.routed


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """Over how many chips ZeRO shards the state of each of both."""

    dense: Num
    routed: Num

    def of(self, whole: Parameters) -> Num:
        """Parameters of which one chip holds state."""
        return whole.dense / self.dense + whole.routed / self.routed


def zero_shards(form: Form, sizes: Mapping[str, Num]) -> Shards:
    """Data x context for ZeRO 1 and 2, fsdp x context for 3; weights of no expert x expert."""
    replicas = sizes["fsdp"] if form.zero == 3 else sizes["data"] * sizes["fsdp"]
    routed = replicas * sizes["context"]
    return Shards(dense=routed * sizes["expert"], routed=routed)


def with_experts(form: Form, sizes: Mapping[str, Num]) -> dict[str, Num]:
    """Chips by role, and `whole_experts` and `expert_tensor`: how experts lie on `tensor`."""
    tensor = sizes["tensor"]
    split = tensor if form.expert_tensor is None else form.expert_tensor
    return {**sizes, "expert_tensor": split, "whole_experts": tensor // split}


def layers_parameters(config: ModelConfig, rules: Rules, local: Local) -> list[Parameters]:
    """One layer of each kind."""
    dense_rules, routed_rules = _rules(rules)
    found = []
    for group in config.groups:
        weights = layer_weights(config, group.layer)
        routed = [w for w in weights if is_experts(w)]
        dense = [w for w in weights if not is_experts(w)]
        by_tensor = local.total(weight_term(w, dense_rules) for w in dense if w.matmul)
        vectors = local.total(weight_term(w, dense_rules) for w in dense if not w.matmul)
        experts = local.total(weight_term(w, routed_rules) for w in routed)
        found.append(
            Parameters(dense=by_tensor + vectors, routed=experts, matmuls=by_tensor + experts)
        )
    return found


def outer_parameters(
    config: ModelConfig, rules: Rules, local: Local
) -> tuple[Parameters, Parameters, Parameters]:
    """Around the layers: (on the first stage, on the last, on one that is both)."""
    dense_rules, _ = _rules(rules)
    first, last, both = (
        Parameters(dense=local.total(weight_term(w, dense_rules) for w in weights))
        for weights in end_weights(config)
    )
    return first, last, both


def end_weights(config: ModelConfig) -> tuple[list[Weight], list[Weight], list[Weight]]:
    """Weights around the layers: (on the first stage, on the last, on one that is both).

    A tied embedding lies on both ends of a pipeline.
    """
    both = list(outer_weights(config))
    first = [w for w in both if w.name in FIRST]
    last = [w for w in both if w.name not in FIRST]
    if config.tied_embeddings:
        last += [w for w in first if w.name == "embedding"]
    return first, last, both


def largest_weights(config: ModelConfig, rules: Rules, local: Local) -> tuple[Num, Num]:
    """Elements of the largest weight on a chip: of all weights, and of those of layers."""
    dense_rules, routed_rules = _rules(rules)
    layers: Num = 0
    for group in config.groups:
        for w in layer_weights(config, group.layer):
            term = weight_term(w, routed_rules if is_experts(w) else dense_rules)
            layers = maximum(layers, local.total([term]))
    every = layers
    for w in outer_weights(config):
        every = maximum(every, local.total([weight_term(w, dense_rules)]))
    return every, layers


def _rules(rules: Rules) -> tuple[Rules, Rules]:
    """The table without what ZeRO shards, as products use weights: of experts' and all others."""
    dense = {
        row: tuple(a for a in axes if a not in ("fsdp", "context", "expert"))
        for row, axes in rules.items()
        if row != "weights.E"
    }
    return dense, EXPERTS


def is_experts(weight: Weight) -> bool:
    """Whether experts are dealt out with it: not so the router."""
    return len(weight.dims) > 1 and weight.dims[0] == "E"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLayers:
    """Layers of the fullest stage, in chunks, and of each kind of layer among them."""

    chunks: Num
    all: Num
    kinds: tuple[Num, ...]


def stage_layers(config: ModelConfig, split: Layout | Layouts) -> StageLayers:
    """The fullest stage's layers (`strategy.stages`) by kind.

    Kinds of layers are mixed as in the model: of each its share of a stage, rounded up, those with
    most parameters first.
    """
    cut = stages(config.n_layers, split)
    return StageLayers(chunks=cut.chunks, all=cut.held, kinds=_kinds(config, cut.held))


def layers_by_work(
    config: ModelConfig, held: StageLayers, pipe: Num
) -> tuple[StageLayers, StageLayers]:
    """The layers of the first stage and of the last where stages have equal FLOPs.

    The unembedding counts as the layers that have as many parameters in products. A stage takes
    layers until it is over its share of the work (nanotron, `models/base.py`, 2025-03).
    """
    layers = config.n_layers
    matmuls = sum(
        g.count * w.size for g in config.groups for w in layer_weights(config, g.layer) if w.matmul
    )
    head = config.vocab * config.d_model * layers / matmuls
    share = (layers + head) / pipe
    first, last = minimum(layers, share // 1 + 1), maximum(1, ceil_div(share - head, 1))
    at_first = StageLayers(chunks=held.chunks, all=first, kinds=_kinds(config, first))
    return at_first, StageLayers(chunks=held.chunks, all=last, kinds=_kinds(config, last))


def layers_in_places(config: ModelConfig, pipe: Num) -> tuple[StageLayers, StageLayers]:
    """The layers of an end stage and of one between where the ends of the model count as layers.

    DeepSpeed's `partition_method` "type:transformer|embedding".
    """
    places = ceil_div(config.n_layers + 2, pipe)
    at_end = StageLayers(chunks=1, all=places - 1, kinds=_kinds(config, places - 1))
    return at_end, StageLayers(chunks=1, all=places, kinds=_kinds(config, places))


def _kinds(config: ModelConfig, held: Num) -> tuple[Num, ...]:
    """How many layers of each kind are among `held` ones."""
    sizes = [sum(w.size for w in layer_weights(config, g.layer)) for g in config.groups]
    left, counts = held, dict[int, Num]()
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        share = ceil_div(config.groups[i].count * held, config.n_layers)
        counts[i] = minimum(left, share)
        left = left - counts[i]
    return tuple(counts[i] for i in range(len(sizes)))
