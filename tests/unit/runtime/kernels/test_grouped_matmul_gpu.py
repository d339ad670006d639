"""The grouped matmul for GPUs in Pallas' interpreter, held against XLA."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.runtime.kernels import grouped_matmul_gpu
from shardwise.runtime.kernels.compute_capability import compiling_for
from shardwise.runtime.kernels.grouped_matmul import by_xla

ROWS, INPUTS, OUTPUTS = 192, 96, 48


def arrays(dtype: Any, n_groups: int) -> tuple[jax.Array, jax.Array]:
    keys = jax.random.split(jax.random.key(0))
    scale = 20 if dtype == jnp.int8 else 1
    x_RI = scale * jax.random.normal(keys[0], (ROWS, INPUTS))
    w_EIJ = scale * jax.random.normal(keys[1], (n_groups, INPUTS, OUTPUTS))
    return x_RI.astype(dtype), w_EIJ.astype(dtype)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int8])
@pytest.mark.parametrize("sizes", [(100, 0, 30, 62), (0, 0, 0, 192), (3, 100, 1, 10)])
def test_each_group_has_its_matrix(sizes: tuple[int, ...], dtype: Any) -> None:
    x_RI, w_EIJ = arrays(dtype, len(sizes))
    sizes_E = jnp.array(sizes, jnp.int32)
    y_RJ = jax.jit(lambda *x: grouped_matmul_gpu.multiply(*x, True))(x_RI, w_EIJ, sizes_E)
    exact = by_xla(x_RI.astype(jnp.float32), w_EIJ.astype(jnp.float32), sizes_E)
    assert y_RJ.shape == exact.shape
    n = sum(sizes)
    np.testing.assert_allclose(y_RJ[:n].astype(jnp.float32), exact[:n], rtol=0.01, atol=0.2)


def test_gradients_are_those_of_xla() -> None:
    x_RI, w_EIJ = arrays(jnp.bfloat16, 3)
    sizes_E = jnp.array([90, 40, 62], jnp.int32)

    def gradients(multiply: Any) -> Any:
        return jax.jit(jax.vjp(multiply, x_RI, w_EIJ)[1])(jnp.ones((ROWS, OUTPUTS), jnp.bfloat16))

    by_kernel = gradients(lambda x, w: grouped_matmul_gpu.multiply(x, w, sizes_E, True))
    for one, other in zip(by_kernel, gradients(lambda x, w: by_xla(x, w, sizes_E)), strict=True):
        np.testing.assert_array_equal(one, other)


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(0, 70), min_size=1, max_size=6), n_rows=st.sampled_from((16, 64)))
def test_tiles_hold_each_row_once(sizes: list[int], n_rows: int) -> None:
    n_tiles = -(-sum(sizes) // n_rows) + len(sizes)
    expert_Z, first_Z, end_Z = map(
        np.asarray, grouped_matmul_gpu.tiles(jnp.array(sizes, jnp.int32), n_rows, n_tiles)
    )
    ends = np.cumsum(sizes)
    rows = []
    for expert, first, end in zip(expert_Z, first_Z, end_Z, strict=True):
        of_tile = range(first, min(first + n_rows, end))
        assert all(ends[expert] - sizes[expert] <= row < ends[expert] for row in of_tile)
        rows += of_tile
    assert rows == list(range(sum(sizes)))


@pytest.mark.parametrize(
    ("dtype", "shape", "capability", "expected"),
    [
        (jnp.bfloat16, (4, 96, 48), "8.0", True),
        (jnp.int8, (4, 96, 48), "8.0", True),
        (jnp.float8_e4m3fn, (4, 96, 48), "8.0", False),
        (jnp.float8_e4m3fn, (4, 96, 48), "9.0", True),
        (jnp.float32, (4, 96, 48), "9.0", False),
        (jnp.bfloat16, (4, 100, 48), "9.0", False),
    ],
)
def test_what_the_kernel_supports(
    dtype: Any, shape: tuple[int, ...], capability: str, expected: bool
) -> None:
    w_EIJ = jax.ShapeDtypeStruct(shape, dtype)
    x_RI: Any = jax.ShapeDtypeStruct((64, shape[1]), dtype)
    with compiling_for(capability):
        assert grouped_matmul_gpu.supports(x_RI, w_EIJ) == expected
