"""Numbers and arrays of numbers go through the same formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise import arrays

numbers = st.floats(-1e12, 1e12)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=5))
def test_arrays_give_what_numbers_give(pairs: list[tuple[float, float]]) -> None:
    a, b = (np.array(column) for column in zip(*pairs, strict=True))
    assert arrays.maximum(a, b).tolist() == [arrays.maximum(x, y) for x, y in pairs]
    assert arrays.minimum(a, b).tolist() == [arrays.minimum(x, y) for x, y in pairs]
    assert arrays.where(a > b, a, b).tolist() == [arrays.where(x > y, x, y) for x, y in pairs]
    assert arrays.sqrt(abs(a)).tolist() == [arrays.sqrt(abs(x)) for x, _ in pairs]


@given(numbers, numbers, numbers)
def test_maxima(a: float, b: float, c: float) -> None:
    assert arrays.maximum(a, b, c) == max(a, b, c)
    assert arrays.maximum(np.array([a]), b, c).tolist() == [max(a, b, c)]
    assert isinstance(arrays.maximum(a, b, c), float)


@given(st.integers(0, 10**9), st.integers(1, 10**6))
def test_rounded_up(a: int, b: int) -> None:
    assert arrays.ceil_div(a, b) == math.ceil(a / b)
    assert arrays.ceil_div(np.array([a]), np.array([b])).tolist() == [arrays.ceil_div(a, b)]


def test_a_mix_of_both() -> None:
    assert arrays.maximum(1, np.array([0, 2])).tolist() == [1, 2]
    assert arrays.minimum(np.array([0, 2]), 1).tolist() == [0, 1]
    assert arrays.sqrt(4) == pytest.approx(2)
