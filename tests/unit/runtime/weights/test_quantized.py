"""Weights quantized in groups: no further from the originals than half a step."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from shardwise.errors import BadInput
from shardwise.runtime.weights.quantized import dequantized, group_extents, quantize_groups
from shardwise.strategy.mesh import Mesh
from tests.unit.runtime import paged_cases

LEVELS = {"int4": 15, "int8": 255}
SHAPE, DIMS = (2, 8, 48, 64), (-3, -2)


@pytest.mark.parametrize(("dtype", "size"), [("int4", 16), ("int4", 96), ("int8", 48)])
def test_numbers_are_within_half_a_step(dtype: str, size: int) -> None:
    numbers = jax.random.normal(jax.random.key(0), SHAPE)
    extents = group_extents(SHAPE, DIMS, size)
    quantize = jax.jit(quantize_groups, static_argnums=(1, 2))
    grouped = quantize(numbers, dtype, extents)
    n_groups = numbers.size // size
    assert grouped.scale.size == grouped.minimum.size == n_groups
    exact = jax.jit(dequantized, static_argnums=1)(grouped, "float32")
    error = np.abs(np.asarray(exact) - np.asarray(numbers))
    # Numbers of a standard deviation of 1 lie in a range of at most 10; scale and minimum are
    # rounded to 11 bits, by which the largest number errs too.
    step = 10 / LEVELS[dtype]
    assert error.max() < step / 2 + 10 * 2**-11
    values = np.asarray(grouped.values, np.int32)
    assert (values.min(), values.max()) == (0, LEVELS[dtype])


def test_groups_of_equal_numbers_are_exact() -> None:
    numbers = np.repeat(np.array([0.0, 0.5, -3.0], np.float32), 32)[:, None]
    quantize = jax.jit(quantize_groups, static_argnums=(1, 2))
    exact = jax.jit(dequantized, static_argnums=1)(quantize(numbers, "int4", (32, 1)), "float32")
    np.testing.assert_array_equal(exact, numbers)


def test_extents_divide_the_array() -> None:
    assert group_extents((576, 1536), (-2,), 128) == (64, 1)
    assert group_extents((9, 80, 64), (-3, -2), 32) == (1, 16, 1)
    assert group_extents((9, 16, 64), (-3, -2), 32) == (1, 16, 1)
    assert group_extents((8, 16, 64), (-3, -2), 32) == (2, 16, 1)


def test_groups_are_for_integers() -> None:
    dtypes = paged_cases.FP32 | {"weights": "bf16"}
    with pytest.raises(BadInput, match="bf16 weights in groups of 32"):
        paged_cases.engine((paged_cases.DENSE, Mesh(), "copied", dtypes), group=32)
