"""The grid of devices that replica groups suggest, when no mesh is known, or in another order.

Groups `{{0,16,32},{1,17,33},...}` are those along an axis of 3 devices, 16 apart: the mesh has
16 devices inside that axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.check.hlo.groups import DeviceIds, axes_of_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGrid:
    """A grid over whose axes the groups run, the last axis fastest.

    Args:
        sizes: sizes of its axes; no axis of size 1.
        axes: indices of the axes along which the groups run.
    """

    sizes: tuple[int, ...]
    axes: tuple[int, ...]

    def stride(self, axis: int) -> int:
        """The distance of neighbours along an axis, in device ids."""
        return math.prod(self.sizes[axis + 1 :])


def grid_of_groups(groups: DeviceIds) -> DeviceGrid | None:
    """The smallest grid over whose axes groups [groups, size] run; None if they run over none."""
    members = sorted(groups[0].tolist())
    if groups.min() < 0:
        return None
    axes: list[tuple[int, bool]] = []  # size, whether groups run along it; the innermost first
    inner = 1
    for size, stride in _strides([member - members[0] for member in members]):
        gap, remainder = divmod(stride, inner)
        if remainder or not gap:
            return None
        axes += [(gap, False), (size, True)]
        inner = stride * size
    axes.append((groups.size // inner, False))
    axes = [(size, chosen) for size, chosen in reversed(axes) if size > 1]
    sizes = tuple(size for size, _ in axes)
    chosen_axes = tuple(axis for axis, (_, chosen) in enumerate(axes) if chosen)
    mesh = {str(axis): size for axis, size in enumerate(sizes)}
    if axes_of_groups(groups, mesh) != tuple(map(str, chosen_axes)):
        return None
    return DeviceGrid(sizes=sizes, axes=chosen_axes)


def _strides(offsets: list[int]) -> list[tuple[int, int]]:
    """(size, stride) of the nested progressions that make sorted offsets from 0.

    0, 1, 4, 5 is 2 offsets 1 apart, twice 4 apart.
    """
    strides = []
    while len(offsets) > 1:
        stride = offsets[1]
        size = 1
        while size < len(offsets) and offsets[size] == size * stride:
            size += 1
        strides.append((size, stride))
        offsets = offsets[::size]
    return strides


def order_of_axes(groups: DeviceIds, mesh: Mapping[str, int]) -> dict[str, int] | None:
    """The mesh with its axes in the first order in which groups run along whole axes, else None."""
    for order in itertools.permutations(mesh.items()):
        if axes_of_groups(groups, dict(order)):
            return dict(order)
    return None
