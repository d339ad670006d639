"""Sharding rules of a plan on a mesh: partition specs of arrays, and collectives between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import PartitionSpec

from shardwise.ops.sharded import Move
from shardwise.runtime.layout.mesh import RoleMesh
from shardwise.strategy.rules import Rules, layout

Array = jax.Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Sharding rules, and the mesh over whose roles they shard arrays.

    Args:
        rules: array kind and dim (`weights.D`) -> roles that shard it.
        mesh: the mesh and its axes by role.
    """

    rules: Rules
    mesh: RoleMesh

    def roles(self, kind: str, dims: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Dim -> roles that shard it, without roles of one chip; unsharded dims are left out."""
        roles_by_dim: dict[str, tuple[str, ...]] = {}
        for dim, roles in layout(self.rules, kind, tuple(dims)).items():
            sharding = tuple(role for role in roles if self.mesh.sizes[role] > 1)
            if sharding:
                roles_by_dim[dim] = sharding
        return roles_by_dim

    @property
    def width_roles(self) -> tuple[str, ...]:
        """Roles that shard D of the residual, which those of a norm share."""
        return self.roles("residual", ("B", "T", "D")).get("D", ())

    def spec(self, kind: str, dims: Sequence[str]) -> PartitionSpec:
        """Partition spec of an array; dims without a rule for this kind of array stay whole."""
        roles = self.roles(kind, dims)
        entries = []
        for dim in dims:
            entries.append(self.mesh.axis_names(roles.get(dim, ())) or None)
        return PartitionSpec(*entries)

    def apply(self, move: Move, x: Array) -> Array:
        """Run one collective of the sharding algebra, inside `shard_map`."""
        names = self.mesh.axis_names(move.axes)
        if not names or self.mesh.size(move.axes) == 1:
            return x
        if move.kind == "all_reduce":
            return lax.psum(x, names)
        gathered_dim, scattered_dim = _changed_dims(move)
        if move.kind == "all_gather":
            if not self.mesh.share_torus_axis(names):
                return gather(x, names, gathered_dim)
            # XLA's TPU compiler would turn a single AllGather over these axes into an AllReduce.
            for name in reversed(names):
                x = gather(x, (name,), gathered_dim)
            return x
        if move.kind == "reduce_scatter":
            return scatter(x, names, scattered_dim)
        if move.kind == "all_to_all":
            return lax.all_to_all(
                x, names, split_axis=scattered_dim, concat_axis=gathered_dim, tiled=True
            )
        return self.slice(x, move.axes, scattered_dim)

    def transpose(self, move: Move, ct: Array) -> Array:
        """ReduceScatter of the cotangent `ct` of an AllGather: the transpose of `move`."""
        if self.mesh.size(move.axes) == 1:
            return ct
        dim, _ = _changed_dims(move)
        return scatter(ct, self.mesh.axis_names(move.axes), dim)

    def slice(self, x: Array, roles: Sequence[str], dim: int) -> Array:
        """Slice this chip's part out of a dim that is replicated over `roles`."""
        n_parts = self.mesh.size(roles)
        if n_parts == 1:
            return x
        size = x.shape[dim] // n_parts
        return lax.dynamic_slice_in_dim(x, self.index(roles) * size, size, dim)

    def index(self, roles: Sequence[str]) -> Any:
        """This chip's index among the chips of several roles, the last role fastest."""
        names = self.mesh.axis_names(roles)
        return lax.axis_index(names) if names else 0

    def sum(self, x: Array, roles: Sequence[str]) -> Array:
        """AllReduce over roles."""
        if self.mesh.size(roles) == 1:
            return x
        return lax.psum(x, self.mesh.axis_names(roles))

    def on_chips(
        self, kernel: Callable[..., Array], arrays: Sequence[Any], dims: Sequence[str]
    ) -> Array:
        """Run `kernel(table, *arrays)` on this chip's shards of the arrays.

        Args:
            kernel: a function whose result has the layout of the first array.
            arrays: arrays; None for an optional one that is absent.
            dims: dims of each array, as a string with one letter per dim.
        """
        return kernel(self, *arrays)


# XLA's TPU compiler turns some ReduceScatters into an AllReduce, which moves twice the bytes. These
# are the known cases, and how `gather` and `scatter` avoid them:
# - The scattered dim is that of tokens behind a batch of one sequence, or the matrix is large. The
#   compiler keeps a ReduceScatter if the chips are a separate dim of the array; dims of size 1
#   before that dim are dropped. The bytes in memory are the same.
# - The layout in memory tiles another dim around the scattered one. So the dims behind the
#   scattered dim are merged into one, and the scattered dim of weights is moved to the front.
# - The collective spans all chips of a slice. One ReduceScatter per axis, one after the other,
#   delivers the same number of bytes and is kept. SparseCores run a single one over several axes,
#   on the links of all of them, with the compiler options of training (`plan.xla_flags`).
SPARSE_CORE_CHIPS = ("TPU v5", "TPU v6 lite", "TPU7x")  # as JAX calls v5p, v6e and 7x


def gather(x: Array, names: tuple[str, ...], dim: int) -> Array:
    """AllGather over mesh axes along a dim; its transpose is `scatter`."""
    if math.prod(x.shape[:dim]) > 1:
        return lax.all_gather(x, names, axis=dim, tiled=True)
    shards = lax.all_gather(x.reshape(x.shape[dim:]), names, axis=0, tiled=False)
    return shards.reshape(*x.shape[:dim], -1, *x.shape[dim + 1 :])


def scatter(x: Array, names: tuple[str, ...], dim: int) -> Array:
    """ReduceScatter over mesh axes along a dim; its transpose is `gather`."""
    axis_groups = _axis_groups(names)
    if len(axis_groups) > 1:
        for axes in axis_groups:
            x = scatter(x, axes, dim)
        return x
    shape = x.shape
    n_chips = lax.axis_size(names)
    if dim > 0 and (x.ndim > 3 or 2 == dim == x.ndim - 1):
        return jnp.moveaxis(scatter(jnp.moveaxis(x, dim, 0), names, 0), 0, dim)
    if math.prod(shape[:dim]) > 1 and x.ndim > 2:
        return lax.psum_scatter(x, names, scatter_dimension=dim, tiled=True)
    leading = shape[:dim] if x.ndim == 2 else ()
    shard = [size for size in (shape[dim] // n_chips, *shape[dim + 1 :]) if size > 1] or [1]
    merged = [math.prod(shard[1:])] if shard[1:] else []
    x = x.reshape(*leading, n_chips, shard[0], *merged)
    part = lax.psum_scatter(x, names, scatter_dimension=len(leading), tiled=False)
    return part.reshape(*shape[:dim], -1, *shape[dim + 1 :])


def _axis_groups(names: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Split the axes of a ReduceScatter into those of several that run one after the other.

    The first axis is split off if the axes cover all chips, or if they are the axes into which
    `fsdp` was cut for this purpose. Otherwise all axes stay together, as do those of gradients on
    chips with SparseCores.
    """
    mesh = jax.sharding.get_abstract_mesh()
    sizes = mesh.shape
    used = tuple(axis for axis in names if sizes[axis] > 1)
    if {axis.split(".")[0] for axis in used} & {"fsdp", "data"}:
        device = mesh.abstract_device
        if device is not None and device.device_kind in SPARSE_CORE_CHIPS:
            return (names,)
    covers_mesh = math.prod(sizes[axis] for axis in used) == math.prod(sizes.values())
    fsdp_is_cut = sum(axis.startswith("fsdp.") for axis in used) > 1
    if len(used) > 1 and (covers_mesh or fsdp_is_cut):
        return used[:1], used[1:]
    return (names,)


def row_major(x: Array, mesh: RoleMesh) -> Array:
    """The same array; on a TPU with neighbours of its last dim side by side in memory."""
    if mesh.platform != "tpu":
        return x
    return with_layout_constraint(x, Layout(major_to_minor=tuple(range(x.ndim))))


def divisible_spec(
    spec: PartitionSpec, shape: Sequence[int], mesh: jax.sharding.Mesh
) -> PartitionSpec:
    """Replicate the dims of a shape that the axes of their partition spec do not divide."""
    padded_spec = (*spec, *(None,) * (len(shape) - len(spec)))
    entries = []
    for names, size in zip(padded_spec, shape, strict=True):
        axes = names or ()
        if isinstance(axes, str):
            axes = (axes,)
        n_shards = math.prod(mesh.shape[axis] for axis in axes)
        entries.append(names if size % n_shards == 0 else None)
    return PartitionSpec(*entries)


def _changed_dims(move: Move) -> tuple[int, int]:
    """(dim that the move gathers, dim that it shards), -1 if there is no such dim."""
    gathered_dim = -1
    scattered_dim = -1
    for dim, (before, after) in enumerate(zip(move.before.dims, move.after.dims, strict=True)):
        if len(before.axes) > len(after.axes):
            gathered_dim = dim
        if len(before.axes) < len(after.axes):
            scattered_dim = dim
    return gathered_dim, scattered_dim
