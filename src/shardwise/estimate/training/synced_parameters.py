"""Numbers of parameters, grouped by the chips over which their gradients are summed."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.arrays import Num, ceil_div
from shardwise.estimate.training.memory.parameters import outer_weights_of
from shardwise.models import ModelConfig
from shardwise.models.token_prediction import joint_weights
from shardwise.models.weights import Weight, layer_weights
from shardwise.strategy.rules import TRAIN

# Dims of weights that `tensor` shards.
TENSOR_DIMS = tuple(
    row.removeprefix("weights.") for row, axes in TRAIN.items() if axes == ("tensor",)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParametersOverTensor:
    """Numbers of parameters, grouped by how `tensor` shards them.

    Args:
        sharded: (size of the dim that `tensor` shards, parameters per index of that dim).
        replicated: parameters of matrices that every chip of `tensor` holds: routers, projections
            to a latent.
        vectors: parameters of norms, scales and biases, which every chip of `tensor` holds.
        arrays: numbers of arrays in `sharded`, `replicated` and `vectors`, where identical layers
            share their arrays.
    """

    sharded: tuple[tuple[int, float], ...]
    replicated: float
    vectors: float
    arrays: tuple[int, int, int]

    def local(self, tensor: Num) -> Num:
        """Number of parameters of `sharded` on one of `tensor` chips."""
        total: Num = 0.0
        for size, parameters_per_index in self.sharded:
            total = total + parameters_per_index * ceil_div(size, tensor)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedParameters:
    """Numbers of parameters of a model, grouped by how their gradients are synced.

    Args:
        layers: parameters of all layers, without routed experts.
        routed: number of parameters of the routed experts in all layers.
        routed_arrays: number of arrays of routed experts, where identical layers share their
            arrays.
        first: parameters outside the layers that the first pipeline stage holds.
        last: parameters outside the layers that the last pipeline stage holds, including those of
            MTP layers outside their Transformer layers.
        single: all parameters outside the layers, as a single stage holds them.
    """

    layers: ParametersOverTensor
    routed: float
    routed_arrays: int
    first: ParametersOverTensor
    last: ParametersOverTensor
    single: ParametersOverTensor


@functools.lru_cache(maxsize=64)
def synced_parameters(config: ModelConfig, mtp_layers: int = 0) -> SyncedParameters:
    """Count a model's parameters by how their gradients are synced.

    Args:
        mtp_layers: MTP layers, whose projections and norms the last stage holds. Their Transformer
            layers are those of `mtp_model`, and are not included.
    """
    dense = []
    routed = 0
    routed_arrays = 0
    for group in config.groups:
        for weight in layer_weights(config, group.layer):
            if weight.per_expert:
                routed += group.count * weight.size
                routed_arrays += 1
            else:
                dense.append((weight, group.count))
    first, *with_head = outer_weights_of(config, mtp_layers)
    joints = [(weight, mtp_layers) for weight in joint_weights(config) if mtp_layers]
    last, single = (
        _over_tensor([*((weight, 1) for weight in weights), *joints]) for weights in with_head
    )
    return SyncedParameters(
        layers=_over_tensor(dense),
        routed=float(routed),
        routed_arrays=routed_arrays,
        first=_over_tensor([(weight, 1) for weight in first]),
        last=last,
        single=single,
    )


def _over_tensor(weights: Sequence[tuple[Weight, int]]) -> ParametersOverTensor:
    """Group the parameters of (weight, number of layers that have it)."""
    per_index: dict[int, float] = {}
    replicated = 0.0
    vectors = 0.0
    arrays = [0, 0, 0]
    for weight, count in weights:
        dims = zip(weight.dims, weight.shape, strict=True)
        sizes = [size for name, size in dims if name in TENSOR_DIMS]
        if sizes:
            parameters = count * weight.size / sizes[0]
            per_index[sizes[0]] = per_index.get(sizes[0], 0.0) + parameters
            arrays[0] += 1
        elif weight.is_matmul or weight.part == "embedding":
            replicated += count * weight.size
            arrays[1] += 1
        else:
            vectors += count * weight.size
            arrays[2] += 1
    return ParametersOverTensor(
        sharded=tuple(per_index.items()),
        replicated=replicated,
        vectors=vectors,
        arrays=(arrays[0], arrays[1], arrays[2]),
    )
