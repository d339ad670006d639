"""Grouped matmul on GPUs, by Triton kernels in Pallas.

XLA has no kernel for `lax.ragged_dot` on GPUs: it multiplies all rows by the matrices of all groups
and masks the results. Here a tile of rows belongs to one group, whose last tile may be partly
empty; there are at most as many tiles as full ones and groups together.

x_RI has R rows of width I, those of a group together, w_EIJ a matrix for each of E groups;
Z tiles of M rows, N columns of a tile, C contracted columns (or rows) of a step. Sides of tiles are
powers of 2: where they do not divide a width, the last tile begins earlier and computes some
columns a second time.
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
from shardwise.runtime.kernels.compute_capability import (
    ADA,
    CONSUMER_BLACKWELL,
    HOPPER,
    is_at_least,
)
from shardwise.runtime.kernels.kernel_cost import KernelCost
from shardwise.runtime.weights.quantized import sum_dtype

Array = jax.Array

LEAST = 16  # of each dim of a product in Triton
MOST_ROWS, MOST_COLUMNS, MOST_CONTRACTED = 128, 128, 64
WIDE_COLUMNS = 256  # beside the most rows, on GPUs whose shared memory holds such tiles
LARGE_TILE = 64 * 128  # elements of a result from which a program has more warps
WARPS, MOST_WARPS, STAGES = 4, 8, 3
NEIGHBOURS = 16  # tiles of rows whose programs follow each other, so that the L2 cache has them


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

    Args:
        sizes_E: number of rows of each group; the result of rows behind the last one is undefined,
            and their gradient is 0.
        interpret: whether to run in Pallas' interpreter.
    """
    return _multiply(x_RI, w_EIJ, sizes_E, interpret=interpret)


def _multiply_forward(
    x_RI: Array, w_EIJ: Array, sizes_E: Array, interpret: bool
) -> tuple[Array, tuple[Array, Array, Array]]:
    return multiply(x_RI, w_EIJ, sizes_E, interpret), (x_RI, w_EIJ, sizes_E)


def _multiply_backward(
    interpret: bool, residuals: tuple[Array, Array, Array], dy_RJ: Array
) -> tuple[Array, Array, None]:
    x_RI, w_EIJ, sizes_E = residuals
    dx_RI = _multiply(dy_RJ, w_EIJ, sizes_E, transposed=True, interpret=interpret)
    is_row_R = jnp.arange(len(dx_RI)) < sizes_E.sum()
    dw_EIJ = _multiply_groups(x_RI, dy_RJ, sizes_E, interpret=interpret)
    return jnp.where(is_row_R[:, None], dx_RI, 0), dw_EIJ, None


multiply.defvjp(_multiply_forward, _multiply_backward)


def _multiply(
    x_RI: Array, w_EIJ: Array, sizes_E: Array, *, transposed: bool = False, interpret: bool
) -> Array:
    """y_RJ of the rows of each group.

    Args:
        transposed: whether the matrices are [E,J,I].
    """
    R, I = x_RI.shape
    E, J = w_EIJ.shape[0], w_EIJ.shape[1 if transposed else 2]
    m = min(MOST_ROWS, max(LEAST, 1 << (int(ceil_div(R, E)) - 1).bit_length()))
    n, c = _columns(J, m), math.gcd(I, MOST_CONTRACTED)
    expert_Z, first_Z, end_Z = tiles(sizes_E, m, int(ceil_div(R, m)) + E)
    dtype = sum_dtype(x_RI.dtype)
    x_RI = jnp.pad(x_RI, ((0, m), (0, 0)))  # tiles may begin at any row
    out = jax.ShapeDtypeStruct((R + m, J), dtype or x_RI.dtype)
    y_RJ: Array = pl.pallas_call(
        functools.partial(
            _kernel, sizes=(m, n, c), sums=dtype or jnp.float32, transposed=transposed
        ),
        grid=(len(expert_Z) * int(ceil_div(J, n)),),
        out_shape=out,
        compiler_params=_parameters(m * n),
        name=f"grouped_matmul{_cost(2 * R * I * J, x_RI, w_EIJ, out)}",
        interpret=interpret,
    )(expert_Z, first_Z, end_Z, x_RI, w_EIJ)
    return y_RJ[:R]


def _multiply_groups(x_RI: Array, dy_RJ: Array, sizes_E: Array, *, interpret: bool) -> Array:
    """The product x_RI^T dy_RJ of the rows of each group: dw_EIJ."""
    R, I = x_RI.shape
    E, J = len(sizes_E), dy_RJ.shape[1]
    m = _power_of_2(I, MOST_ROWS)
    n = _columns(J, m)
    # As many rows as `_multiply` adds to many, so that XLA pads dy_RJ once for both.
    x_RI, dy_RJ = (jnp.pad(x, ((0, MOST_ROWS), (0, 0))) for x in (x_RI, dy_RJ))
    ends_E = jnp.cumsum(sizes_E).astype(jnp.int32)
    out = jax.ShapeDtypeStruct((E, I, J), x_RI.dtype)
    dw_EIJ: Array = pl.pallas_call(
        functools.partial(_groups_kernel, sizes=(m, n, MOST_CONTRACTED)),
        grid=(int(ceil_div(I, m)), int(ceil_div(J, n)), E),
        out_shape=out,
        compiler_params=_parameters(m * n),
        name=f"grouped_matmul{_cost(2 * R * I * J, x_RI, dy_RJ, out)}",
        interpret=interpret,
    )(ends_E - sizes_E.astype(jnp.int32), ends_E, x_RI, dy_RJ)
    return dw_EIJ


