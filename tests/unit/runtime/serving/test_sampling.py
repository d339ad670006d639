"""The highest logit is the first of equal ones, and always a token."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from shardwise.runtime.serving.sampling import draw


def test_highest_logit() -> None:
    nan, inf = float("nan"), float("inf")
    logits = [[0.0, 3.0, 1.0, 3.0], [-inf] * 4, [nan, 0.0, 1.0, 2.0], [-2.0, -3.0, -1.0, -5.0]]
    tokens = draw(jnp.array(logits)).token_B
    assert tokens.dtype == jnp.int32
    np.testing.assert_array_equal(tokens, [1, 0, 3, 2])
