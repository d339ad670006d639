"""Work of matmuls on one chip: FLOPs, bytes of HBM traffic, shapes. It depends on no rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from shardwise import units
from shardwise.arrays import Num, maximum
from shardwise.estimate.routing import is_routed
from shardwise.ops.einsum import Array
from shardwise.ops.program import Matmul
from shardwise.strategy.layout import Layout, Layouts, expert_degree
from shardwise.workload import Train


@dataclass(frozen=True, slots=True)
class LocalWork:
    """What one chip does in all occurrences of a matmul, whatever its rates.

    Args:
        flops: FLOPs without those that kernels compute in excess.
        n_bytes: bytes that are read and written.
        experts: experts of one layer on the chip; 1 for matmuls without experts.
        tiles: rows, columns and depth of the matmul, outside attention and scans.
    """

    flops: Num
    n_bytes: Num
    experts: Num
    tiles: tuple[Num, Num, Num] | None


def local_work(
    matmul: Matmul,
    weights: frozenset[str],
    job: Train,
    layout: Layout | Layouts,
    *,
    has_tiles: bool,
) -> LocalWork:
    """What one chip does in all occurrences of a matmul.

    Args:
        weights: names of the program's weights.
        has_tiles: whether to compute `tiles`; the matmul is then outside attention and scans.
    """
    mesh = layout.sizes
    experts = local_experts(matmul, layout)
    return LocalWork(
        flops=matmul.flops(mesh),
        n_bytes=matmul_bytes(matmul, weights, job, mesh),
        experts=experts,
        tiles=_tiles(matmul, mesh, experts) if has_tiles else None,
    )


def element_bytes(array: Array, weights: frozenset[str], job: Train) -> float:
    """Bytes per element of a weight, of a weight's gradient or of an activation.

    Weights stored in more than 16 bits are cast to 16 bits before they are sent or multiplied,
    unless the job computes in fp32.

    Args:
        array: an array of the training program.
        weights: names of the program's weights.
    """
    if array.name in weights:
        return job.weight_bytes if job.compute == "fp32" else min(job.weight_bytes, 2.0)
    if array.gradient_of in weights:
        return units.bytes_per_element(job.gradients)
    return job.activation_bytes


def matmul_bytes(
    matmul: Matmul, weights: frozenset[str], job: Train, mesh: Mapping[str, Num]
) -> Num:
    """Bytes that one chip reads and writes for all occurrences of a matmul.

    Of routed experts, only those on the chip count.
    """
    total: Num = 0.0
    for array, elements in matmul.arrays(mesh):
        n_bytes = elements * element_bytes(array, weights, job)
        if is_routed(array):
            n_bytes = n_bytes / mesh["expert"]
        total = total + n_bytes
    return total


def local_experts(matmul: Matmul, layout: Layout | Layouts) -> Num:
    """Number of experts of one layer on a chip; 1 for matmuls without experts."""
    if not matmul.program.einsum.chosen:
        return 1.0
    return maximum(1.0, matmul.sizes["E"] / expert_degree(layout.expert_tensor, layout.sizes))


def _tiles(matmul: Matmul, mesh: Mapping[str, Num], groups: Num) -> tuple[Num, Num, Num]:
    """Rows, columns and depth of a matmul on one chip.

    Args:
        matmul: a matmul outside attention and scans.
        mesh: mesh role -> chips.
        groups: number of experts on the chip, each of which has a matmul of its own.
    """
    program = matmul.program
    sizes = program.local_sizes(matmul.sizes, mesh)
    sizes["T"] = sizes.get("T", 1.0) / matmul.n_chunks
    rows, columns = program.rows, program.columns
    if program.einsum.chosen:
        sizes["E"] = 1.0
        # The rows are tokens, each once per expert to which it is routed.
        if "E" not in program.local.output.names:
            rows = ("B", "T")
            columns = tuple(dim for dim in columns if dim not in rows)
            sizes["B"] = sizes["B"] * matmul.sizes["R"] / groups
    m = math.prod(sizes[dim] for dim in rows)
    n = math.prod(sizes[dim] for dim in columns)
    k = program.local_flops(matmul.sizes, mesh) / (2 * m * n * groups * matmul.n_chunks)
    return m, n, k
