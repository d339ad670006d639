"""Parameters of a model by the chips over which their gradients are summed."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.arrays import Num, ceil_div
from shardwise.estimate.training.memory.parameters import outer_weights_of
from shardwise.models import ModelConfig
from shardwise.models.weights import Weight, layer_weights
from shardwise.strategy.rules import TRAIN

# Dims of weights that `tensor` shards.
TENSOR_DIMS = tuple(
    row.removeprefix("weights.") for row, axes in TRAIN.items() if axes == ("tensor",)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSplit:
    """Parameters by how `tensor` shards them.

    Args:
        sharded: (size of the dim that `tensor` shards, parameters per index of that dim).
        replicated: matrices on every chip of `tensor`: routers, projections to a latent.
        vectors: on every chip: scales and biases of norms.
        arrays: numbers of arrays of `sharded`, `replicated` and `vectors`; equal layers share one.
    """

    sharded: tuple[tuple[int, float], ...]
    replicated: float
    vectors: float
    arrays: tuple[int, int, int]

    def local(self, tensor: Num) -> Num:
        """Parameters of `sharded` on one chip."""
        total: Num = 0.0
        for size, parameters_per_index in self.sharded:
            total = total + parameters_per_index * ceil_div(size, tensor)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedParameters:
    """Parameters of a model by how their gradients are synced.

    Args:
        layers: all layers, without experts.
        routed: experts of all layers.
        routed_arrays: arrays of experts.
        first: outside the layers, on the first pipeline stage.
        last: outside the layers, on the last stage.
        single: outside the layers, on a single stage.
    """

    layers: TensorSplit
    routed: float
    routed_arrays: int
    first: TensorSplit
    last: TensorSplit
    single: TensorSplit


@functools.lru_cache(maxsize=64)
def synced_parameters(config: ModelConfig) -> SyncedParameters:
    """Count a model's parameters by how their gradients are synced."""
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
    first, last, single = (
        _tensor_split([(weight, 1) for weight in weights]) for weights in outer_weights_of(config)
    )
    return SyncedParameters(
        layers=_tensor_split(dense),
        routed=float(routed),
        routed_arrays=routed_arrays,
        first=first,
        last=last,
        single=single,
    )


def _tensor_split(weights: Sequence[tuple[Weight, int]]) -> TensorSplit:
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
    return TensorSplit(
        sharded=tuple(per_index.items()),
        replicated=replicated,
        vectors=vectors,
        arrays=(arrays[0], arrays[1], arrays[2]),
    )
