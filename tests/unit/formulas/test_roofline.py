"""The roofline of one operation. Book §1."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.formulas import roofline
from shardwise.formulas.roofline import Matmul, bounds, critical_batch

V5E = (1.97e14, 8.2e11)
positive = st.floats(1e-3, 1e15)
sizes = st.integers(1, 2**16)


@given(positive, positive, positive, positive)
def test_bounds(flops: float, peak: float, n_bytes: float, bandwidth: float) -> None:
    found = bounds(flops, peak, n_bytes, bandwidth)
    assert found.lower == max(flops / peak, n_bytes / bandwidth)
    assert found.upper == flops / peak + n_bytes / bandwidth
    assert found.lower <= found.upper <= 2 * found.lower * (1 + 1e-12)


def test_bounds_of_arrays() -> None:
    flops = np.array([1e12, 1e9])
    found = bounds(flops, 1e12, 1e9, 1e9)
    assert found.lower.tolist() == [1.0, 1.0]
    assert found.upper.tolist() == [2.0, 1.001]


@pytest.mark.parametrize(("weights", "batch"), [("bf16", 240), ("int8", 120), ("int4", 60)])
def test_the_critical_batch_of_the_book(weights: str, batch: int) -> None:
    assert critical_batch(*V5E, weights) == pytest.approx(batch, rel=2e-3)


@given(sizes, sizes, sizes)
def test_a_matmul(b: int, d: int, f: int) -> None:
    matmul = Matmul(B=b, D=d, F=f)
    assert matmul.flops == 2 * b * d * f
    assert matmul.n_bytes == 2 * (b * d + d * f + b * f)
    assert matmul.intensity == pytest.approx(b * d * f / (b * d + d * f + b * f), rel=1e-12)
    assert matmul.intensity <= min(b, d, f)


@given(sizes, sizes, st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from([1.0, 2.0]))
def test_the_exact_critical_batch_lies_on_the_ridge(d: int, f: int, w: float, a: float) -> None:
    batch = Matmul(B=1, D=d, F=f, w_bytes=w, a_bytes=a, out_bytes=a).critical_batch(*V5E)
    if math.isinf(batch):
        largest = Matmul(B=1e18, D=d, F=f, w_bytes=w, a_bytes=a, out_bytes=a)
        assert largest.intensity <= V5E[0] / V5E[1] * (1 + 1e-9)
    else:
        at = Matmul(B=batch, D=d, F=f, w_bytes=w, a_bytes=a, out_bytes=a)
        assert at.intensity == pytest.approx(V5E[0] / V5E[1], rel=1e-9)


def test_a_wide_matmul_of_the_book() -> None:
    exact = Matmul(B=1, D=8192, F=28672).critical_batch(*V5E)
    assert critical_batch(*V5E) < exact < 1.1 * critical_batch(*V5E)


@pytest.mark.parametrize("n", [1, 2, 1000])
def test_a_dot_product(n: int) -> None:
    assert roofline.dot_intensity(n) == pytest.approx((2 * n - 1) / (4 * n + 2), rel=1e-12)


@given(sizes, sizes, st.integers(1, 64))
def test_attention(t: int, s: int, g: int) -> None:
    expected = t * s * g / (t * g + s)
    assert roofline.attention_intensity(t, s, g) == pytest.approx(expected, rel=1e-12)
    eight = roofline.attention_intensity(t, s, g, 1.0)
    assert eight == pytest.approx(2 * expected, rel=1e-12)
