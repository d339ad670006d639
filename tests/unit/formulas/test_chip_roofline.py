"""Rooflines of operations written with their dtypes, and of a model's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import BadInput, BadSharding, UnknownFigure, UnknownName
from shardwise.formulas.chip_roofline import operation_roofline, parse_typed, roofline
from shardwise.formulas.roofline import Matmul
from shardwise.hardware import parse_chip
from shardwise.models import load

MIXED = "bf16[B,D] x int8[D,F] -> bf16[B,F]"
V5E = parse_chip("v5e")


def test_int8_weights_halve_the_critical_batch() -> None:
    """B_crit is 240 for bf16 weights and 120 for int8 weights at bf16 FLOPs. Book §1."""
    wide = {"D": 2**20, "F": 2**20}
    whole = roofline("bf16[B,D] x bf16[D,F] -> bf16[B,F]", on="v5e", sizes={"B": 1, **wide})
    half = roofline(MIXED, on="v5e", sizes={"B": 1, **wide})
    fast = roofline("int8[B,D] x int8[D,F] -> int8[B,F]", on="v5e", sizes={"B": 1, **wide})
    assert whole.critical_size == pytest.approx(240, rel=5e-3)
    assert half.critical_size == pytest.approx(120, rel=5e-3)
    assert fast.critical_size == pytest.approx(240, rel=5e-3)
    assert fast.peak_flops_per_s == 2 * half.peak_flops_per_s


@given(st.integers(1, 4096), st.integers(1, 2**16), st.integers(1, 2**16))
def test_a_point_is_the_roofline_of_its_matmul(b: int, d: int, f: int) -> None:
    result = roofline(MIXED, on=V5E, sizes={"B": b, "D": d, "F": f})
    exact = Matmul(B=b, D=d, F=f, a_bytes=2, w_bytes=1, out_bytes=2)
    (point,) = result.points
    assert (point.flops, point.n_bytes) == (exact.flops, exact.n_bytes)
    assert point.intensity == pytest.approx(exact.intensity, rel=1e-12)
    peak, bandwidth = V5E.peak("bf16"), V5E.need("hbm_bytes_per_s")
    assert point.math_s == point.flops / peak
    assert point.hbm_s == point.n_bytes / bandwidth
    assert point.flops_per_s == pytest.approx(min(peak, point.intensity * bandwidth), rel=1e-12)
    critical = exact.critical_batch(peak, bandwidth)
    if result.critical_size is None:
        assert critical == float("inf")
    else:
        assert result.critical_size == pytest.approx(critical, rel=1e-9)


def test_the_critical_size_divides_the_points() -> None:
    result = roofline(MIXED, on="v5e", sizes={"B": [1, 64, 124, 125, 1024], "D": 8192, "F": 32768})
    assert 124 < result.critical_size < 125
    assert [p.bound for p in result.points] == ["hbm", "hbm", "hbm", "compute", "compute"]
    assert result.dim == "B"
    assert result.sizes == {"D": 8192, "F": 32768}


def test_a_dot_product_never_binds_on_compute() -> None:
    result = roofline("bf16[D] x bf16[D] -> bf16[]", on="v5e", sizes={"D": [4, 2**30]})
    assert result.critical_size is None
    assert {p.bound for p in result.points} == {"hbm"}


def test_roofs_of_a_chip() -> None:
    result = roofline(MIXED, on="v5p", sizes={"B": 1, "D": 8, "F": 8})
    chip, roofs = parse_chip("v5p"), {r.name: r for r in result.roofs}
    assert roofs["hbm"].bytes_per_s == chip.hbm_bytes_per_s
    assert roofs["ici"].bytes_per_s == 2 * chip.ici.link_bytes_per_s_one_way
    assert all(
        r.critical_intensity == result.peak_flops_per_s / r.bytes_per_s for r in result.roofs
    )
    gpu = {r.name for r in roofline(MIXED, on="h100", sizes={"B": 1, "D": 8, "F": 8}).roofs}
    assert {"hbm", "nvlink", "scale-out"} <= gpu
    assert "ici" not in gpu


@pytest.mark.parametrize(
    ("text", "error", "told"),
    [
        ("x", BadSharding, '"x" is not a matmul with dtypes. Write it as bf16[B,D] x int8[D,F]'),
        ("bf16[B,D] x bf16[D,F]", BadSharding, "is not a matmul with dtypes"),
        ("[B,D] x bf16[D,F] -> bf16[B,F]", BadSharding, "is not a matmul with dtypes"),
        ("bf16[B_X,D] x bf16[D,F] -> bf16[B_X,F]", BadSharding, '"[B_X,D]" is not a list of dims'),
        ("bf16[B,D] x bf17[D,F] -> bf16[B,F]", UnknownName, 'unknown dtype "bf17". Close: "bf16"'),
        ("bf16[B,D] x bf16[D,F] -> bf16[B,G]", BadSharding, "has dim G, which neither input has"),
        ("bf16[B,B] x bf16[B,F] -> bf16[B,F]", BadSharding, "has dim B twice"),
    ],
)
def test_operations_that_are_none(text: str, error: type[Exception], told: str) -> None:
    with pytest.raises(error) as raised:
        parse_typed(text)
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({}, "dim B has no size. Give B=1024.\ndim F has no size. Give F=1024.\ndim D has no size"),
        ({"B": [1, 2], "D": [1, 2], "F": 4}, "dims B, D all have ranges. Give a range to one."),
        ({"B": 1, "D": 1, "F": 4, "Z": 3}, 'unknown dim "Z". Known: "B", "D", "F".'),
    ],
)
def test_sizes_that_are_missing_or_too_many(sizes: dict[str, object], told: str) -> None:
    with pytest.raises(BadInput) as error:
        roofline(MIXED, on="v5e", sizes=sizes)
    assert told in str(error.value)


@pytest.mark.parametrize("sizes", [{"B": 0}, {"B": -5}, {"B": [1, 0]}, {"D": -3}, {"B": []}])
def test_sizes_that_cannot_be(sizes: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        roofline(MIXED, on="v5e", sizes={"B": 1, "D": 8, "F": 8, **sizes})


def test_a_peak_is_not_borrowed() -> None:
    with pytest.raises(UnknownFigure, match="v5e has no figure for the dense peak at fp4"):
        roofline(MIXED, on="v5e", sizes={"B": 1, "D": 8, "F": 8}, compute="fp4")
    with pytest.raises(UnknownName, match='unknown chip "v5"'):
        roofline(MIXED, on="v5", sizes={"B": 1, "D": 8, "F": 8})


def test_an_operation_of_a_model() -> None:
    model = load("llama3-70b")
    result = operation_roofline(model, V5E, "mlp.up", batch=[1, 240, 512], weights="bf16")
    assert [p.flops for p in result.points] == [2 * b * 8192 * 28672 for b in (1, 240, 512)]
    assert result.critical_size == pytest.approx(250, rel=1e-2)
    int8 = operation_roofline(model, V5E, "mlp.up", batch=[1], weights="int8")
    assert int8.critical_size == pytest.approx(125, rel=2e-2)


def test_attention_counts_what_is_seen() -> None:
    model, seq = load("llama3-70b"), 4096
    (point,) = operation_roofline(model, V5E, "attn.scores", batch=[2], seq=seq).points
    assert point.flops == 2 * 2 * seq * seq * 64 * 128 / 2
    # Queries and keys are read; the scores stay on the chip.
    assert point.n_bytes == 2 * 2 * seq * 128 * (64 + 8)


def test_an_operation_that_the_model_has_not() -> None:
    with pytest.raises(
        UnknownName, match=r'unknown operation of llama3-70b "mlp\.upp". Close: "mlp\.up"'
    ):
        operation_roofline(load("llama3-70b"), V5E, "mlp.upp", batch=[1])
    names = {"attn.q", "attn.values", "mlp.gate", "mlp.down", "unembed"}
    for name in names:
        found = operation_roofline(load("llama3-70b"), V5E, name, batch=[8], seq=512)
        assert found.points[0].flops > 0
    with pytest.raises(BadInput, match=r"attn\.scores runs over the tokens .* Give seq"):
        operation_roofline(load("llama3-70b"), V5E, "attn.scores", batch=[8])


def test_experts_that_no_token_meets_are_not_read() -> None:
    config = load("deepseek-v3")
    one, many = operation_roofline(config, V5E, "moe.up", batch=[1, 4096]).points
    weight = 7168 * 2048 * 2
    assert weight * 8 < one.n_bytes < weight * 8.1  # 8 of 256 experts
    assert many.n_bytes > weight * 256
