"""Shapes, bytes and totals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import BadShape, BadSharding, UnknownFigure
from shardwise.estimate import sizes
from shardwise.hardware import parse_system
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
    total = sizes.total_bytes(text, shape, mesh, 1)
    assert total == shape[0] * shape[1] * sizes.replication(text, mesh)


def test_uneven_dims_round_up() -> None:
    assert sizes.local_shape("A[I_X,J]", (10, 3), {"X": 4}) == (3, 3)
    assert sizes.local_bytes(parse_array("A[I_X,J]"), (10, 3), {"X": 4}) == 18


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadShape, match="has 2 dims and shape"):
        sizes.local_shape("A[I,J]", (4,), {})
    with pytest.raises(BadSharding, match="uses mesh axis X twice"):
        sizes.local_shape("A[I_X,J_X]", (4, 4), {"X": 2})
    with pytest.raises(BadShape, match="does not fit"):
        sizes.padded_shape((4,), (2, 2))
    with pytest.raises(BadShape, match="does not fit"):
        sizes.padded_shape((4, 4), (0, 2))


def test_padding_leaves_outer_dims_alone() -> None:
    # A 128-wide matrix unit pads what is narrower: bf16[8, 100] -> [8, 128].
    assert sizes.padded_shape((7, 9, 100), (8, 128)) == (7, 16, 128)


def test_flops_of_a_sharded_matmul() -> None:
    # Book §3, question 2: A[B_X,D] . B[D,F_Y] on X4 Y8 Z4 does 2BDF/(XY) on each chip.
    einsum = parse_einsum("A[B_X,D] . W[D,F_Y] -> C[B_X,F_Y]")
    dims, mesh = {"B": 1024, "D": 4096, "F": 8192}, {"X": 4, "Y": 8, "Z": 4}
    assert derive(einsum).local_flops(dims, mesh) == 2 * 1024 * 4096 * 8192 / 32
    assert sizes.replication("C[B_X,F_Y]", mesh) == 4


def test_published_training_runs() -> None:
    # Book §4: DeepSeek-V3's 37e9 active parameters and 14.8T tokens in 2.79M H800 hours at
    # 1.513e15 fp8 FLOP/s are about 21.7 % of the peak.
    flops = sizes.training_flops(37e9, 14.8e12)
    assert flops == pytest.approx(3.29e24, rel=2e-3)
    assert flops / (2.79e6 * 3600 * 1.513e15) == pytest.approx(0.217, rel=5e-3)
    assert sizes.training_flops(1, 1, recompute=True) == 8
    assert sizes.forward_flops(70e9, 2) == 2.8e11


def test_four_checkpoints_of_llama3() -> None:
    # Book §6: 20.9 TB with four saved tensors a layer, 21.6 TB with the state, 225 chips.
    saved = sizes.saved_bytes(4e6, 80, [8192] * 4)
    assert saved == pytest.approx(20.97e12, rel=1e-3)
    assert sizes.chips_to_hold(10 * 70e9 + saved, 96e9) == pytest.approx(225, abs=1)


def test_smallest_slices_of_llama3_70b() -> None:
    # Book §8: bf16, int8 and int4 weights alone need 8.75, 4.4 and 2.2 chips of 16 GB.
    assert [sizes.chips_to_hold(70e9 * e, 16e9) for e in (2, 1, 0.5)] == [9, 5, 3]


def test_tile_intensity() -> None:
    assert sizes.tile_intensity(128, 128) == 64
    assert sizes.tile_intensity(256, 256, 1.0) == 256
    assert sizes.tile_intensity(64, 128) < sizes.tile_intensity(128, 128)


def test_adam_limit_of_a_v5p() -> None:
    assert sizes.parameters_that_fit(96e9, 10) == 9.6e9


def test_totals_of_several_slices() -> None:
    one, four = (sizes.totals(parse_system(f"v5p:16x20x28{n}")) for n in ("", "*4"))
    assert one.n_hosts == 2240
    assert four.flops_per_s == 4 * one.flops_per_s
    assert four.n_hosts == 4 * 2240
    assert one.hbm_bytes is not None
    assert four.hbm_bytes == 4 * one.hbm_bytes


def test_totals_leave_out_what_is_not_known() -> None:
    found = sizes.totals(parse_system("mi300x:8"))
    assert (found.n_chips, found.host_dram_bytes) == (8, None)
    with pytest.raises(UnknownFigure, match="dense peak at bf16"):
        sizes.totals(parse_system("cpu:8"))
