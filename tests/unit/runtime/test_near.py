"""What is as near as asked passes, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.runtime.near import assert_near

WANTED = np.array([0.0, 100.0], np.float32)


def test_the_larger_bound_counts() -> None:
    assert_near(WANTED + 0.5, WANTED, abs=0.5)
    assert_near(WANTED + np.array([0.5, 2.0]), WANTED, abs=0.5, rel=0.02)


@pytest.mark.parametrize(
    "found", [WANTED + 0.6, WANTED + np.array([0.6, 0.0]), WANTED * np.nan, WANTED[None]]
)
def test_what_is_farther_fails(found: Any) -> None:
    with pytest.raises(AssertionError):
        assert_near(found, WANTED, abs=0.5)
