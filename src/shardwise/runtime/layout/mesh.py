"""The JAX mesh of a placement: every chip where the plan put it.

A role of the plan is one mesh axis, or several whose sizes are its prime factors (`data.0`,
`data.1`): a dim that the whole role does not divide can then be cut by a part of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from shardwise.runtime.kernels import cudnn
from shardwise.strategy.mesh import INSIDE_OUT, ROLES, Placement
from shardwise.strategy.span import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleMesh:
    """A mesh, and its axes by role.

    Args:
        mesh: of JAX.
        axes: role -> names of its mesh axes, the major first.
        sizes: role -> chips.
    """

    mesh: jax.sharding.Mesh
    axes: Mapping[str, tuple[str, ...]]
    sizes: Mapping[str, int]

    def names(self, roles: Sequence[str]) -> tuple[str, ...]:
        """Mesh axes of several roles."""
        return tuple(axis for role in roles for axis in self.axes[role])

    def size(self, roles: Sequence[str]) -> int:
        """Chips over several roles together."""
        return math.prod(self.sizes[role] for role in roles)

    def dealing(self, names: Sequence[str], n: int) -> tuple[str, ...]:
        """Of mesh axes the major ones, as many as deal `n` things out to their chips."""
        found: list[str] = []
        for name in names:
            n, rest = divmod(n, self.mesh.shape[name])
            if rest or not n:
                break
            found.append(name)
        return tuple(found)

    def joins_slices(self, axis: str) -> bool:
        """Whether chips along a mesh axis lie on different slices; no chips of an abstract mesh."""
        if not isinstance(self.mesh, jax.sharding.Mesh):
            return False
        devices = np.moveaxis(self.mesh.devices, self.mesh.axis_names.index(axis), 0)
        first, last = devices[0].flat[0], devices[-1].flat[0]
        return getattr(first, "slice_index", 0) != getattr(last, "slice_index", 0)

    def tangled(self, names: Sequence[str]) -> bool:
        """Whether several mesh axes have parts of the same axis of a torus."""
        if not isinstance(self.mesh, jax.sharding.Mesh):
            return False
        along = [dim for axis in names for dim in self._torus_axes(axis)]
        return len(set(along)) < len(along)

    def _torus_axes(self, axis: str) -> list[int]:
        """Axes of the torus along which the chips of a mesh axis lie, none where there is none."""
        devices = np.moveaxis(self.mesh.devices, self.mesh.axis_names.index(axis), 0)
        line = devices.reshape(len(devices), -1)[:, 0]
        at = [getattr(device, "coords", ()) for device in line]
        return [dim for dim, places in enumerate(zip(*at, strict=True)) if len(set(places)) > 1]

    @property
    def platform(self) -> str:
        """`tpu`, `gpu` or `cpu`; `old tpu` where kernels written by hand cannot multiply bf16, and
        `old gpu` where cuDNN has no flash attention."""
        first = self.mesh.devices.flat[0]
        found = str(first.platform)
        if first.device_kind in ("TPU v2", "TPU v3"):
            return "old tpu"
        if cudnn.too_old(first):
            return "old gpu"
        return "gpu" if found in ("cuda", "rocm") else found


def role_mesh(
    sizes: Mapping[str, int],
    devices: np.ndarray[Any, Any],
    factored: Sequence[str] = (),
    parts: Mapping[str, Sequence[int]] | None = None,
) -> RoleMesh:
    """A mesh over devices that are arranged by role already.

    Args:
        sizes: role -> chips.
        devices: as many as there are chips, in the order of `ROLES`, the last role the fastest.
        factored: roles that become one axis for each prime factor.
        parts: roles that become axes of these sizes, the major first.
    """
    axes: dict[str, tuple[str, ...]] = {}
    names: list[str] = []
    shape: list[int] = []
    for role in ROLES:
        cut = _primes(sizes[role]) if role in factored else [sizes[role]]
        cut = list((parts or {}).get(role, cut))
        axes[role] = tuple(f"{role}.{i}" for i in range(len(cut))) if len(cut) > 1 else (role,)
        names += axes[role]
        shape += cut
    kinds = (jax.sharding.AxisType.Auto,) * len(names)
    mesh = jax.sharding.Mesh(devices.reshape(shape), tuple(names), axis_types=kinds)
    return RoleMesh(mesh=mesh, axes=axes, sizes={role: sizes[role] for role in ROLES})


def _primes(n: int) -> list[int]:
    """Prime factors, the largest first; 1 for 1."""
    found, factor = [], 2
    while n > 1:
        while n % factor == 0:
            found.append(factor)
            n //= factor
        factor += 1
    return found[::-1] or [1]


def arrange(
    placement: Placement,
    sizes: Mapping[str, int],
    devices: np.ndarray[Any, Any],
    role: str = "",
) -> np.ndarray[Any, Any]:
    """Devices by role, as the placement lays the roles over the chips.

    Args:
        placement: of the mesh.
        sizes: role -> chips.
        devices: on a torus `[slice, x, y, ..., device of the chip]`; behind switches
            `[node, chip of the node, device of the chip]`.
        role: along which the devices of a chip are neighbours, where it has several.

    Returns:
        The same devices in an array of one dim per role, in the order of `ROLES`.
    """
    spans, n_dims, per_chip = dict(placement.spans), devices.ndim - 1, devices.shape[-1]
    grid = np.indices([sizes[role] for role in ROLES])
    at = [np.zeros(grid.shape[1:], int) for _ in range(n_dims)]
    strides = [1] * n_dims  # of what lies behind switches, from the inside out
    for name in (*INSIDE_OUT, *(r for r in ROLES if r not in INSIDE_OUT)):
        index = grid[ROLES.index(name)]
        for dim, size, stride in _runs(spans.get(name, Span()), n_dims):
            if stride is None:
                stride = strides[dim]
                strides[dim] *= size
            at[dim] += index % size * stride
            index = index // size
    by_chip = devices[tuple(at)]
    inside = ROLES.index(role) if role else len(ROLES) - 1
    shape = [n * (per_chip if i == inside else 1) for i, n in enumerate(by_chip.shape[:-1])]
    return np.moveaxis(by_chip, -1, inside + 1).reshape(shape)


def _runs(span: Span, n_dims: int) -> list[tuple[int, int, int | None]]:
    """(dim of the chips, chips along it, how far apart or None: next to what lies further inside)
    of a role, the fastest first."""
    found: list[tuple[int, int, int | None]] = [
        (1 + ring.axis, ring.size, ring.stride) for ring in span.rings if ring.size > 1
    ]
    for tier in span.tiers:
        found.append((n_dims - 1 if tier.is_node else 0, tier.size, None))
    return found
