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

    @property
    def platform(self) -> str:
        """`tpu`, `gpu` or `cpu`."""
        found = str(self.mesh.devices.flat[0].platform)
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
    placement: Placement, sizes: Mapping[str, int], chips: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Chips by role, as the placement lays the roles over them.

    Args:
        placement: of the mesh.
        sizes: role -> chips.
        chips: on a torus `[slice, x, y, ...]`; behind switches `[node, chip of the node]`.

    Returns:
        The same chips in an array of one dim per role, in the order of `ROLES`.
    """
    spans = dict(placement.spans)
    grid = np.indices([sizes[role] for role in ROLES])
    at = [np.zeros(grid.shape[1:], int) for _ in range(chips.ndim)]
    strides = [1] * chips.ndim  # of what lies behind switches, from the inside out
    for role in (*INSIDE_OUT, *(r for r in ROLES if r not in INSIDE_OUT)):
        index = grid[ROLES.index(role)]
        for dim, size, stride in _runs(spans.get(role, Span()), chips.ndim):
            if stride is None:
                stride = strides[dim]
                strides[dim] *= size
            at[dim] += index % size * stride
            index = index // size
    return chips[tuple(at)]


def _runs(span: Span, n_dims: int) -> list[tuple[int, int, int | None]]:
    """(dim of the chips, chips along it, how far apart or None: next to what lies further inside)
    of a role, the fastest first."""
    found: list[tuple[int, int, int | None]] = [
        (1 + ring.axis, ring.size, ring.stride) for ring in span.rings if ring.size > 1
    ]
    for tier in span.tiers:
        found.append((n_dims - 1 if tier.is_node else 0, tier.size, None))
    return found
