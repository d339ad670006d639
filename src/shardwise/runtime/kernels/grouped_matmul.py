"""Products of groups of rows, each with a matrix of its own, by the platform's kernel."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array

ROWS = 128  # the least of a tile on TPUs: rows are a multiple of it there
TILE = (512, 1024, 1024)  # the most rows, summed columns and kept ones of a tile of 16-bit numbers


def grouped(platform: str, x_RI: Array, w_EIJ: Array, sizes_E: Array) -> Array:
    """Rows of the first group by the first matrix, and so on.

    Args:
        platform: `tpu`, `gpu` or `cpu`.
        sizes_E: rows of each group. Behind the last one the result may be any numbers, or none.
    """
    return by_megablox(x_RI, w_EIJ, sizes_E) if platform == "tpu" else by_xla(x_RI, w_EIJ, sizes_E)


def by_xla(x_RI: Array, w_EIJ: Array, sizes_E: Array) -> Array:
    """By `ragged_dot`."""
    found: Array = lax.ragged_dot(x_RI, w_EIJ, sizes_E)
    return found


def by_megablox(x_RI: Array, w_EIJ: Array, sizes_E: Array, *, interpret: bool = False) -> Array:
    """By JAX's kernels for TPUs, which have one for the gradient of the matrices.

    That of `ragged_dot` multiplies all rows with each group's.
    """
    from jax.experimental.pallas.ops.tpu.megablox import gmm

    R = x_RI.shape[0]
    x_RI = jnp.pad(x_RI, ((0, -R % ROWS), (0, 0)))
    rows, summed, kept = TILE
    tile = (math.gcd(len(x_RI), rows), summed, kept * 2 // x_RI.dtype.itemsize)
    found: Array = gmm(x_RI, w_EIJ, sizes_E, x_RI.dtype, tile, interpret=interpret)
    return found[:R]
