"""Grouped matmul by the kernel of the platform: each group of rows is multiplied by its own matrix.

x_RI has R rows of width I, w_EIJ a matrix for each of E groups, y_RJ is the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.runtime.kernels import grouped_matmul_gpu
from shardwise.runtime.weights.quantized import is_narrow, sum_dtype

Array = jax.Array

LANES = 128  # of a tile
ROW_TILE = 128  # rows are a multiple of the smallest tile on TPUs
# Largest tile of 16-bit numbers: rows, contracted columns, output columns.
MAX_TILE = (512, 1024, 1024)


def takes_stacks(platform: str, dtype: Any) -> bool:
    """Whether the kernel for matrices of a dtype reads those of one layer in a stack of layers."""
    return platform == "tpu" and not is_narrow(dtype)


def grouped_matmul(
    platform: str, x_RI: Array, w_EIJ: Array, sizes_E: Array, first: Array | None = None
) -> Array:
    """Multiply the rows of each group by the group's matrix; return y_RJ.

    Args:
        platform: `RoleMesh.platform` of the chips.
        x_RI: rows, those of the first group first.
        sizes_E: number of rows of each group; the result of rows behind the last one is undefined.
        first: index of the first group's matrix, where there are others (`takes_stacks`).
    """
    if takes_stacks(platform, x_RI.dtype):
        return by_megablox(x_RI, w_EIJ, sizes_E, first)
    if platform == "gpu" and grouped_matmul_gpu.supports(x_RI, w_EIJ):
        return grouped_matmul_gpu.multiply(x_RI, w_EIJ, sizes_E)
    return by_xla(x_RI, w_EIJ, sizes_E)


def by_xla(x_RI: Array, w_EIJ: Array, sizes_E: Array) -> Array:
    """Grouped matmul by `lax.ragged_dot`, also of 8-bit numbers, which megablox does not take."""
    sums = sum_dtype(x_RI.dtype)
    y_RJ: Array = lax.ragged_dot(x_RI, w_EIJ, sizes_E, preferred_element_type=sums)
    return y_RJ


def by_megablox(
    x_RI: Array,
    w_EIJ: Array,
    sizes_E: Array,
    first: Array | None = None,
    *,
    interpret: bool = False,
) -> Array:
    """Grouped matmul by megablox, JAX's Pallas kernels for TPUs.

    One of the kernels computes the gradient of the matrices, for which `lax.ragged_dot` would
    multiply all rows once per group.
    """
    from jax.experimental.pallas.ops.tpu.megablox import gmm

    n_rows = x_RI.shape[0]
    x_RI = jnp.pad(x_RI, ((0, -n_rows % ROW_TILE), (0, 0)))
    rows, contracted, columns = MAX_TILE
    tile = (math.gcd(len(x_RI), rows), contracted, columns * 2 // x_RI.dtype.itemsize)
    if first is None:
        y_RJ: Array = gmm(x_RI, w_EIJ, sizes_E, x_RI.dtype, tile, interpret=interpret)
        return y_RJ[:n_rows]
    is_transposed = stored_transposed(w_EIJ.shape)
    w = w_EIJ.swapaxes(1, 2) if is_transposed else w_EIJ
    # The kernel subtracts the offset from the index of a group to find its matrix.
    y_RJ = gmm(x_RI, w, sizes_E, x_RI.dtype, tile, -first, None, is_transposed, interpret)
    return y_RJ[:n_rows]


def stored_transposed(shape: Sequence[int]) -> bool:
    """Whether the matrices [.., I, J] of a stack are stored as [.., J, I], which pads less."""
    rows, columns = shape[-2:]
    return columns % LANES != 0 and rows % LANES == 0
