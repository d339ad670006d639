"""Mesh axes over which the arguments of a compiled program are sharded, dim by dim.

XLA writes the sharding of an argument as an arrangement of devices: `devices=[2,1,2]<=[4]` tiles
the first dim in two, and `last_tile_dim_replicate` says that devices along the last tile dim hold
the same. Device ids number the mesh positions, the last axis fastest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np

from shardwise.check.hlo.groups import iota_devices

AxesByDim = tuple[tuple[str, ...], ...]  # for each dim of an array, the mesh axes that shard it
_DEVICES = re.compile(r"devices=\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))")


def sharded_axes(attributes: str, n_dims: int, mesh: Mapping[str, int]) -> AxesByDim | None:
    """The mesh axes that shard each dim of an argument; None if its sharding is not known.

    Args:
        attributes: of the parameter, with its `sharding={...}`.
    """
    _, found, text = attributes.partition("sharding={")
    if not found or text.startswith(("manual", "unknown")):
        return None
    if text.startswith("replicated"):
        return ((),) * n_dims
    match = _DEVICES.match(text)
    n_devices = math.prod(mesh.values())
    if match is None:
        return None
    tiles_text, dims, permutation, listed = match.groups()
    tiles = [int(size) for size in tiles_text.split(",")]
    if math.prod(tiles) != n_devices:
        return None
    if listed:
        devices = np.array([int(number) for number in listed.split(",")])
    else:
        devices = iota_devices(n_devices, dims, permutation)
    # Position of each device in the arrangement, then in the mesh.
    positions = np.empty(n_devices, dtype=np.int64)
    positions[devices.reshape(-1)] = np.arange(n_devices)
    tile_indices = np.unravel_index(positions, tiles)
    axes_by_dim = []
    for dim in range(n_dims):
        index = tile_indices[dim].reshape(tuple(mesh.values()))
        axes = []
        for axis, name in enumerate(mesh):
            if (index != index.take([0], axis=axis)).any():
                axes.append(name)
        axes_by_dim.append(tuple(axes))
    return tuple(axes_by_dim)
