"""The engines that are simulated have the load of the whole deployment, and seldom more."""

from __future__ import annotations

import pytest

from shardwise.plan.serving.simulated_share import (
    MAX_ENGINES,
    MAX_IMBALANCE,
    MAX_SEQUENCES,
    MAX_UNEVEN_ENGINES,
    engines_to_simulate,
)


@pytest.mark.parametrize(
    ("n_decode", "n_prefill"), [(1, 0), (3, 2), (26, 0), (17, 9), (1, 40), (1, 900), (135, 3380)]
)
def test_simulated_engines_have_no_less_load(n_decode: int, n_prefill: int) -> None:
    n, m, share = engines_to_simulate(n_decode, n_prefill)
    assert 1 <= n <= min(n_decode, MAX_ENGINES)
    assert m <= MAX_UNEVEN_ENGINES
    assert bool(m) == bool(n_prefill)
    assert share / n >= 1 / n_decode - 1e-12
    assert not m or share / m >= 1 / n_prefill - 1e-12


@pytest.mark.parametrize(("n_decode", "n_prefill"), [(135, 3380), (1, 50), (90, 3), (514, 2559)])
@pytest.mark.parametrize("batch", [1, 256])
def test_they_have_hardly_more(n_decode: int, n_prefill: int, batch: int) -> None:
    """However many engines of one kind there are for each of the other."""
    n, m, share = engines_to_simulate(n_decode, n_prefill, batch)
    assert share * n_decode / n <= MAX_IMBALANCE
    assert share * n_prefill / m <= MAX_IMBALANCE


def test_sequences_limit_them() -> None:
    n, m, _ = engines_to_simulate(900, 3, 4096)
    assert n * 4096 <= MAX_SEQUENCES
    assert m == 1
