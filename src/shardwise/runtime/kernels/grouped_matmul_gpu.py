"""Grouped matmul on GPUs, by a Triton kernel in Pallas.

XLA has no kernel for `lax.ragged_dot` on GPUs: it multiplies all rows by the matrices of all groups
and masks the results. Here a tile of rows belongs to one group, whose last tile may be partly
empty; there are at most as many tiles as full ones and groups together.

x_RI has R rows of width I, those of a group together, w_EIJ a matrix for each of E groups;
Z tiles of M rows, N columns of a tile, C contracted columns of a step.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from shardwise.arrays import ceil_div
from shardwise.runtime.kernels.compute_capability import ADA, is_at_least
from shardwise.runtime.kernels.kernel_cost import KernelCost
from shardwise.runtime.weights.quantized import sum_dtype

Array = jax.Array

LEAST = 16  # of each dim of a product in Triton
MOST_ROWS, MOST_COLUMNS, MOST_CONTRACTED = 128, 128, 64
LARGE_TILE = 64 * 128  # elements of a result from which a program has more warps
WARPS, MOST_WARPS, STAGES = 4, 8, 3


def supports(x_RI: Array, w_EIJ: Array) -> bool:
    """Whether the kernel takes these rows and matrices."""
    dtype = x_RI.dtype
    is_number = dtype in (jnp.bfloat16, jnp.float16, jnp.int8)
    if dtype == jnp.float8_e4m3fn:
        is_number = is_at_least(ADA)
    fits = all(math.gcd(n, LEAST) == LEAST for n in w_EIJ.shape[1:])
    return bool(is_number and w_EIJ.dtype == dtype and fits)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def multiply(x_RI: Array, w_EIJ: Array, sizes_E: Array, interpret: bool = False) -> Array:
    """Multiply the rows of each group by the group's matrix; return y_RJ.

    Gradients are those of `lax.ragged_dot`.

    Args:
        sizes_E: number of rows of each group; the result of rows behind the last one is undefined.
        interpret: whether to run in Pallas' interpreter.
    """
    R, I = x_RI.shape
    E, _, J = w_EIJ.shape
    m = min(MOST_ROWS, max(LEAST, 1 << (int(ceil_div(R, E)) - 1).bit_length()))
    n, c = math.gcd(J, MOST_COLUMNS), math.gcd(I, MOST_CONTRACTED)
    expert_Z, first_Z, end_Z = tiles(sizes_E, m, int(ceil_div(R, m)) + E)
    dtype = sum_dtype(x_RI.dtype)
    x_RI = jnp.pad(x_RI, ((0, m), (0, 0)))  # tiles may begin at any row
    out = jax.ShapeDtypeStruct((R + m, J), dtype or x_RI.dtype)
    read_bytes = x_RI.size * x_RI.dtype.itemsize + w_EIJ.size * w_EIJ.dtype.itemsize
    cost = KernelCost(flops=2 * R * I * J, hbm_bytes=read_bytes + out.size * out.dtype.itemsize)
    y_RJ: Array = pl.pallas_call(
        functools.partial(_kernel, sizes=(m, n, c), sums=dtype or jnp.float32),
        grid=(len(expert_Z), J // n),
        out_shape=out,
        compiler_params=plgpu.CompilerParams(
            num_warps=MOST_WARPS if m * n >= LARGE_TILE else WARPS, num_stages=STAGES
        ),
        name=f"grouped_matmul{cost}",
        interpret=interpret,
    )(expert_Z, first_Z, end_Z, x_RI, w_EIJ)
    return y_RJ[:R]


def _multiply_forward(
    x_RI: Array, w_EIJ: Array, sizes_E: Array, interpret: bool
) -> tuple[Array, tuple[Array, Array, Array]]:
    return multiply(x_RI, w_EIJ, sizes_E, interpret), (x_RI, w_EIJ, sizes_E)


def _multiply_backward(
    interpret: bool, residuals: tuple[Array, Array, Array], dy_RJ: Array
) -> tuple[Array, Array, None]:
    x_RI, w_EIJ, sizes_E = residuals
    dx_RI, dw_EIJ = jax.vjp(lambda x, w: lax.ragged_dot(x, w, sizes_E), x_RI, w_EIJ)[1](dy_RJ)
    return dx_RI, dw_EIJ, None


multiply.defvjp(_multiply_forward, _multiply_backward)


def tiles(sizes_E: Array, n_rows: int, n_tiles: int) -> tuple[Array, Array, Array]:
    """For each tile its group, its first row, and the row after the group's last one.

    A tile behind those of all groups has no rows.

    Args:
        n_rows: rows of a tile.
        n_tiles: number of tiles, enough for all groups.
    """
    ends_E = jnp.cumsum(sizes_E)
    of_group_E = (sizes_E + n_rows - 1) // n_rows
    tile_ends_E = jnp.cumsum(of_group_E)
    tile_Z = jnp.arange(n_tiles)
    expert_Z = (tile_Z[:, None] >= tile_ends_E).sum(axis=1)
    is_tile_Z = expert_Z < len(sizes_E)
    expert_Z = jnp.minimum(expert_Z, len(sizes_E) - 1)
    offset_Z = tile_Z - (tile_ends_E - of_group_E)[expert_Z]
    first_Z = jnp.where(is_tile_Z, (ends_E - sizes_E)[expert_Z] + offset_Z * n_rows, 0)
    end_Z = jnp.where(is_tile_Z, ends_E[expert_Z], 0)
    return expert_Z.astype(jnp.int32), first_Z.astype(jnp.int32), end_Z.astype(jnp.int32)


def _kernel(
    expert_ref: Any,
    first_ref: Any,
    end_ref: Any,
    x_ref: Any,
    w_ref: Any,
    y_ref: Any,
    *,
    sizes: tuple[int, int, int],
    sums: Any,
) -> None:
    """One tile of the result: some rows of a group, some columns."""
    m, n, c = sizes
    tile, column = pl.program_id(0), pl.program_id(1)
    expert, first, end = expert_ref[tile], first_ref[tile], end_ref[tile]
    rows, columns = pl.ds(first, m), pl.ds(column * n, n)

    def step(i: Array, y_MN: Array) -> Array:
        inner = pl.ds(i * c, c)
        product = plgpu.dot(x_ref[rows, inner], w_ref[expert, inner, columns])
        return y_MN + product.astype(sums)

    n_steps = jnp.where(first < end, jnp.int32(x_ref.shape[1] // c), jnp.int32(0))
    y_MN = lax.fori_loop(jnp.int32(0), n_steps, step, jnp.zeros((m, n), sums))
    # Rows of the next group are read, but not written.
    mask_MN = jnp.broadcast_to((first + jnp.arange(m) < end)[:, None], (m, n))
    plgpu.store(y_ref.at[rows, columns], y_MN.astype(y_ref.dtype), mask=mask_MN)
