"""Device groups of a collective, and the mesh axes along which those groups run.

Device ids number the mesh positions, the last axis fastest. XLA writes groups in four notations:

    {{0,1},{2,3}}                        lists of devices; {} is one group of all devices
    [2,2]<=[2,2]T(1,0)                   0, 1, 2, ... reshaped, transposed and reshaped again
    mesh['a'=2,'b'=4] {'a'}              axes of an inline mesh; 'b':(2)2 is a factor of axis 'b'
    source_target_pairs={{0,1},{1,0}}    pairs of a collective-permute
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from shardwise.errors import BadInput

DeviceIds = npt.NDArray[np.int64]

_MESH = re.compile(
    r"mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? ?\{([^}]*)\}"
)
_MESH_AXIS = re.compile(r"'([^']+)'=(\d+)")
_CHOSEN_AXIS = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")
_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_LISTS = re.compile(r"\{((?:\{[\d, ]*\},? ?)*)\}")
_LIST = re.compile(r"\{([\d, ]*)\}")


def replica_groups(attributes: str, n_devices: int) -> DeviceIds:
    """Replica groups as an array [groups, size]; shorter groups are padded with -1.

    Raises:
        BadInput: the attributes have no replica groups, or write them in an unknown notation.
    """
    _, _, text = attributes.partition("replica_groups=")
    if match := _MESH.match(text):
        return _mesh_groups(n_devices, *match.groups())
    if match := _IOTA.match(text):
        shape, dims, permutation = match.groups()
        return iota_devices(n_devices, dims, permutation).reshape(_integers(shape))
    if match := _LISTS.match(text):
        rows = [_integers(group) for group in _LIST.findall(match[1])]
        size = max(map(len, rows), default=0)
        if size == 0:
            return np.arange(n_devices).reshape(1, -1)
        return np.array([row + [-1] * (size - len(row)) for row in rows], dtype=np.int64)
    raise BadInput(f"unknown notation of replica groups: {text[:80]}")


def source_target_pairs(attributes: str) -> DeviceIds:
    """Source and target device of each pair of a collective-permute, [pairs, 2].

    Raises:
        BadInput: the attributes have no pairs, or write them in an unknown notation.
    """
    _, _, text = attributes.partition("source_target_pairs=")
    match = _LISTS.match(text)
    if not match:
        raise BadInput(f"unknown notation of source-target pairs: {text[:80]}")
    rows = [_integers(pair) for pair in _LIST.findall(match[1])]
    return np.array(rows, dtype=np.int64).reshape(-1, 2)


def axes_of_groups(groups: DeviceIds, mesh: Mapping[str, int]) -> tuple[str, ...] | None:
    """The mesh axes over which each group extends in full, with all other coordinates fixed.

    The first group suggests the axes; then all groups are compared with the groups along them.

    Returns:
        None if the groups do not run along whole axes of this mesh.
    """
    sizes = _mesh_of_one_slice(tuple(mesh.values()), groups.size)
    if sizes is None or groups.min() < 0:
        return None
    coordinates = np.unravel_index(groups[0], sizes) if sizes else ()
    varying = []
    for axis, positions in enumerate(coordinates):
        if positions.min() != positions.max():
            varying.append(axis)
    expected = _groups_along(np.arange(math.prod(sizes)).reshape(sizes), varying)
    if expected.shape != groups.shape or not np.array_equal(_sorted(expected), _sorted(groups)):
        return None
    names = tuple(mesh)
    return tuple(names[axis] for axis in varying)


def axes_of_pairs(pairs: DeviceIds, mesh: Mapping[str, int]) -> tuple[str, ...] | None:
    """The mesh axes along which some source differs from its target; None if ids are too large."""
    sizes = tuple(mesh.values())
    if pairs.size and pairs.max() >= math.prod(sizes):
        return None
    sources = np.unravel_index(pairs[:, 0], sizes)
    targets = np.unravel_index(pairs[:, 1], sizes)
    axes = []
    for name, source, target in zip(mesh, sources, targets, strict=True):
        if (source != target).any():
            axes.append(name)
    return tuple(axes)


def _mesh_of_one_slice(sizes: tuple[int, ...], n_devices: int) -> tuple[int, ...] | None:
    """Mesh sizes within one slice of `n_devices`, None if the mesh has no such slice.

    A collective of a multi-slice program may number only the devices of one slice. Slices are
    assumed to lie along the first axes.
    """
    n_slices, remainder = divmod(math.prod(sizes), n_devices)
    if remainder:
        return None
    slice_sizes = []
    for size in sizes:
        slices_along_axis = math.gcd(n_slices, size)
        n_slices //= slices_along_axis
        slice_sizes.append(size // slices_along_axis)
    return tuple(slice_sizes) if n_slices == 1 else None


def _mesh_groups(
    n_devices: int, mesh_text: str, shape: str | None, permutation: str | None, chosen_text: str
) -> DeviceIds:
    """Groups along the chosen axes of an inline mesh.

    `'a':(2)4` chooses a factor of axis a: a is split into sizes (2, 4, the rest), and the groups
    run along the 4.
    """
    dims: list[int] = []
    group_axes: list[int] = []
    parts = {name: (before, size) for name, before, size in _CHOSEN_AXIS.findall(chosen_text)}
    for name, length_text in _MESH_AXIS.findall(mesh_text):
        length = int(length_text)
        before_text, size_text = parts.get(name, ("", ""))
        if before_text:
            before = int(before_text)
            size = int(size_text)
            group_axes.append(len(dims) + 1)
            dims += [before, size, length // (before * size)]
        else:
            if name in parts:
                group_axes.append(len(dims))
            dims.append(length)
    return _groups_along(iota_devices(n_devices, shape, permutation).reshape(dims), group_axes)


def iota_devices(n_devices: int, shape: str | None, permutation: str | None) -> DeviceIds:
    """Devices in the order of a transposed iota `[2,4]T(1,0)`.

    Without its shape, they are 0, 1, 2, ... up to `n_devices`.
    """
    devices = np.arange(n_devices)
    if shape:
        sizes = _integers(shape)
        devices = np.arange(math.prod(sizes)).reshape(sizes)
    if permutation:
        devices = devices.transpose(_integers(permutation))
    return devices


def _groups_along(devices: DeviceIds, axes: list[int]) -> DeviceIds:
    """Groups of devices that differ only along `axes`, [groups, size]."""
    size = math.prod(devices.shape[axis] for axis in axes)
    return np.moveaxis(devices, axes, range(-len(axes), 0)).reshape(-1, size)


def _sorted(groups: DeviceIds) -> DeviceIds:
    """The same groups, sorted by first member, with the members of each sorted."""
    sorted_rows = np.sort(groups, axis=1)
    return sorted_rows[np.argsort(sorted_rows[:, 0])]


def _integers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number.strip()]
