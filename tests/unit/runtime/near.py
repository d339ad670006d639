"""Arrays that are equal but for rounding."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def assert_near(found: Any, wanted: Any, *, abs: float, rel: float = 0.0) -> None:
    """Each number within the larger bound, as `pytest.approx` has it, which is slow for arrays."""
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        got, expected = np.asarray(one), np.asarray(other)
        assert got.shape == expected.shape
        apart = np.abs(got - expected)
        assert (apart <= np.maximum(abs, rel * np.abs(expected))).all(), apart.max()
