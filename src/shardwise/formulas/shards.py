"""Shards of an array on a mesh: shapes, bytes, replicas and padding. Book §2, §3, §9."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from shardwise.arrays import Num
from shardwise.errors import BadShape
from shardwise.ops.einsum import Array, local_size, shards
from shardwise.ops.notation import parse_array


def _as_array(array: str | Array) -> Array:
    return parse_array(array) if isinstance(array, str) else array


def _with_sizes(array: str | Array, shape: Sequence[int]) -> tuple[Array, dict[str, int]]:
    parsed = _as_array(array)
    if len(parsed.dims) != len(shape):
        raise BadShape(
            f"{parsed} has {len(parsed.dims)} dims and shape {tuple(shape)} {len(shape)}."
        )
    return parsed, dict(zip(parsed.names, shape, strict=True))


def local_shape(
    array: str | Array, shape: Sequence[int], mesh: Mapping[str, int]
) -> tuple[int, ...]:
    """The shape of the largest shard: each dim divided by its mesh axes and rounded up.

    >>> local_shape("A[I_X,J_Y]", (4, 128), {"X": 2, "Y": 2})
    (2, 64)

    Raises:
        BadSharding: The text is not an array, or uses a mesh axis twice.
        BadShape: The array and the shape differ in their number of dims.
    """
    parsed, sizes = _with_sizes(array, shape)
    return tuple(int(local_size(dim, sizes, mesh)) for dim in parsed.dims)


def local_bytes(
    array: str | Array, shape: Sequence[int], mesh: Mapping[str, int], element_bytes: Num = 2.0
) -> Num:
    """Bytes of the largest shard of an array. Book §3."""
    return math.prod(local_shape(array, shape, mesh)) * element_bytes


def replication(array: str | Array, mesh: Mapping[str, int]) -> float:
    """Copies of an array on a mesh: the product of the mesh axes that do not shard it. Book §3.

    >>> replication("A[I_X,J,K]", {"X": 4, "Y": 8, "Z": 2})
    16.0
    """
    parsed = _as_array(array)
    return float(math.prod(mesh.values()) / shards(parsed.axes, mesh))


def total_bytes(
    array: str | Array, shape: Sequence[int], mesh: Mapping[str, int], element_bytes: Num = 2.0
) -> Num:
    """Bytes of an array on all chips of the mesh together, copies included. Book §3."""
    return local_bytes(array, shape, mesh, element_bytes) * math.prod(mesh.values())


def padded_shape(shape: Sequence[int], tile: Sequence[int]) -> tuple[int, ...]:
    """A shape rounded up to whole tiles. Book §2, §9.

    A tile with fewer dims than the shape pads the last dims of the shape.

    >>> padded_shape((3, 5), (2, 2))
    (4, 6)
    """
    full_tile = (1,) * (len(shape) - len(tile)) + tuple(tile)
    if len(full_tile) != len(shape) or min(full_tile) < 1:
        raise BadShape(f"tile {tuple(tile)} does not fit a shape of {len(shape)} dims.")
    return tuple(-(-n // width) * width for n, width in zip(shape, full_tile, strict=True))
