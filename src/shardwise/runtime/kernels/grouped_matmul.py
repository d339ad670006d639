"""Grouped matmul by the kernel of the platform: each group of rows has its own matrix.

R are rows, E groups, I columns that a matrix contracts, J columns of its output.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array

ROW_TILE = 128  # rows are a multiple of the smallest tile on TPUs
MAX_TILE = (512, 1024, 1024)  # rows, contracted and output columns of a tile of 16-bit numbers


def grouped_matmul(platform: str, x_RI: Array, w_EIJ: Array, sizes_E: Array) -> Array:
    """Multiply the rows of the first group by the first matrix, and so on.

    Args:
        platform: `tpu`, `gpu` or `cpu`.
        sizes_E: rows of each group. Rows behind the last group have an undefined result.
    """
    if platform == "tpu":
        return by_megablox(x_RI, w_EIJ, sizes_E)
    return by_xla(x_RI, w_EIJ, sizes_E)


def by_xla(x_RI: Array, w_EIJ: Array, sizes_E: Array) -> Array:
    """Grouped matmul by `lax.ragged_dot`."""
    y_RJ: Array = lax.ragged_dot(x_RI, w_EIJ, sizes_E)
    return y_RJ


def by_megablox(x_RI: Array, w_EIJ: Array, sizes_E: Array, *, interpret: bool = False) -> Array:
    """Grouped matmul by JAX's Pallas kernels for TPUs, one of which is for the gradient of the
    matrices.

    The gradient of `ragged_dot` multiplies all rows with those of each group.
    """
    from jax.experimental.pallas.ops.tpu.megablox import gmm

    n_rows = x_RI.shape[0]
    x_RI = jnp.pad(x_RI, ((0, -n_rows % ROW_TILE), (0, 0)))
    rows, contracted, columns = MAX_TILE
    tile = (math.gcd(len(x_RI), rows), contracted, columns * 2 // x_RI.dtype.itemsize)
    y_RJ: Array = gmm(x_RI, w_EIJ, sizes_E, x_RI.dtype, tile, interpret=interpret)
    return y_RJ[:n_rows]
