"""Numbers of parameters on one chip of a pipeline stage, before and after ZeRO shards them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.arrays import Num, ceil_div, maximum, minimum
from shardwise.estimate.training.memory.local_elements import LocalElements, weight_term
from shardwise.models.model import ModelConfig
from shardwise.models.weights import Weight, layer_weights, outer_weights
from shardwise.strategy.layout import Form, Layout, Layouts
from shardwise.strategy.rules import Rules
from shardwise.strategy.stages import stages

# Sharding rules of a layer's experts: whole experts are divided over chips, then each expert is.
EXPERT_RULES: Rules = {
    "weights.E": ("expert", "whole_experts"),
    "weights.F": ("expert_tensor",),
}

# Weights outside the layers that the first pipeline stage holds; the last stage holds the others.
FIRST_STAGE = ("embedding", "position")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Numbers of parameters on one chip before ZeRO shards them.

    Args:
        dense: parameters outside routed experts.
        routed: parameters of routed experts.
        matmuls: parameters, dense or routed, of the weights in matmuls of the layers.
    """

    dense: Num = 0
    routed: Num = 0
    matmuls: Num = 0

    def plus(self, other: Parameters, times: Num = 1) -> Parameters:
        """Sum of these parameters and `times` the others."""
        return Parameters(
            dense=self.dense + times * other.dense,
            routed=self.routed + times * other.routed,
            matmuls=self.matmuls + times * other.matmuls,
        )

    @property
    def all(self) -> Num:
        """Number of dense and routed parameters."""
        return self.dense + self.routed


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroShards:
    """Numbers of shards into which ZeRO divides dense and routed parameters."""

    dense: Num
    routed: Num

    def local(self, parameters: Parameters) -> Num:
        """Number of parameters in one chip's shard."""
        return parameters.dense / self.dense + parameters.routed / self.routed


def zero_shards(form: Form, mesh: Mapping[str, Num]) -> ZeroShards:
    """Numbers of ZeRO shards of a form on a mesh.

    Routed parameters have fsdp x context shards under ZeRO-3, and data x fsdp x context otherwise.
    Dense parameters have `expert` times as many.
    """
    replicas = mesh["fsdp"] if form.zero == 3 else mesh["data"] * mesh["fsdp"]
    routed = replicas * mesh["context"]
    return ZeroShards(dense=routed * mesh["expert"], routed=routed)


