"""Sums of gradients over copies of weights, and which part of a weight a chip updates.

A weight is copied along every mesh axis that does not shard it. ZeRO deals the work of the
optimizer out over the copies: along which axes, and which dim each of them cuts, is a `Deal`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
from jax import lax
from jax.sharding import PartitionSpec

from shardwise.runtime.layout.sharding import Table, gather, scatter
from shardwise.runtime.training import int8_reduce
from shardwise.runtime.training.int8_reduce import Owing
from shardwise.runtime.weights.descriptions import ArrayInfo

Array = jax.Array

# Roles over which ZeRO deals out state, where a weight is copied along them.
DEALT = ("data", "fsdp", "context", "expert")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deal:
    """How copies of one weight share its update.

    Dims are counted from the last (-1), so that one layer's array and the stacked ones agree.

    Args:
        cuts: (mesh axes, chips over them, dim of the array that they cut).
        summed: mesh axes along which the weight is copied and its update is too.
        each: sums are taken as soon as the backward pass has a gradient, not once a step.
        rounded: mesh axes whose sums travel in int8: those of `cuts`, and others like `summed`.
    """

    cuts: tuple[tuple[tuple[str, ...], int, int], ...]
    summed: tuple[str, ...]
    each: bool
    rounded: tuple[str, ...] = ()

    def reduce(self, gradient: Array) -> Array:
        """The gradient of the part that this chip updates, summed over all copies."""
        if self.summed:
            gradient = lax.psum(gradient, self.summed)
        for axes, _, dim in self.cuts:
            gradient = scatter(gradient, axes, gradient.ndim + dim)
        return gradient

    def owing(self, gradient: Array, lost: Array) -> Owing:
        """As `reduce`, where sums are `rounded`."""
        if self.summed:
            gradient = lax.psum(gradient, self.summed)
        cut = {axis for axes, _, _ in self.cuts for axis in axes}
        everywhere = tuple(axis for axis in self.rounded if axis not in cut)
        return int8_reduce.reduced(gradient, lost, self.cuts, everywhere)

    def part(self, weight: Array) -> Array:
        """The part of a weight that this chip updates."""
        for axes, n, dim in self.cuts:
            size = weight.shape[dim] // n
            at = weight.ndim + dim
            weight = lax.dynamic_slice_in_dim(weight, lax.axis_index(axes) * size, size, at)
        return weight

    def whole(self, part: Array) -> Array:
        """All parts put together."""
        for axes, _, dim in reversed(self.cuts):
            part = gather(part, axes, part.ndim + dim)
        return part


def deal(
    info: ArrayInfo, table: Table, *, zero: int, n_microbatches: int, in_int8: bool = False
) -> Deal:
    """How the copies of a weight share its update: all of them under ZeRO 1 and 2, none under 0.

    Each axis cuts the first dim that it divides; those that cut the same dim do it together, in
    one collective. What divides nothing is updated by all copies.
    Gradients of matrices are summed with each microbatch where there is one, or where ZeRO 2 holds
    only parts of them. What is rounded is so once a step: in the backward pass of a layer, which
    uses its weights once, or at the end of the step.
    """
    on = table.mesh
    used = {axis for axes in info.axes(table).values() for axis in axes}
    shape = list(info.local_shape(table))[-len(info.weight.shape) :]
    cuts: dict[tuple[int, bool], tuple[str, ...]] = {}
    summed, rounded = [], []
    for role in [r for r in on.axes if on.sizes[r] > 1 and info.is_trained]:
        # From the inside out: what goes between slices, the outermost, is summed already.
        for axis in [a for a in reversed(on.axes[role]) if a not in used]:
            n = on.jax_mesh.shape[axis]
            shared = role in DEALT and info.is_table
            if in_int8 and shared:
                rounded.append(axis)
            dealt = zero in (1, 2) and shared
            dim = next((i for i, size in enumerate(shape) if size % n == 0), None)
            if dealt and dim is not None:
                shape[dim] //= n
                key = (dim - len(shape), on.crosses_slices(axis))
                cuts[key] = (*cuts.get(key, ()), axis)
            elif axis not in rounded:
                summed.append(axis)
    grouped = tuple(
        (axes, math.prod(on.jax_mesh.shape[axis] for axis in axes), dim)
        for (dim, _), axes in cuts.items()
    )
    # The ends of the model are used on one stage only: their copies on others are not there to sum.
    piped = any(axis in summed for axis in on.axes["pipe"])
    each = info.is_table and not piped and (zero == 2 or n_microbatches == 1)
    if rounded:
        each = each and bool(info.layers) and n_microbatches == 1 and on.sizes["pipe"] == 1
    return Deal(cuts=grouped, summed=tuple(summed), each=each, rounded=tuple(rounded))


def state_spec(info: ArrayInfo, table: Table, dealt: Deal) -> PartitionSpec:
    """Layout of the optimizer's state of a weight, as its copies deal it out."""
    axes = info.axes(table)
    names = [list(axes.get(d, ())) for d in info.dims]
    for cut, _, dim in dealt.cuts:
        names[dim] += cut
    return PartitionSpec(*(tuple(n) or None for n in names))