def _columns(width: int, n_rows: int) -> int:
    """Columns of a tile with so many rows."""
    is_wide = n_rows == MOST_ROWS and is_at_least(HOPPER) and not is_at_least(CONSUMER_BLACKWELL)
    return _power_of_2(width, WIDE_COLUMNS if is_wide else MOST_COLUMNS)


def _power_of_2(width: int, most: int) -> int:
    """The largest power of 2 that is neither more than a width nor than `most`."""
    return min(most, 1 << (width.bit_length() - 1))


def _start(index: Any, size: int, width: int) -> Any:
    """The first column of a tile; the last tile ends with the columns.

    As a multiple of `LEAST`, by which the compiler knows that columns are aligned in memory.
    """
    return LEAST * jnp.minimum(index * (size // LEAST), (width - size) // LEAST)


def _parameters(n_elements: int) -> plgpu.CompilerParams:
    """Parameters of programs that compute so many elements each."""
    n_warps = MOST_WARPS if n_elements >= LARGE_TILE else WARPS
    return plgpu.CompilerParams(num_warps=n_warps, num_stages=STAGES)


def _cost(flops: int, *arrays: Any) -> KernelCost:
    """What a kernel computes; each of its arrays is read or written once."""
    return KernelCost(flops=flops, hbm_bytes=sum(x.size * x.dtype.itemsize for x in arrays))


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
    transposed: bool,
) -> None:
    """One tile of the result: some rows of a group, some columns."""
    m, n, c = sizes
    width, n_tiles = y_ref.shape[1], expert_ref.shape[0]
    per_neighbours = NEIGHBOURS * int(ceil_div(width, n))
    first_tile = pl.program_id(0) // per_neighbours * NEIGHBOURS
    within = pl.program_id(0) % per_neighbours
    n_neighbours = jnp.minimum(n_tiles - first_tile, NEIGHBOURS)
    tile = first_tile + within % n_neighbours
    expert, first, end = expert_ref[tile], first_ref[tile], end_ref[tile]
    rows = pl.ds(first, m)
    columns = pl.ds(_start(within // n_neighbours, n, width), n)

    def step(i: Array, y_MN: Array) -> Array:
        inner = pl.ds(i * c, c)
        w = w_ref[expert, columns, inner].T if transposed else w_ref[expert, inner, columns]
        return y_MN + plgpu.dot(x_ref[rows, inner], w).astype(sums)

    n_steps = jnp.where(first < end, jnp.int32(x_ref.shape[1] // c), jnp.int32(0))
    y_MN = lax.fori_loop(jnp.int32(0), n_steps, step, jnp.zeros((m, n), sums))
    # Rows of the next group are read, but not written.
    mask_MN = jnp.broadcast_to((first + jnp.arange(m) < end)[:, None], (m, n))
    plgpu.store(y_ref.at[rows, columns], y_MN.astype(y_ref.dtype), mask=mask_MN)


def _groups_kernel(
    first_ref: Any,
    end_ref: Any,
    x_ref: Any,
    dy_ref: Any,
    dw_ref: Any,
    *,
    sizes: tuple[int, int, int],
) -> None:
    """One tile of the product of a group's rows: some columns of x by some of dy."""
    m, n, c = sizes
    expert = pl.program_id(2)
    first, end = first_ref[expert], end_ref[expert]
    inputs = pl.ds(_start(pl.program_id(0), m, x_ref.shape[1]), m)
    outputs = pl.ds(_start(pl.program_id(1), n, dy_ref.shape[1]), n)

    def step(i: Array, dw_MN: Array) -> Array:
        rows = pl.ds(first + i * c, c)
        return dw_MN + plgpu.dot(x_ref[rows, inputs].T, dy_ref[rows, outputs])

    def last_step(i: Array, dw_MN: Array) -> Array:
        rows = pl.ds(first + i * c, c)
        is_row_C = first + i * c + jnp.arange(c) < end
        # Rows of the next group, or behind the last one, do not count: they may be no numbers.
        x_CM = jnp.where(is_row_C[:, None], x_ref[rows, inputs], 0)
        dy_CN = jnp.where(is_row_C[:, None], dy_ref[rows, outputs], 0)
        return dw_MN + plgpu.dot(x_CM.T, dy_CN)

    n_full, n_steps = (end - first) // c, pl.cdiv(end - first, jnp.int32(c))
    dw_MN = jnp.zeros((m, n), jnp.float32)
    dw_MN = lax.fori_loop(jnp.int32(0), n_full, step, dw_MN)
    dw_MN = lax.fori_loop(n_full, n_steps, last_step, dw_MN)
    dw_ref[expert, inputs, outputs] = dw_MN.astype(dw_ref.dtype)
