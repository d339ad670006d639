"""The JAX mesh of a placement, with every device where the plan put it.

A role of the plan becomes one mesh axis, or one axis for each prime factor of its size (`data.0`,
`data.1`): an array dim that the size of the role does not divide can then be sharded over some of
these axes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from shardwise.runtime.kernels import cudnn
from shardwise.runtime.layout.ring import ring_order
from shardwise.strategy.mesh import INSIDE_OUT, ROLES, Placement
from shardwise.strategy.span import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleMesh:
    """A JAX mesh, and which of its axes belong to each role of the plan.

    Args:
        jax_mesh: the mesh of JAX.
        axes: role -> names of its mesh axes, major first.
        sizes: role -> number of chips along it.
    """

    jax_mesh: jax.sharding.Mesh
    axes: Mapping[str, tuple[str, ...]]
    sizes: Mapping[str, int]

    def axis_names(self, roles: Sequence[str]) -> tuple[str, ...]:
        """Names of the mesh axes of several roles."""
        return tuple(axis for role in roles for axis in self.axes[role])

    def size(self, roles: Sequence[str]) -> int:
        """Product of the sizes of several roles."""
        return math.prod(self.sizes[role] for role in roles)

    def dividing_axes(self, names: Sequence[str], size: int) -> tuple[str, ...]:
        """The first of the mesh axes `names` that together divide a dim of `size` elements.

        It stops at the first axis that does not divide what the axes before it leave.
        """
        dividing: list[str] = []
        for name in names:
            size, remainder = divmod(size, self.jax_mesh.shape[name])
            if remainder or not size:
                break
            dividing.append(name)
        return tuple(dividing)

    def crosses_slices(self, axis: str) -> bool:
        """Whether a mesh axis joins chips of different slices; False for an abstract mesh."""
        if not isinstance(self.jax_mesh, jax.sharding.Mesh):
            return False
        devices = self._devices_along(axis)
        first = devices[0].flat[0]
        last = devices[-1].flat[0]
        return getattr(first, "slice_index", 0) != getattr(last, "slice_index", 0)

    def share_torus_axis(self, names: Sequence[str]) -> bool:
        """Whether at least two of the mesh axes run along the same axis of the torus."""
        if not isinstance(self.jax_mesh, jax.sharding.Mesh):
            return False
        torus_axes: list[int] = []
        for axis in names:
            torus_axes += self._torus_axes(axis)
        return len(set(torus_axes)) < len(torus_axes)

    def ring_order(self, names: Sequence[str]) -> tuple[int, ...]:
        """Indices along several mesh axes in the order of a ring, of linked chips on a torus."""
        n_chips = math.prod(self.jax_mesh.shape[name] for name in names)
        if not isinstance(self.jax_mesh, jax.sharding.Mesh):
            return tuple(range(n_chips))
        dims = [self.jax_mesh.axis_names.index(name) for name in names]
        devices = np.moveaxis(self.jax_mesh.devices, dims, range(len(dims)))
        of_ring = devices.reshape(n_chips, -1)[:, 0]
        return ring_order([getattr(device, "coords", ()) for device in of_ring])

    def _torus_axes(self, axis: str) -> list[int]:
        """Torus axes along which a mesh axis runs; empty if the machine has no torus."""
        devices = self._devices_along(axis)
        coordinates = [getattr(row.flat[0], "coords", ()) for row in devices]
        torus_axes = []
        for dim, column in enumerate(zip(*coordinates, strict=True)):
            if len(set(column)) > 1:
                torus_axes.append(dim)
        return torus_axes

    def _devices_along(self, axis: str) -> np.ndarray[Any, Any]:
        """The devices of the mesh in an array whose dim 0 is the mesh axis `axis`."""
        return np.moveaxis(self.jax_mesh.devices, self.jax_mesh.axis_names.index(axis), 0)

    @property
    def platform(self) -> str:
        """`tpu`, `gpu` or `cpu`; `old tpu` where Pallas kernels cannot multiply bf16, and `old gpu`
        where cuDNN has no flash attention."""
        device = self.jax_mesh.devices.flat[0]
        platform = str(device.platform)
        if device.device_kind in ("TPU v2", "TPU v3"):
            return "old tpu"
        if cudnn.is_too_old(device):
            return "old gpu"
        return "gpu" if platform in ("cuda", "rocm") else platform


def role_mesh(
    sizes: Mapping[str, int],
    devices: np.ndarray[Any, Any],
    prime_roles: Sequence[str] = (),
    axis_sizes: Mapping[str, Sequence[int]] | None = None,
) -> RoleMesh:
    """Build a mesh from devices that `arrange` has put into the order of the roles.

    Args:
        sizes: role -> number of chips along it.
        devices: one device per chip; the roles are in the order of `ROLES`, the last one fastest.
        prime_roles: roles that become one mesh axis for each prime factor of their size.
        axis_sizes: role -> sizes of its mesh axes, major first; takes precedence over
            `prime_roles`.
    """
    axes: dict[str, tuple[str, ...]] = {}
    names: list[str] = []
    shape: list[int] = []
    for role in ROLES:
        role_shape = _prime_factors(sizes[role]) if role in prime_roles else [sizes[role]]
        role_shape = list((axis_sizes or {}).get(role, role_shape))
        axes[role] = (role,)
        if len(role_shape) > 1:
            axes[role] = tuple(f"{role}.{i}" for i in range(len(role_shape)))
        names += axes[role]
        shape += role_shape
    axis_types = (jax.sharding.AxisType.Auto,) * len(names)
    jax_mesh = jax.sharding.Mesh(devices.reshape(shape), tuple(names), axis_types=axis_types)
    return RoleMesh(jax_mesh=jax_mesh, axes=axes, sizes={role: sizes[role] for role in ROLES})


def _prime_factors(n: int) -> list[int]:
    """Prime factors of n, largest first; [1] for 1."""
    factors: list[int] = []
    divisor = 2
    while n > 1:
        while n % divisor == 0:
            factors.append(divisor)
            n //= divisor
        divisor += 1
    return factors[::-1] or [1]


def arrange(
    placement: Placement,
    sizes: Mapping[str, int],
    devices: np.ndarray[Any, Any],
    device_role: str = "",
) -> np.ndarray[Any, Any]:
    """Arrange the devices of a machine by role, as the placement maps roles to chips.

    Args:
        placement: the span of chips that each role occupies.
        sizes: role -> number of chips along it.
        devices: all devices. Dims are [slice, x, y, ..., device of the chip] on a torus, and
            [node, chip of the node, device of the chip] in a switched network.
        device_role: role along which the devices of a chip are neighbors; "" if a chip is one
            device.

    Returns:
        The same devices in an array of one dim per role, in the order of `ROLES`.
    """
    spans = dict(placement.spans)
    n_chip_dims = devices.ndim - 1
    grid = np.indices([sizes[role] for role in ROLES])
    coordinates = np.zeros((n_chip_dims, *grid.shape[1:]), int)
    switched_strides = [1] * n_chip_dims  # product of the sizes of the roles before
    for role in dict.fromkeys((*INSIDE_OUT, *ROLES)):
        index = grid[ROLES.index(role)]
        for dim, size, torus_stride in _segments(spans.get(role, Span()), n_chip_dims):
            stride = torus_stride
            if stride is None:
                stride = switched_strides[dim]
                switched_strides[dim] *= size
            coordinates[dim] += index % size * stride
            index = index // size
    by_chip = devices[tuple(coordinates)]
    device_dim = ROLES.index(device_role or ROLES[-1])
    shape = list(by_chip.shape[:-1])
    shape[device_dim] *= devices.shape[-1]
    return np.moveaxis(by_chip, -1, device_dim + 1).reshape(shape)


def _segments(span: Span, n_chip_dims: int) -> list[tuple[int, int, int | None]]:
    """Parts of a role's span: (dim of the chip array, chips along it, stride), fastest first.

    The stride is None in a switched network, where it is the product of the sizes of the roles
    that are placed further inside.
    """
    segments: list[tuple[int, int, int | None]] = []
    for ring in span.rings:
        if ring.size > 1:
            segments.append((1 + ring.axis, ring.size, ring.stride))
    for tier in span.tiers:
        segments.append((n_chip_dims - 1 if tier.is_node else 0, tier.size, None))
    return segments