def mesh_with_experts(form: Form, mesh: Mapping[str, Num]) -> dict[str, Num]:
    """Mesh role -> chips, with two more roles for experts, whose product is `tensor`.

    The chips of `whole_experts` hold different experts; those of `expert_tensor` shard each expert.
    """
    tensor = mesh["tensor"]
    expert_tensor = tensor if form.expert_tensor is None else form.expert_tensor
    return {**mesh, "expert_tensor": expert_tensor, "whole_experts": tensor // expert_tensor}


def layer_parameters(config: ModelConfig, rules: Rules, local: LocalElements) -> list[Parameters]:
    """Parameters of one layer on one chip, for each kind of layer of the model."""
    dense_rules = dense_rules_of(rules)
    layers = []
    for group in config.groups:
        matmul_terms = []
        vector_terms = []
        expert_terms = []
        for weight in layer_weights(config, group.layer):
            if weight.per_expert:
                expert_terms.append(weight_term(weight, EXPERT_RULES))
            elif weight.is_matmul:
                matmul_terms.append(weight_term(weight, dense_rules))
            else:
                vector_terms.append(weight_term(weight, dense_rules))
        matmuls = local.total(matmul_terms)
        routed = local.total(expert_terms)
        dense = matmuls + local.total(vector_terms)
        layers.append(Parameters(dense=dense, routed=routed, matmuls=matmuls + routed))
    return layers


def outer_parameters(
    config: ModelConfig, rules: Rules, local: LocalElements, mtp_layers: int = 0
) -> tuple[Parameters, Parameters, Parameters]:
    """Parameters outside the layers on a chip of (the first stage, the last, a single stage)."""
    dense_rules = dense_rules_of(rules)
    first, last, single = (
        Parameters(dense=local.total(weight_term(weight, dense_rules) for weight in weights))
        for weights in outer_weights_of(config, mtp_layers)
    )
    return first, last, single


def outer_weights_of(
    config: ModelConfig, mtp_layers: int = 0
) -> tuple[list[Weight], list[Weight], list[Weight]]:
    """Weights outside the layers on (the first stage, the last stage, a single stage).

    An embedding that is tied, or that MTP layers read, is on both the first and the last stage. The
    projections and norms of MTP layers are not included.
    """
    single = list(outer_weights(config))
    first = [weight for weight in single if weight.name in FIRST_STAGE]
    last = [weight for weight in single if weight.name not in FIRST_STAGE]
    if config.tied_embeddings or mtp_layers:
        last += [weight for weight in first if weight.name == "embedding"]
    return first, last, single


def largest_weights(config: ModelConfig, rules: Rules, local: LocalElements) -> tuple[Num, Num]:
    """Numbers of elements on a chip of (the largest weight, the largest weight of the layers)."""
    dense_rules = dense_rules_of(rules)
    of_layers: Num = 0
    for group in config.groups:
        for weight in layer_weights(config, group.layer):
            term = weight_term(weight, EXPERT_RULES if weight.per_expert else dense_rules)
            of_layers = maximum(of_layers, local.total([term]))
    of_all = of_layers
    for weight in outer_weights(config):
        of_all = maximum(of_all, local.total([weight_term(weight, dense_rules)]))
    return of_all, of_layers


def dense_rules_of(rules: Rules) -> Rules:
    """Sharding rules of dense weights when matmuls read them: without the axes of ZeRO."""
    return {
        row: tuple(axis for axis in axes if axis not in ("fsdp", "context", "expert"))
        for row, axes in rules.items()
        if row != "weights.E"
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLayers:
    """Numbers of layers on one pipeline stage.

    Args:
        chunks: number of chunks that the layers form.
        all: number of layers of all kinds.
        kinds: number of layers of each kind, in the order of `config.groups`.
    """

    chunks: Num
    all: Num
    kinds: tuple[Num, ...]


def stage_layers(config: ModelConfig, layout: Layout | Layouts) -> StageLayers:
    """Numbers of layers on the fullest stage (`strategy.stages`).

    Each kind of layer has the same share of the stage as of the model, rounded up, until the stage
    is full; kinds with the most parameters come first.
    """
    fullest = stages(config.n_layers, layout)
    return _stage_layers(config, fullest.chunks, fullest.held)


def layers_by_work(
    config: ModelConfig, stage: StageLayers, pipe: Num
) -> tuple[StageLayers, StageLayers]:
    """Numbers of layers on the (first, last) stage if all stages have about equal FLOPs.

    The unembedding counts like layers with the same number of matmul parameters. Stages are filled
    with layers until they exceed their share of the work (nanotron, `models/base.py`, 2025-03).
    """
    n_layers = config.n_layers
    matmul_parameters = 0
    for group in config.groups:
        for weight in layer_weights(config, group.layer):
            if weight.is_matmul:
                matmul_parameters += group.count * weight.size
    head_layers = config.vocab * config.d_model * n_layers / matmul_parameters
    share = (n_layers + head_layers) / pipe
    first = minimum(n_layers, share // 1 + 1)
    last = maximum(1, ceil_div(share - head_layers, 1))
    return _stage_layers(config, stage.chunks, first), _stage_layers(config, stage.chunks, last)


def layers_with_outer_places(config: ModelConfig, pipe: Num) -> tuple[StageLayers, StageLayers]:
    """Numbers of layers on (an end, an inner) stage if embedding and head count as layers.

    DeepSpeed's `partition_method` "type:transformer|embedding".
    """
    places = ceil_div(config.n_layers + 2, pipe)
    return _stage_layers(config, 1, places - 1), _stage_layers(config, 1, places)


def _stage_layers(config: ModelConfig, chunks: Num, n_layers: Num) -> StageLayers:
    """A stage with `n_layers` layers, with its number of layers of each kind."""
    sizes = []
    for group in config.groups:
        sizes.append(sum(weight.size for weight in layer_weights(config, group.layer)))
    counts = [n_layers] * len(sizes)
    unassigned = n_layers
    for kind in sorted(range(len(sizes)), key=lambda kind: -sizes[kind]):
        share = ceil_div(config.groups[kind].count * n_layers, config.n_layers)
        counts[kind] = minimum(unassigned, share)
        unassigned = unassigned - counts[kind]
    return StageLayers(chunks=chunks, all=n_layers, kinds=tuple(counts))
