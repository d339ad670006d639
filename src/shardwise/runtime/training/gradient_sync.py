"""Gradient sums over copies of weights, and the part of each weight that a chip updates.

A weight is replicated along every mesh axis that does not shard it. ZeRO partitions the optimizer's
work over the copies. The `UpdatePartition` of a weight names the mesh axes of the copies, and the
dim of the weight that is split over them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
from jax import lax
from jax.sharding import PartitionSpec

from shardwise.runtime.layout.sharding import Table, gather, scatter
from shardwise.runtime.training import int8_reduce
from shardwise.runtime.training.int8_reduce import ErrorFeedback
from shardwise.runtime.weights.descriptions import ArrayInfo

Array = jax.Array

# Roles over which ZeRO partitions the optimizer's state of the weights replicated along them.
ZERO_ROLES = ("data", "fsdp", "context", "expert")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatePartition:
    """How the chips that have copies of one weight share its update.

    Args:
        cuts: the splits of the update, one after the other: (mesh axes, number of chips over them,
            dim of the array that is split). The dim counts from the last (-1), so that it holds for
            the array of one layer and for stacked layers.
        sum_axes: mesh axes along which both the weight and its update are replicated.
        in_backward: whether the gradient is summed in the backward pass of each microbatch, instead
            of once per step.
        int8_axes: mesh axes over which gradients are summed in int8: the axes of `cuts`, and axes
            along which the update is replicated but which are not in `sum_axes`.
    """

    cuts: tuple[tuple[tuple[str, ...], int, int], ...]
    sum_axes: tuple[str, ...]
    in_backward: bool
    int8_axes: tuple[str, ...] = ()

    def reduce(self, gradient: Array) -> Array:
        """Sum the gradient over all copies; return the part that this chip updates."""
        if self.sum_axes:
            gradient = lax.psum(gradient, self.sum_axes)
        for axes, _, dim in self.cuts:
            gradient = scatter(gradient, axes, gradient.ndim + dim)
        return gradient

    def reduce_int8(self, gradient: Array, residual: Array) -> ErrorFeedback:
        """Sum the gradient as `reduce` does, but in int8 over `int8_axes`."""
        if self.sum_axes:
            gradient = lax.psum(gradient, self.sum_axes)
        cut_axes = {axis for axes, _, _ in self.cuts for axis in axes}
        all_reduce_axes = tuple(axis for axis in self.int8_axes if axis not in cut_axes)
        return int8_reduce.reduce(gradient, residual, self.cuts, all_reduce_axes)

    def part(self, weight: Array) -> Array:
        """Slice the part of a weight that this chip updates."""
        for axes, n, dim in self.cuts:
            size = weight.shape[dim] // n
            start = lax.axis_index(axes) * size
            weight = lax.dynamic_slice_in_dim(weight, start, size, weight.ndim + dim)
        return weight

    def gather(self, part: Array) -> Array:
        """Gather a whole weight from the parts of all chips."""
        for axes, _, dim in reversed(self.cuts):
            part = gather(part, axes, part.ndim + dim)
        return part


def partition_update(
    info: ArrayInfo, table: Table, *, zero: int, n_microbatches: int, in_int8: bool = False
) -> UpdatePartition:
    """Partition the update of a weight over its copies, under ZeRO 1 and 2.

    Each mesh axis splits the first dim that its size divides; axes that split the same dim share a
    collective. If no dim divides, or without ZeRO 1 or 2, every copy computes the whole update.

    Gradients of matrices are summed in the backward pass if there is one microbatch, or under
    ZeRO 2, which stores only this chip's part of them; otherwise at the end of the step. A sum in
    int8 must round each gradient once per step. So it is in the backward pass only for layers,
    whose weights are used once, with one microbatch and without a pipeline.

    Args:
        info: description of the weight.
        table: sharding rules on the mesh.
        zero: stage of ZeRO, 0 to 3.
        n_microbatches: number of microbatches per step.
        in_int8: whether gradients of matrices are summed in int8.
    """
    mesh = table.mesh
    sharding_axes = {axis for axes in info.axes(table).values() for axis in axes}
    shape = list(info.local_shape(table))[-len(info.weight.shape) :]
    cuts: dict[tuple[int, bool], tuple[str, ...]] = {}
    sum_axes = []
    int8_axes = []
    for role in mesh.axes:
        if mesh.sizes[role] == 1 or not info.is_trained:
            continue
        # Innermost axis first: what the outermost one sends between slices is then reduced already.
        for axis in reversed(mesh.axes[role]):
            if axis in sharding_axes:
                continue
            n = mesh.jax_mesh.shape[axis]
            shares_update = role in ZERO_ROLES and info.is_matrix
            if in_int8 and shares_update:
                int8_axes.append(axis)
            dim = next((i for i, size in enumerate(shape) if size % n == 0), None)
            if zero in (1, 2) and shares_update and dim is not None:
                shape[dim] //= n
                key = (dim - len(shape), mesh.crosses_slices(axis))
                cuts[key] = (*cuts.get(key, ()), axis)
            elif axis not in int8_axes:
                sum_axes.append(axis)
    grouped_cuts = tuple(
        (axes, math.prod(mesh.jax_mesh.shape[axis] for axis in axes), dim)
        for (dim, _), axes in cuts.items()
    )
    # Embedding and head are used on one stage only, so the backward pass of other stages cannot
    # take part in a sum over stages.
    over_stages = any(axis in sum_axes for axis in mesh.axes["pipe"])
    in_backward = info.is_matrix and not over_stages and (zero == 2 or n_microbatches == 1)
    if int8_axes:
        rounds_once = n_microbatches == 1 and mesh.sizes["pipe"] == 1
        in_backward = in_backward and bool(info.n_layers) and rounds_once
    return UpdatePartition(
        cuts=grouped_cuts,
        sum_axes=tuple(sum_axes),
        in_backward=in_backward,
        int8_axes=tuple(int8_axes),
    )


def state_spec(info: ArrayInfo, table: Table, partition: UpdatePartition) -> PartitionSpec:
    """Partition spec of a weight's optimizer state, which the copies of the weight share."""
    axes = info.axes(table)
    names = [list(axes.get(dim, ())) for dim in info.dims]
    for cut_axes, _, dim in partition.cuts:
        names[dim] += cut_axes
    return PartitionSpec(*(tuple(group) or None for group in names))
