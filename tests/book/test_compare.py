"""The comparison sees every kind of difference."""

from __future__ import annotations

import math
from typing import Any

import pytest

from shardwise.book.compare import compare


@pytest.mark.parametrize(
    ("answer", "expected", "tolerance"),
    [
        (3, 3, 0),
        (3.0, 3, 0),
        (1.01, 1.0, 0.011),
        (-2.0, -2.02, 0.01),
        ("none", "none", 0),
        (True, True, 0),
        ((1, 2.0), [1, 2], 0),
        ({"a": [1, {"b": "c"}], "d": False}, {"d": False, "a": [1, {"b": "c"}]}, 0),
        (0.0, 0, 0),
        (math.inf, math.inf, 0),
    ],
)
def test_agreement(answer: Any, expected: Any, tolerance: float) -> None:
    found = compare(answer, expected, tolerance)
    assert found.agrees
    assert found.worst_rel <= tolerance
    assert found.where == ""


@pytest.mark.parametrize(
    ("answer", "expected", "tolerance", "where"),
    [
        (3.0000001, 3, 0, "the answer"),
        (1.02, 1.0, 0.01, "the answer"),
        (0.98, 1.0, 0.01, "the answer"),
        (1e-30, 0, 0.5, "the answer"),
        (math.nan, 1.0, 0.5, "the answer"),
        (math.inf, 1.0, 0.5, "the answer"),
        (None, 1.0, 0.5, "the answer"),
        ("one", 1, 0.5, "the answer"),
        ("some", "none", 0.5, "the answer"),
        (1, True, 0, "the answer"),
        (True, 1, 0, "the answer"),
        (False, True, 0, "the answer"),
        ([1, 2], [1, 2, 3], 0.5, "the answer"),
        (1.0, [1.0], 0.5, "the answer"),
        ([1.0], 1.0, 0.5, "the answer"),
        ([[1, 2], [3, 9]], [[1, 2], [3, 4]], 0.5, "[1][1]"),
        ({"a": 1}, {"a": 1, "b": 2}, 0.5, "the answer"),
        ({"a": 1, "b": 2}, {"a": 1}, 0.5, "the answer"),
        ({"a": {"b": [5]}}, {"a": {"b": [4]}}, 0.1, ".a.b[0]"),
    ],
)
def test_disagreement(answer: Any, expected: Any, tolerance: float, where: str) -> None:
    found = compare(answer, expected, tolerance)
    assert not found.agrees
    assert found.where == where


def test_the_worst_difference_is_kept() -> None:
    assert compare([1.1, 1.3, 1.2], [1, 1, 1], 0.5).worst_rel == pytest.approx(0.3)
    assert compare(["x", 1.0], ["y", 1.0], 0.5).worst_rel == math.inf
