"""Residuals of int8 gradient sums (error feedback), as part of the training state.

The rounding errors of chips differ. So the residual of a weight has the shape of the weight plus a
first dim, with one row for each chip that has a copy of the weight. Residuals are in a dict, by the
path of their weight in the tree of weights, such as `layers/0/wq`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import PartitionSpec

from shardwise.runtime.dtypes import dtype
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.training.gradient_sync import UpdatePartition
from shardwise.runtime.training.int8_reduce import ErrorFeedback
from shardwise.runtime.weights.descriptions import ArrayInfo, Tree
from shardwise.workload import ERROR_FEEDBACK_DTYPE

Array = jax.Array
Residuals = Mapping[str, Array]  # path of a weight -> its residual
Reduce = Callable[[UpdatePartition, Array], Array]  # sums a gradient over copies of its weight


@dataclass(frozen=True, kw_only=True)
class FeedbackState:
    """Which weights of a step have residuals, and the shapes and shardings of these.

    Args:
        infos: descriptions of the weights.
        partitions: how copies of each weight share its update.
        table: sharding rules on the mesh.
    """

    infos: Tree
    partitions: Tree
    table: Table

    @functools.cached_property
    def int8_weights(self) -> dict[str, tuple[ArrayInfo, UpdatePartition]]:
        """Weights whose gradients are summed in int8: path -> (description, partition)."""
        partitions = self.by_name(self.partitions)
        return {
            name: (info, partitions[name])
            for name, info in self.by_name(self.infos).items()
            if partitions[name].int8_axes
        }

    def by_name(self, tree: Tree) -> dict[str, Any]:
        """Flatten a tree like that of the weights to a dict by path."""
        values: dict[str, Any] = {}
        self._map(lambda name, _, value: values.update({name: value}), tree)
        return values

    def specs(self) -> dict[str, PartitionSpec]:
        """Partition specs of the residuals."""
        return {
            name: PartitionSpec(partition.int8_axes, *info.spec(self.table))
            for name, (info, partition) in self.int8_weights.items()
        }

    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes of the residuals, without shardings."""
        return {
            name: jax.ShapeDtypeStruct(
                (self._n_copies(partition), *info.shape), dtype(ERROR_FEEDBACK_DTYPE)
            )
            for name, (info, partition) in self.int8_weights.items()
        }

    def _n_copies(self, partition: UpdatePartition) -> int:
        """Number of chips whose copies of a weight are summed in int8."""
        return math.prod(self.table.mesh.jax_mesh.shape[axis] for axis in partition.int8_axes)

    def add_residuals(self, accumulators: Tree, residuals: Residuals) -> Tree:
        """Pair accumulators with residuals, for gradients that the backward pass sums in int8."""

        def pair(name: str, _: UpdatePartition, accumulator: Array) -> Array | ErrorFeedback:
            if name in self.int8_weights and self.int8_weights[name][1].in_backward:
                return ErrorFeedback(accumulator, residuals[name][0])
            return accumulator

        return self._map(pair, accumulators)

    def reduce_gradients(
        self, gradients: Tree, residuals: Residuals, reduce: Reduce
    ) -> tuple[Tree, dict[str, Array]]:
        """Sum gradients over the copies of their weights: return (sums, new residuals).

        Args:
            gradients: gradients of this chip; an `ErrorFeedback` has been summed by the backward
                pass already.
            residuals: residuals of the previous step.
            reduce: function that sums a gradient without rounding it to int8.
        """
        new_residuals: dict[str, Array] = {}

        def reduce_one(
            name: str, partition: UpdatePartition, gradient: Array | ErrorFeedback
        ) -> Array:
            if not isinstance(gradient, ErrorFeedback):
                if name not in self.int8_weights:
                    return reduce(partition, gradient)
                info = self.int8_weights[name][0]
                gradient = _reduce_int8(info, partition, gradient, residuals[name][0])
            new_residuals[name] = gradient.residual[None]
            return gradient.gradient

        return self._map(reduce_one, gradients), new_residuals

    def _map(self, function: Callable[..., Any], tree: Tree) -> Tree:
        """Apply `function` to the path, the partition and the value in `tree` of each weight."""
        is_info = lambda x: isinstance(x, ArrayInfo)
        paths, structure = jax.tree_util.tree_flatten_with_path(self.infos, is_leaf=is_info)
        treedef: Any = structure
        partitions = treedef.flatten_up_to(self.partitions)
        values = treedef.flatten_up_to(tree)
        names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]
        mapped: Tree = jax.tree.unflatten(treedef, map(function, names, partitions, values))
        return mapped


def _reduce_int8(
    info: ArrayInfo, partition: UpdatePartition, gradient: Array, residual: Array
) -> ErrorFeedback:
    """Sum the gradient of a weight over its copies in int8.

    Stacked layers are summed one after the other, because temporary arrays of a sum are in fp32.
    """

    def reduce_layer(layer: tuple[Array, Array]) -> ErrorFeedback:
        feedback = partition.reduce_int8(*layer)
        return feedback._replace(gradient=feedback.gradient.astype(gradient.dtype))

    if info.n_layers:
        return jax.lax.map(reduce_layer, (gradient, residual))
    return reduce_layer((gradient, residual))
