"""Experts that are met, and widths against the times that they compare."""

from __future__ import annotations

import numpy as np
import pytest

from shardwise.formulas.experts import (
    expert_width,
    expert_width_on_ring,
    hit_share,
    places_hit,
    ragged_share,
)

C, W, B, D = 1e15, 4.5e11, 4096.0, 8192.0


def test_experts_within_a_domain() -> None:
    """Each of Z chips sends k (Z-1)/Z of its tokens out and back, 2 bytes each."""
    k, Z = 2, 8
    F = expert_width(C / W, Z, experts_per_token=k)
    math_s = 4 * B * k * D * F / (Z * C)
    comm_s = 2 * 2 * B / Z * D * k * (Z - 1) / Z / W
    assert math_s == pytest.approx(comm_s)


@pytest.mark.parametrize(("k", "Z"), [(2, 64), (8, 64), (8, 16)])
def test_experts_over_domains_of_the_book(k: int, Z: int) -> None:
    node = 4e11
    F = expert_width(C / node, Z, experts_per_token=k, domain=8)
    comm_s = 4 * B * D * (Z - 8) / (node * Z) * min(8 * k / Z, 1.0)
    assert 4 * B * k * D * F / (Z * C) == pytest.approx(comm_s)


def test_experts_on_a_ring() -> None:
    k, Z, ici = 2, 16, 1.8e11
    F = expert_width_on_ring(C / ici, Z)
    assert 4 * B * k * D * F / (Z * C) == pytest.approx(2 * 2 * B * D * k / (4 * ici))


def test_experts_that_tokens_meet() -> None:
    assert hit_share(256, 8, 1) == pytest.approx(8 / 256)
    draws = np.random.default_rng(0).integers(0, 8, (20000, 8))
    mean = np.mean([len(set(row)) for row in draws])
    assert places_hit(8, 8) == pytest.approx(mean, rel=0.01)


def test_ragged_exchanges() -> None:
    assert ragged_share(8, 64) == 0.125
    assert ragged_share(8, 4) == 1
