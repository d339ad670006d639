"""Gradient sums over copies of weights, and the part of each weight that a chip updates.

A weight is replicated along every mesh axis that does not shard it. ZeRO partitions the work of the
optimizer over the copies: an `UpdatePartition` has the axes, and the dim that each of them cuts.
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

# Roles over which ZeRO partitions the optimizer's state, for weights replicated along them.
ZERO_ROLES = ("data", "fsdp", "context", "expert")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatePartition:
    """How the copies of one weight share its update.

    Dims count from the last (-1), so that one layer's array and the stacked ones agree.

    Args:
        cuts: (mesh axes, chips over them, dim of the array that they cut).
        sum_axes: mesh axes along which the weight and its update are replicated.
        in_backward: the gradient is summed in the backward pass of each microbatch, not once per
            step.
        int8_axes: mesh axes whose sums travel in int8: those of `cuts`, and others like `sum_axes`.
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
        """Sum the gradient as `reduce` does, in int8 along `int8_axes`."""
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
    """Partition the update of a weight over its copies: under ZeRO 1 and 2, not under 0.

    Each axis cuts the first dim that it divides. Axes that cut the same dim do it together, in one
    collective. Without a dim to cut, all copies compute the update.

    Gradients of matrices are summed in the backward pass with one microbatch, or if ZeRO 2 holds
    only parts of them. Int8 rounds once per step: in the backward pass of a layer, whose weights
    are used once, or at the end of the step.
    """
    on = table.mesh
    sharding_axes = {axis for axes in info.axes(table).values() for axis in axes}
    shape = list(info.local_shape(table))[-len(info.weight.shape) :]
    cuts: dict[tuple[int, bool], tuple[str, ...]] = {}
    sum_axes = []
    int8_axes = []
    for role in on.axes:
        if on.sizes[role] == 1 or not info.is_trained:
            continue
        # From the inside out: traffic between slices, the outermost axis, is summed already.
        for axis in reversed(on.axes[role]):
            if axis in sharding_axes:
                continue
            n = on.jax_mesh.shape[axis]
            shares_update = role in ZERO_ROLES and info.is_table
            if in_int8 and shares_update:
                int8_axes.append(axis)
            dim = next((i for i, size in enumerate(shape) if size % n == 0), None)
            if zero in (1, 2) and shares_update and dim is not None:
                shape[dim] //= n
                key = (dim - len(shape), on.crosses_slices(axis))
                cuts[key] = (*cuts.get(key, ()), axis)
            elif axis not in int8_axes:
                sum_axes.append(axis)
    grouped_cuts = tuple(
        (axes, math.prod(on.jax_mesh.shape[axis] for axis in axes), dim)
        for (dim, _), axes in cuts.items()
    )
    # Embedding and head are used on one stage only: other stages have no gradients to sum.
    over_stages = any(axis in sum_axes for axis in on.axes["pipe"])
    in_backward = info.is_table and not over_stages and (zero == 2 or n_microbatches == 1)
    if int8_axes:
        once = n_microbatches == 1 and on.sizes["pipe"] == 1
        in_backward = in_backward and bool(info.layers) and once
    return UpdatePartition(
        cuts=grouped_cuts,
        sum_axes=tuple(sum_axes),
        in_backward=in_backward,
        int8_axes=tuple(int8_axes),
    )


def state_spec(info: ArrayInfo, table: Table, partition: UpdatePartition) -> PartitionSpec:
    """Layout of the optimizer's state of a weight, partitioned over its copies."""
    axes = info.axes(table)
    names = [list(axes.get(dim, ())) for dim in info.dims]
    for cut_axes, _, dim in partition.cuts:
        names[dim] += cut_axes
    return PartitionSpec(*(tuple(group) or None for group in names))
