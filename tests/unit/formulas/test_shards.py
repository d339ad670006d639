"""Shapes and bytes of shards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import BadShape, BadSharding
from shardwise.formulas import shards
from shardwise.ops.notation import parse_array, parse_einsum
from shardwise.ops.sharded import derive


@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    x=st.sampled_from([1, 2, 4]),
    y=st.sampled_from([1, 2, 8]),
    text=st.sampled_from(["A[I,J]", "A[I_X,J]", "A[I_X,J_Y]", "A[I_XY,J]", "A[I,J_XY]"]),
)
def test_all_chips_hold_every_copy(rows: int, columns: int, x: int, y: int, text: str) -> None:
    mesh = {"X": x, "Y": y}
    shape = (rows * x * y, columns * x * y)
    total = shards.total_bytes(text, shape, mesh, 1)
    assert total == shape[0] * shape[1] * shards.replication(text, mesh)


def test_uneven_dims_round_up() -> None:
    assert shards.local_shape("A[I_X,J]", (10, 3), {"X": 4}) == (3, 3)
    assert shards.local_bytes(parse_array("A[I_X,J]"), (10, 3), {"X": 4}) == 18


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadShape, match="has 2 dims and shape"):
        shards.local_shape("A[I,J]", (4,), {})
    with pytest.raises(BadSharding, match="uses mesh axis X twice"):
        shards.local_shape("A[I_X,J_X]", (4, 4), {"X": 2})
    with pytest.raises(BadShape, match="does not fit"):
        shards.padded_shape((4,), (2, 2))
    with pytest.raises(BadShape, match="does not fit"):
        shards.padded_shape((4, 4), (0, 2))


def test_padding_leaves_outer_dims_alone() -> None:
    # A 128-wide matrix unit pads what is narrower: bf16[8, 100] -> [8, 128].
    assert shards.padded_shape((7, 9, 100), (8, 128)) == (7, 16, 128)


def test_flops_of_a_sharded_matmul() -> None:
    # Book §3, question 2: A[B_X,D] . B[D,F_Y] on X4 Y8 Z4 does 2BDF/(XY) on each chip.
    einsum = parse_einsum("A[B_X,D] . W[D,F_Y] -> C[B_X,F_Y]")
    dims, mesh = {"B": 1024, "D": 4096, "F": 8192}, {"X": 4, "Y": 8, "Z": 4}
    assert derive(einsum).local_flops(dims, mesh) == 2 * 1024 * 4096 * 8192 / 32
    assert shards.replication("C[B_X,F_Y]", mesh) == 4
