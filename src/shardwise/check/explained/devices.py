"""The devices that a collective joins, as axes of a mesh."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.check.hlo.collectives import Collective
from shardwise.check.hlo.device_grid import grid_of_groups, order_of_axes
from shardwise.check.hlo.groups import DeviceIds, axes_of_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedDevices:
    """The groups of a collective.

    Args:
        n_groups, group_size: number of groups, and of devices in the largest.
        first_group: the devices of the first group; of a permute its first pair.
        strides: distances of neighbours in a group along each axis, the outermost first; () if
            the groups are on no grid.
        grid: sizes of the smallest grid whose axes are the groups, the last axis fastest.
        grid_axes: indices of the axes of `grid` along which the groups run.
        mesh: axis -> size, in the order in which `axes` are those of the groups; {} if unknown.
        axes: mesh axes along which the groups run; () if they are not whole axes.
        is_reordered: whether `mesh` has another order than the given mesh.
        is_permute: whether the groups are pairs of source and target.
    """

    n_groups: int
    group_size: int
    first_group: tuple[int, ...]
    strides: tuple[int, ...] = ()
    grid: tuple[int, ...] = ()
    grid_axes: tuple[int, ...] = ()
    mesh: dict[str, int]
    axes: tuple[str, ...]
    is_reordered: bool = False
    is_permute: bool = False


def joined_devices(collective: Collective, mesh: Mapping[str, int]) -> JoinedDevices:
    """The groups of a collective on a mesh, which may be empty if it is not known."""
    groups = collective.groups
    if collective.kind in ("permute", "send_recv"):
        return JoinedDevices(
            n_groups=len(groups),
            group_size=2,
            first_group=_first(groups),
            mesh=dict(mesh),
            axes=collective.axes,
            is_permute=True,
        )
    order = dict(mesh)
    axes = collective.axes
    if mesh and not axes and math.prod(mesh.values()) == groups.size:
        reordered = order_of_axes(groups, mesh)
        if reordered:
            order = reordered
            axes = axes_of_groups(groups, reordered) or ()
    grid = grid_of_groups(groups)
    return JoinedDevices(
        n_groups=len(groups),
        group_size=collective.group_size,
        first_group=_first(groups),
        strides=tuple(map(grid.stride, grid.axes)) if grid else (),
        grid=grid.sizes if grid else (),
        grid_axes=grid.axes if grid else (),
        mesh=order,
        axes=axes,
        is_reordered=axes != collective.axes,
    )


def _first(groups: DeviceIds) -> tuple[int, ...]:
    return tuple(device for device in groups[0].tolist() if device >= 0) if len(groups) else ()
