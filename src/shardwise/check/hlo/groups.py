"""Which devices a collective joins, and the mesh axes whose groups those are.

Device ids are positions in the mesh, the last axis fastest. XLA writes groups in four ways:

    {{0,1},{2,3}}                        listed; {} is all devices
    [2,2]<=[2,2]T(1,0)                   reshape of a transposed count
    mesh['a'=2,'b'=4] {'a'}              axes of a mesh of its own; 'b':(2)2 is a part of 'b'
    source_target_pairs={{0,1},{1,0}}    of a permutation
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from shardwise.errors import BadInput

Devices = npt.NDArray[np.int64]

_MESH = re.compile(
    r"mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? ?\{([^}]*)\}"
)
_AXIS = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")
_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_LISTED = re.compile(r"\{((?:\{[\d, ]*\},? ?)*)\}")
_ONE = re.compile(r"\{([\d, ]*)\}")


def groups(attributes: str, n_devices: int) -> Devices:
    """Replica groups as rows, [groups, size]; rows of unequal groups are filled with -1.

    Raises:
        BadInput: when there are none or they are in a notation that this reader does not know.
    """
    _, _, text = attributes.partition("replica_groups=")
    if found := _MESH.match(text):
        return _of_mesh(n_devices, *found.groups())
    if found := _IOTA.match(text):
        shape, order, turn = found.groups()
        return _ordered(n_devices, order, turn).reshape(_numbers(shape))
    if found := _LISTED.match(text):
        rows = _rows([_numbers(g) for g in _ONE.findall(found[1])])
        return np.arange(n_devices).reshape(1, -1) if rows is None else rows
    raise BadInput(f"replica groups in a notation that this reader does not know: {text[:80]}")


def pairs(attributes: str) -> Devices:
    """Source and target of each pair of a permutation, [pairs, 2]."""
    _, _, text = attributes.partition("source_target_pairs=")
    found = _LISTED.match(text)
    if not found:
        raise BadInput(f"pairs in a notation that this reader does not know: {text[:80]}")
    listed = [_numbers(pair) for pair in _ONE.findall(found[1])]
    return np.array(listed, dtype=np.int64).reshape(-1, 2)


def axes_of(devices: Devices, mesh: Mapping[str, int]) -> tuple[str, ...] | None:
    """The mesh axes along which the devices of each group differ, and no others.

    The group of the first device says which axes those can be; then all groups are compared.

    Returns:
        None when the groups are not those of whole axes of this mesh.
    """
    sizes = _of_one_slice(tuple(mesh.values()), devices.size)
    if sizes is None or devices.min() < 0:
        return None
    places = np.unravel_index(devices[0], sizes) if sizes else ()
    varies = [i for i, along in enumerate(places) if along.min() != along.max()]
    wanted = _split(np.arange(math.prod(sizes)).reshape(sizes), varies)
    if wanted.shape != devices.shape or not np.array_equal(_sorted(wanted), _sorted(devices)):
        return None
    names = tuple(mesh)
    return tuple(names[i] for i in varies)


def axes_between(moves: Devices, mesh: Mapping[str, int]) -> tuple[str, ...] | None:
    """The mesh axes along which some source of a permutation differs from its target."""
    sizes = tuple(mesh.values())
    if moves.size and moves.max() >= math.prod(sizes):
        return None
    here, there = (np.unravel_index(moves[:, i], sizes) for i in (0, 1))
    return tuple(name for name, a, b in zip(mesh, here, there, strict=True) if (a != b).any())


def _of_one_slice(sizes: tuple[int, ...], n_devices: int) -> tuple[int, ...] | None:
    """The mesh of `n_devices`: a program for several slices numbers the devices of one of them.

    Slices are taken to lie along the first axes.
    """
    left, over = divmod(math.prod(sizes), n_devices)
    if over:
        return None
    inner = []
    for size in sizes:
        outside = math.gcd(left, size)
        left //= outside
        inner.append(size // outside)
    return tuple(inner) if left == 1 else None


def _of_mesh(
    n_devices: int, sizes: str, shape: str | None, turn: str | None, chosen: str
) -> Devices:
    """Groups along some axes of a mesh that the program names itself; `'a':(2)4` is the part of
    size 4 of axis a that comes after its first part of size 2."""
    lengths = {name: int(n) for name, n in re.findall(r"'([^']+)'=(\d+)", sizes)}
    dims: list[int] = []
    taken: list[int] = []
    parts = {name: (pre, size) for name, pre, size in _AXIS.findall(chosen)}
    for name, length in lengths.items():
        if name in parts and parts[name][0]:
            before, size = int(parts[name][0]), int(parts[name][1])
            dims += [before, size, length // (before * size)]
            taken.append(len(dims) - 2)
        else:
            dims.append(length)
            taken += [len(dims) - 1] if name in parts else []
    return _split(_ordered(n_devices, shape, turn).reshape(dims), taken)


def _ordered(n_devices: int, shape: str | None, turn: str | None) -> Devices:
    """Devices in the order `[2,4]T(1,0)`."""
    devices = np.arange(n_devices)
    if shape:
        devices = devices.reshape(_numbers(shape))
    return devices.transpose(_numbers(turn)) if turn else devices


def _split(devices: Devices, axes: list[int]) -> Devices:
    """Groups of devices that differ along `axes` only, as rows."""
    size = math.prod(devices.shape[a] for a in axes)
    return np.moveaxis(devices, axes, range(-len(axes), 0)).reshape(-1, size)


def _sorted(devices: Devices) -> Devices:
    """The same groups in one order."""
    inside = np.sort(devices, axis=1)
    return inside[np.argsort(inside[:, 0])]


def _rows(listed: list[list[int]]) -> Devices | None:
    width = max((len(group) for group in listed), default=0)
    if not width:
        return None
    return np.array([group + [-1] * (width - len(group)) for group in listed], dtype=np.int64)


def _numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",") if n.strip()]
