"""Point to point, trees, overlapped matmuls, experts and pipelines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import BadShape
from shardwise.estimate import transfers
from shardwise.hardware import Torus
from shardwise.ops import collective
from shardwise.strategy.span import Span, Tier

NODE, RAIL = Tier("node", 8, 450e9), Tier("scale-out", 16, 50e9)


def test_hops_go_the_short_way_round() -> None:
    ring = Torus(shape=(16, 4), wrapped=(True, False))
    assert transfers.torus_hops(ring, (0, 0), (15, 3)) == 4
    assert transfers.torus_hops(ring, (0, 0), (8, 0)) == 8
    assert transfers.torus_hops(ring, (3, 2), (3, 2)) == 0


@pytest.mark.parametrize("end", [(4, 0), (0, -1), (0,), (0, 0, 0)])
def test_a_chip_outside_is_refused(end: tuple[int, ...]) -> None:
    with pytest.raises(BadShape, match="does not lie in a torus of 4x4"):
        transfers.torus_hops(Torus(shape=(4, 4), wrapped=(False, False)), (0, 0), end)


def test_ports_share_the_bytes_and_not_the_hops() -> None:
    one, two = (
        transfers.point_to_point_s(9e10, 6, link_bytes_per_s_one_way=4.5e10, hop_s=1e-6, ports=p)
        for p in (1, 2)
    )
    assert (one, two) == (pytest.approx(2 + 6e-6), pytest.approx(1 + 6e-6))


@given(sizes=st.lists(st.integers(2, 64), min_size=1, max_size=3))
def test_an_unsharded_tree_is_the_collective(sizes: list[int]) -> None:
    names = ("node", "scale-out", "dcn")
    tiers = tuple(Tier(n, s, 1e11) for n, s in zip(names, sizes, strict=False))
    span = Span(tiers=tiers)
    gather = transfers.outer_reduce_s(1e9, tiers)
    assert gather == pytest.approx(collective.time_s("all_gather", 1e9, span))
    reduce = transfers.outer_reduce_s(1e9, tiers, all_reduce=True)
    assert reduce == pytest.approx(collective.time_s("all_reduce", 1e9, span))


def test_inner_shards_help_only_beyond_the_node() -> None:
    # Book §12: V/W_node * D_node / max(D_node, Y) at the network level.
    base = transfers.outer_reduce_s(1e9, (RAIL,), sharded=8)
    both = (NODE, RAIL)
    assert transfers.outer_reduce_s(1e9, both) == pytest.approx(base)
    assert transfers.outer_reduce_s(1e9, both, sharded=4) == pytest.approx(base)
    assert transfers.outer_reduce_s(1e9, both, sharded=16) == pytest.approx(base / 2)


def test_the_slowest_level_rates_a_tree() -> None:
    node, rail = (transfers.tree_bytes_per_s((t,)) for t in (NODE, RAIL))
    assert node == pytest.approx(450e9 * 8 / 7)
    assert transfers.tree_bytes_per_s((NODE, RAIL)) == pytest.approx(min(node, 8 * rail))


def test_random_routing_sends_less_than_its_bound() -> None:
    for k in (1, 2, 8, 64):
        share = transfers.routed_share(k, 8)
        assert 0 < share < min(k / 8, 1)
    assert transfers.routed_share(1, 8) == pytest.approx(1 / 8 * 7 / 8)
    assert transfers.routed_share(10_000, 8) == pytest.approx(7 / 8)


def test_a_collective_matmul_hides_what_it_can() -> None:
    steps = transfers.collective_matmul(4, 2048, math_s=4e-3, n_bytes=4e9, bytes_per_s=1e12)
    assert (steps.n_permutes, steps.n_matmuls, steps.chunk) == (3, 4, 512)
    assert steps.matmul_s == pytest.approx(1e-3)
    assert steps.permute_s == pytest.approx(1e-3)
    assert steps.sequential_s == pytest.approx(7e-3)
    assert steps.overlapped_s == pytest.approx(4e-3)
    slow = transfers.collective_matmul(4, 2048, math_s=4e-3, n_bytes=8e9, bytes_per_s=1e12)
    assert slow.overlapped_s == pytest.approx(1e-3 + 3 * 2e-3)


@pytest.mark.parametrize(("k", "chips"), [(2, 64), (8, 64), (16, 32), (1, 128)])
def test_the_expert_width_is_where_both_times_meet(k: int, chips: int) -> None:
    alpha = 990e12 / 400e9
    width = transfers.expert_width(chips, k, alpha)
    times = transfers.expert_times(
        1e6, 4096, width, experts_per_token=k, n_chips=chips,
        flops_per_s=990e12, node_bytes_per_s=400e9,
    )  # fmt: skip
    assert times.math_s == pytest.approx(times.comms_s)


def test_the_book_s_two_regimes_of_experts() -> None:
    alpha = 2475.0
    # k > Z/8: F > alpha (Z - 8) / k.
    assert transfers.expert_width(32, 8, alpha) == pytest.approx(alpha * 24 / 8)
    # Z >> k: F > 8 alpha.
    assert transfers.expert_width(100_000, 2, alpha) == pytest.approx(8 * alpha, rel=1e-3)


def test_experts_inside_a_node_send_nothing_out() -> None:
    assert transfers.expert_width(8, 2, 2475.0) == 0


def test_pipeline_hops() -> None:
    # M near 2p: about 1.5 times one whole send. Book §12.
    whole = 2 * 1e6 * 8192 / 400e9
    sent = transfers.pipeline_send_s(1e6, 8192, n_microbatches=128, n_stages=64, bytes_per_s=400e9)
    assert sent == pytest.approx(1.5 * whole, rel=0.02)
