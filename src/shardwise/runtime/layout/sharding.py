"""The plan's table of rules on a mesh: what JAX is told of every array, and how arrays move."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from shardwise.ops.sharded import Move
from shardwise.runtime.layout.mesh import RoleMesh
from shardwise.strategy.rules import Rules, layout

Array = jax.Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rules and the mesh that they speak of.

    Args:
        rules: `weights.D` -> roles.
        on: the mesh.
    """

    rules: Rules
    on: RoleMesh

    def roles(self, kind: str, dims: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Dim -> roles that shard it, of those with more than one chip."""
        found = layout(self.rules, kind, tuple(dims))
        kept = {d: tuple(r for r in roles if self.on.sizes[r] > 1) for d, roles in found.items()}
        return {d: roles for d, roles in kept.items() if roles}

    def spec(self, kind: str, dims: Sequence[str]) -> PartitionSpec:
        """How JAX lays an array out; dims that the table does not know are whole."""
        roles = self.roles(kind, dims)
        return PartitionSpec(*(self.on.names(roles.get(d, ())) or None for d in dims))

    def apply(self, move: Move, x: Array) -> Array:
        """One collective of the sharding algebra, inside `shard_map`."""
        names = self.on.names(move.axes)
        if not names or self.on.size(move.axes) == 1:
            return x
        if move.kind == "all_reduce":
            return lax.psum(x, names)
        source, target = _changed(move)
        if move.kind == "all_gather":
            # XLA's TPU compiler makes an AllReduce of one over tangled axes together.
            apart = [(name,) for name in reversed(names)] if self.on.tangled(names) else [names]
            for axes in apart:
                x = gather(x, axes, source)
            return x
        if move.kind == "reduce_scatter":
            return scatter(x, names, target)
        if move.kind == "all_to_all":
            return lax.all_to_all(x, names, split_axis=target, concat_axis=source, tiled=True)
        return self.slice(x, move.axes, target)

    def transpose(self, move: Move, ct: Array) -> Array:
        """What flows back through an AllGather: a ReduceScatter."""
        if self.on.size(move.axes) == 1:
            return ct
        dim, _ = _changed(move)
        return scatter(ct, self.on.names(move.axes), dim)

    def slice(self, x: Array, roles: Sequence[str], dim: int) -> Array:
        """This chip's part of a dim that every chip has whole."""
        n = self.on.size(roles)
        if n == 1:
            return x
        size = x.shape[dim] // n
        return lax.dynamic_slice_in_dim(x, self.index(roles) * size, size, dim)

    def index(self, roles: Sequence[str]) -> Any:
        """This chip's place along roles taken as one."""
        names = self.on.names(roles)
        return lax.axis_index(names) if names else 0

    def sum(self, x: Array, roles: Sequence[str]) -> Array:
        """AllReduce over roles."""
        return lax.psum(x, self.on.names(roles)) if self.on.size(roles) > 1 else x

    def on_chips(
        self, kernel: Callable[..., Array], arrays: Sequence[Any], dims: Sequence[str]
    ) -> Array:
        """`kernel(table, *arrays)` of what a chip holds of arrays, whose dims are single letters;
        its result is laid out as the first of them."""
        return kernel(self, *arrays)


# XLA's TPU compiler makes an AllReduce, of twice the bytes, of some ReduceScatters:
# - along tokens that stand behind a single sequence, and of large matrices. Not so where the chips
#   have a dim of their own, and the first one where nothing counts before it: in memory it is the
#   same array.
# - where it lays another dim out around that one. So the dims behind it become one, and that of
#   weights goes first.
# - over all chips of a slice. Over one axis after the other as many bytes come in, and each is a
#   ReduceScatter.


def gather(x: Array, names: tuple[str, ...], dim: int) -> Array:
    """AllGather over mesh axes along a dim; its transpose is `scatter`."""
    if math.prod(x.shape[:dim]) > 1:
        return lax.all_gather(x, names, axis=dim, tiled=True)
    parts = lax.all_gather(x.reshape(x.shape[dim:]), names, axis=0, tiled=False)
    return parts.reshape(*x.shape[:dim], -1, *x.shape[dim + 1 :])


def scatter(x: Array, names: tuple[str, ...], dim: int) -> Array:
    """ReduceScatter over mesh axes along a dim; its transpose is `gather`."""
    split = _one_by_one(names)
    if len(split) > 1:
        for axes in split:
            x = scatter(x, axes, dim)
        return x
    whole, n = x.shape, lax.axis_size(names)
    if dim > 0 and (x.ndim > 3 or 2 == dim == x.ndim - 1):
        return jnp.moveaxis(scatter(jnp.moveaxis(x, dim, 0), names, 0), 0, dim)
    if math.prod(whole[:dim]) > 1 and x.ndim > 2:
        return lax.psum_scatter(x, names, scatter_dimension=dim, tiled=True)
    before = whole[:dim] if x.ndim == 2 else ()
    own = [size for size in (whole[dim] // n, *whole[dim + 1 :]) if size > 1] or [1]
    x = x.reshape(*before, n, own[0], *([math.prod(own[1:])] if own[1:] else []))
    part = lax.psum_scatter(x, names, scatter_dimension=len(before), tiled=False)
    return part.reshape(*whole[:dim], -1, *whole[dim + 1 :])


def _one_by_one(names: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The first axis and the others, where together they are all chips, or a role cut for that."""
    sizes = jax.sharding.get_abstract_mesh().shape
    used = tuple(axis for axis in names if sizes[axis] > 1)
    every = math.prod(sizes[axis] for axis in used) == math.prod(sizes.values())
    cut = sum(axis.startswith("fsdp.") for axis in used) > 1
    return (used[:1], used[1:]) if (every or cut) and len(used) > 1 else (names,)


def dividing(spec: PartitionSpec, shape: Sequence[int], mesh: jax.sharding.Mesh) -> PartitionSpec:
    """Of a layout what divides the dims of a shape."""
    cuts = (*spec, *(None,) * (len(shape) - len(spec)))
    found = []
    for names, n in zip(cuts, shape, strict=True):
        axes = names if isinstance(names, tuple) else (names,) if names else ()
        found.append(names if n % math.prod(mesh.shape[a] for a in axes) == 0 else None)
    return PartitionSpec(*found)


def _changed(move: Move) -> tuple[int, int]:
    """(dim that loses axes, dim that gains them), -1 where there is none."""
    lost = gained = -1
    for i, (before, after) in enumerate(zip(move.before.dims, move.after.dims, strict=True)):
        if len(before.axes) > len(after.axes):
            lost = i
        if len(before.axes) < len(after.axes):
            gained = i
    return lost, gained
