"""Crossings of experts, pipelines and rings, against the times that they compare."""

from __future__ import annotations

import pytest

from shardwise.estimate.crossings import (
    expert_width,
    expert_width_on_ring,
    microbatches_for_bubble,
    ring_tokens,
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


@pytest.mark.parametrize("causal", [True, False])
def test_a_ring_hides_under_attention(causal: bool) -> None:
    N, K, H = 32, 8, 128
    kv = 2 * K * H * 2
    t = ring_tokens(C / W, n_heads=N, head_width=2 * H, kv_bytes=kv, causal=causal)
    flops = 4 * t * t * N * H * (0.5 if causal else 1.0)
    assert flops / C == pytest.approx(t * kv / W)


def test_microbatches_for_a_small_bubble() -> None:
    """(p-1) / (m + p-1) <= 1/10; interleaving divides the bubble by its chunks."""
    for p in (2, 4, 8):
        assert microbatches_for_bubble(0.1, stages=p) == 9 * (p - 1)
    fewer = microbatches_for_bubble(0.1, stages=4, chunks=3, schedule="interleaved")
    assert fewer is not None
    assert 9 * 3 / 3 <= fewer < 9 * 3 / 3 + 4
    assert microbatches_for_bubble(1e-9, stages=64) is None
