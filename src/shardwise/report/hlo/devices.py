"""Replica groups in words: sizes and strides, and the mesh axes that they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shardwise.check.explained.devices import JoinedDevices
from shardwise.report.words import counted, listed

MAX_DEVICES = 8  # of the first group that are written out
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")


def device_rows(devices: JoinedDevices) -> Iterator[tuple[str, str]]:
    """Labelled lines: the groups, and the axes of a mesh along which they run."""
    members = ",".join(map(str, devices.first_group[:MAX_DEVICES]))
    dots = ",..." if len(devices.first_group) > MAX_DEVICES else ""
    if devices.is_permute:
        yield (
            "pairs",
            f"{counted(devices.n_groups, 'pair')}, the first {{{members}}}: {_axes(devices)}",
        )
        return
    strides = [f"{stride:,}" for stride in devices.strides]
    stride = ""
    if strides:
        stride = f" with {'stride' if len(strides) == 1 else 'strides'} {listed(strides)}"
    groups = f"{counted(devices.n_groups, 'group')} of {devices.group_size:,}"
    if devices.n_groups > 1:
        groups = f"groups of {devices.group_size:,}"
    yield "groups", f"{groups}{stride}, the first {{{members}{dots}}}: {_axes(devices)}"
    if not devices.axes and devices.mesh:
        yield "", f"as a mesh of their own: {_own_grid(devices)}"


def _axes(devices: JoinedDevices) -> str:
    """The mesh axes: those of the mesh if it is known, else those that the groups suggest."""
    if devices.axes:
        axis = "axis" if len(devices.axes) == 1 else "axes"
        named = f"the mesh {axis} {listed(list(devices.axes))} of {_mesh(devices.mesh)}"
        if devices.is_reordered:
            named += ", the last axis fastest (in the given order they are no whole axes)"
        return named
    if devices.mesh:
        return f"no whole axes of {_mesh(devices.mesh)}"
    if devices.is_permute:
        return "--mesh says along which axis"
    return _own_grid(devices)


def _own_grid(devices: JoinedDevices) -> str:
    """The smallest mesh of which the groups are axes."""
    if not devices.grid:
        return "on no grid of devices that are numbered in order"
    if len(devices.grid_axes) == len(devices.grid):
        return "all devices"
    sizes = " × ".join(f"{size:,}" for size in devices.grid)
    places = [_ORDINALS[axis] for axis in devices.grid_axes if axis < len(_ORDINALS)]
    ways = "-way, ".join(f"{devices.grid[axis]:,}" for axis in devices.grid_axes)
    axis = "axis" if len(places) == 1 else "axes"
    return f"{ways}-way, the {listed(places)} {axis} of a mesh {sizes}, the last axis fastest"


def _mesh(mesh: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in mesh.items() if size > 1)
