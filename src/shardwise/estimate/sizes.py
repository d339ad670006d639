"""Sizes that follow from shapes, shardings and a parameter count. Book §2 to §6, §9.

Bytes and shapes of one array on a mesh, FLOPs and bytes of a whole model by the rules of thumb
(2 and 6 per parameter and token), and what a machine has in total.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwise.arrays import Num
from shardwise.errors import BadShape
from shardwise.hardware import System
from shardwise.ops.einsum import Array, local_size, shards
from shardwise.ops.notation import parse_array


def _read(array: str | Array, shape: Sequence[int]) -> tuple[Array, dict[str, int]]:
    found = parse_array(array) if isinstance(array, str) else array
    if len(found.dims) != len(shape):
        raise BadShape(f"{found} has {len(found.dims)} dims and shape {tuple(shape)} {len(shape)}.")
    return found, dict(zip(found.names, shape, strict=True))


def local_shape(
    array: str | Array, shape: Sequence[int], mesh: Mapping[str, int]
) -> tuple[int, ...]:
    """The shape of the largest shard: each dim over the sizes of its mesh axes, rounded up.

    >>> local_shape("A[I_X,J_Y]", (4, 128), {"X": 2, "Y": 2})
    (2, 64)

    Raises:
        BadSharding: The text is no array, or uses a mesh axis twice.
        BadShape: Its dims and the shape differ in number.
    """
    found, sizes = _read(array, shape)
    return tuple(int(local_size(dim, sizes, mesh)) for dim in found.dims)


def local_bytes(
    array: str | Array, shape: Sequence[int], mesh: Mapping[str, int], element_bytes: Num = 2.0
) -> Num:
    """Bytes of an array that one chip holds."""
    return math.prod(local_shape(array, shape, mesh)) * element_bytes


def replication(array: str | Array, mesh: Mapping[str, int]) -> float:
    """Copies of an array that a mesh holds: the product of the axes that do not shard it. Book §3.

    >>> replication("A[I_X,J,K]", {"X": 4, "Y": 8, "Z": 2})
    16.0
    """
    found = parse_array(array) if isinstance(array, str) else array
    return float(math.prod(mesh.values()) / shards(found.axes, mesh))


def total_bytes(
    array: str | Array, shape: Sequence[int], mesh: Mapping[str, int], element_bytes: Num = 2.0
) -> Num:
    """Bytes of an array over all chips of the mesh, copies included."""
    return local_bytes(array, shape, mesh, element_bytes) * math.prod(mesh.values())


def padded_shape(shape: Sequence[int], tile: Sequence[int]) -> tuple[int, ...]:
    """A shape rounded up to whole tiles; a tile of fewer dims pads the last ones. Book §2, §9.

    >>> padded_shape((3, 5), (2, 2))
    (4, 6)
    """
    whole = (1,) * (len(shape) - len(tile)) + tuple(tile)
    if len(whole) != len(shape) or min(whole) < 1:
        raise BadShape(f"tile {tuple(tile)} does not fit a shape of {len(shape)} dims.")
    return tuple(-(-n // t) * t for n, t in zip(shape, whole, strict=True))


def tile_intensity(rows: Num, columns: Num, element_bytes: Num = 2.0) -> Num:
    """FLOPs per byte loaded of an output tile: 2 bm bn / (e (bm + bn)), the summed dim cancels.

    Book §1: a tile of a large matmul kept on the chip while its inputs stream by.
    """
    return 2 * rows * columns / (element_bytes * (rows + columns))


def training_flops(params: Num, tokens: Num, *, recompute: bool = False) -> Num:
    """6 P T: 2 forward and 4 backward; 8 P T where each layer's forward pass runs twice. Book §4.

    >>> training_flops(70e9, 15e12)
    6.3e+24
    """
    return (8 if recompute else 6) * params * tokens


def forward_flops(params: Num, tokens: Num) -> Num:
    """2 P T: a forward pass without attention scores. Book §4, §7."""
    return 2 * params * tokens


def saved_bytes(tokens: Num, n_layers: Num, widths: Sequence[Num], element_bytes: Num = 2.0) -> Num:
    """Activations kept for the backward pass: e B L times the widths saved per layer. Book §4, §6.

    Args:
        tokens: B of the global batch.
        n_layers: L.
        widths: Width of each array that a layer saves: `[D, F, F]`, or `[D] * 20`.
        element_bytes: e.
    """
    return element_bytes * tokens * n_layers * sum(widths)


def chips_to_hold(n_bytes: float, hbm_bytes: float) -> int:
    """The fewest chips whose HBM together holds `n_bytes`. Book §6, §8.

    >>> chips_to_hold(113e9, 16e9)
    8
    """
    return math.ceil(n_bytes / hbm_bytes)


def parameters_that_fit(hbm_bytes: Num, bytes_per_parameter: Num) -> Num:
    """P = HBM / bytes per parameter: the largest model that pure data parallelism trains. Book §5.

    10 bytes with bf16 weights and two fp32 Adam moments (`Train.weight_bytes` and
    `Train.optimizer_bytes`).
    """
    return hbm_bytes / bytes_per_parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What a whole machine has. None where no public source gives the figure of its chip."""

    n_chips: int
    n_hosts: int | None
    n_cores: int | None
    flops_per_s: float
    hbm_bytes: float | None
    hbm_bytes_per_s: float | None
    host_dram_bytes: float | None


def totals(system: System, dtype: str = "bf16") -> Totals:
    """Hosts, cores, FLOPs/s and HBM of all chips of a machine. Book §2, question 2.

    Raises:
        UnknownFigure: No peak of the chip is known at this dtype.

    >>> from shardwise.hardware import parse_system
    >>> totals(parse_system("v5p:16x20x28")).n_cores
    17920
    """
    chip, n = system.chip, system.n_chips
    hosts, dram = system.n_hosts, chip.host_dram_bytes
    return Totals(
        n_chips=n,
        n_hosts=hosts,
        n_cores=None if chip.n_cores is None else n * chip.n_cores,
        flops_per_s=n * chip.peak(dtype),
        hbm_bytes=None if chip.hbm_bytes is None else n * chip.hbm_bytes,
        hbm_bytes_per_s=None if chip.hbm_bytes_per_s is None else n * chip.hbm_bytes_per_s,
        host_dram_bytes=None if dram is None or hosts is None else hosts * dram,
    )
