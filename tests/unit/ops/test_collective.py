"""Times of collectives: the book's figures, and what holds on every span."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import BadInput, UnknownName
from shardwise.ops import collective
from shardwise.ops.collective import ADJOINT, DISPLAY_NAMES, KINDS, price, received_bytes, time_s
from shardwise.strategy.span import Ring, Span, Tier

W1 = 4.5e10  # one direction of one link
HOP = 1e-6
V = 1e9


def ring(n: int, axis: int = 0, stride: int = 1) -> Ring:
    return Ring(axis, n, stride, True, W1)


def line(n: int, axis: int = 0, stride: int = 1) -> Ring:
    return Ring(axis, n, stride, False, W1)


def torus(*rings: Ring, hop: float = 0.0, borrowed: tuple[Ring, ...] = ()) -> Span:
    return Span(rings, hop, borrowed=borrowed)


def switched(*sizes_and_rates: tuple[int, float], reduces: bool = False) -> Span:
    names = ("node", "scale-out", "dcn")
    tiers = (Tier(n, s, r, 0.0, reduces) for n, (s, r) in zip(names, sizes_and_rates, strict=False))
    return Span(tiers=tuple(tiers))


rings = st.builds(
    Ring,
    st.integers(0, 2),
    st.integers(2, 16),
    st.integers(1, 4),
    st.booleans(),
    st.floats(1e9, 1e12),
)
tiers = st.builds(
    Tier, st.just("node"), st.integers(2, 64), st.floats(1e9, 1e12), st.just(0.0), st.booleans()
)
spans = st.builds(
    Span,
    st.lists(rings, max_size=3).map(tuple),
    st.floats(0, 1e-5),
    st.lists(tiers, max_size=3).map(tuple),
).filter(lambda s: s.size > 1)


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_a_gather_round_a_ring_does_not_depend_on_its_length(n: int) -> None:
    assert time_s("all_gather", V, torus(ring(n))) == V / (2 * W1)


@pytest.mark.parametrize("n", [3, 5, 7])
def test_a_ring_of_odd_length_needs_no_half_hop(n: int) -> None:
    expected = V / n * ((n - 1) / 2) / W1
    assert time_s("all_gather", V, torus(ring(n))) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("n", "factor"), [(2, 0.5), (4, 0.75), (16, 0.9375)])
def test_a_line_and_one_way_round_a_ring(n: int, factor: float) -> None:
    expected = pytest.approx(factor * V / W1, rel=1e-12)
    assert time_s("all_gather", V, torus(line(n))) == expected
    assert time_s("all_gather", V, torus(ring(n)), 1) == expected


def test_several_axes_share_the_bytes() -> None:
    for k in (1, 2, 3):
        span = torus(*(ring(4, axis) for axis in range(k)))
        assert time_s("all_gather", V, span) == pytest.approx(V / (k * 2 * W1), rel=1e-12)
    mixed = torus(ring(4), line(4, 1))
    assert time_s("all_gather", V, mixed) == pytest.approx(V / (3 * W1), rel=1e-12)
    for k in (2, 3):
        lines = torus(*(line(4, axis) for axis in range(k)))
        n = 4**k
        assert time_s("all_gather", V, lines) == pytest.approx(V * (n - 1) / n / (k * W1))


@given(
    runs=st.lists(st.tuples(st.integers(2, 9), st.booleans()), min_size=1, max_size=3),
    directions=st.sampled_from([1, 2]),
)
def test_no_chip_takes_in_more_than_its_links_bring(
    runs: list[tuple[int, bool]], directions: int
) -> None:
    """The chip at the ends of all lines has one link on each line and two on each ring."""
    span = torus(*((ring if closed else line)(n, axis) for axis, (n, closed) in enumerate(runs)))
    n = math.prod(size for size, _ in runs)
    links = sum(directions if closed else 1 for _, closed in runs)
    for kind in ("all_gather", "reduce_scatter"):
        assert V * (n - 1) / n / time_s(kind, V, span, directions) <= links * W1 * (1 + 1e-12)


def test_idle_axes_are_lent() -> None:
    lent = torus(ring(4), borrowed=(ring(4, 1), ring(4, 2)))
    assert time_s("all_gather", V, lent) == pytest.approx(V / (6 * W1), rel=1e-12)
    assert time_s("all_gather", 1.0, replace(lent, hop_s=HOP)) == pytest.approx(6 * HOP)
    nothing = Span(borrowed=(ring(4),))
    assert time_s("all_gather", V, nothing) == 0


def test_interleaved_groups_share_their_links() -> None:
    assert time_s("all_gather", V, torus(ring(4, 0, 4))) == pytest.approx(V * 4 / (2 * W1))
    assert price("permute", torus(ring(4, 0, 4))).s_per_byte == pytest.approx(4 / W1)


@pytest.mark.parametrize(
    ("n_bytes", "expected"), [(64e3, 8e-6), (64e6, 64e6 / 9e10), (9e10 * 8e-6, 8e-6)]
)
def test_the_latency_floor(n_bytes: float, expected: float) -> None:
    """A ring of 16 v5e chips: 8 hops of a microsecond, then V / W. Book §3."""
    span = torus(ring(16), hop=HOP)
    assert time_s("all_gather", n_bytes, span) == pytest.approx(expected, rel=1e-12)


def test_the_floor_of_each_kind() -> None:
    span = torus(ring(4), line(4, 1), hop=HOP)
    floors = {kind: price(kind, span).latency_s for kind in KINDS}
    one = pytest.approx((2 + 3) * HOP)
    assert floors["all_gather"] == floors["reduce_scatter"] == floors["all_to_all"] == one
    assert floors["all_reduce"] == pytest.approx(10 * HOP)
    assert floors["permute"] == pytest.approx(HOP)


@pytest.mark.parametrize(("n", "two", "one"), [(4, 2, 3), (7, 3, 6), (8, 4, 7), (1, 0, 0)])
def test_hops(n: int, two: int, one: int) -> None:
    assert collective.hops(n, True) == two
    assert collective.hops(n, True, 1) == collective.hops(n, False) == one


def test_an_exchange_costs_a_quarter_of_a_gather() -> None:
    for n in (2, 4, 8, 16):
        span = torus(ring(n))
        gather = time_s("all_gather", V, span)
        assert time_s("all_to_all", V, span) == pytest.approx(gather / 4, rel=1e-12)
        one_way = time_s("all_to_all", V, span, 1)
        assert one_way == pytest.approx(time_s("all_gather", V, span, 1) / 2, rel=1e-12)
    assert time_s("all_to_all", V, torus(line(8))) == pytest.approx(V / (4 * W1), rel=1e-12)


def test_an_exchange_over_several_axes() -> None:
    """V max(n) / (4 N W) on a 16x16 v5e torus. Book §3."""
    square = torus(ring(16), ring(16, 1))
    assert time_s("all_to_all", 1e9, square) == pytest.approx(1.7361e-4, rel=1e-4)
    oblong = torus(ring(4), ring(16, 1))
    assert time_s("all_to_all", V, oblong) == pytest.approx(V * 16 / (4 * 64 * 9e10), rel=1e-12)


def test_a_node_of_gpus() -> None:
    """V (n-1) / (n W). Book §12."""
    span = switched((8, 4.5e11))
    assert time_s("all_gather", V, span) == pytest.approx(V * 7 / 8 / 4.5e11, rel=1e-12)
    assert time_s("all_reduce", V, span) == pytest.approx(V * 7 / 4 / 4.5e11, rel=1e-12)
    assert time_s("all_to_all", V, span) == pytest.approx(V * 7 / 64 / 4.5e11, rel=1e-12)
    adds = switched((8, 4.5e11), reduces=True)
    assert time_s("all_reduce", V, adds) == pytest.approx(V / 4.5e11, rel=1e-12)
    assert time_s("all_gather", V, adds) == time_s("all_gather", V, span)


def test_levels_of_a_tree_run_beside_each_other() -> None:
    """The slowest of (D-1) / (D W S), S chips below the level. Book §12."""
    span = switched((8, 4.5e11), (32, 5e10))
    levels = (7 / 8 / 4.5e11, 31 / 32 / (5e10 * 8))
    assert time_s("all_gather", V, span) == pytest.approx(V * max(levels), rel=1e-12)
    assert time_s("all_reduce", V, span) == pytest.approx(2 * V * max(levels), rel=1e-12)
    # One GPU of each node: no inner level lends its ports.
    alone = Span(tiers=(Tier("scale-out", 32, 5e10),))
    assert time_s("all_gather", V, alone) == pytest.approx(V * 31 / 32 / 5e10, rel=1e-12)


def test_an_exchange_over_nodes() -> None:
    span = switched((8, 4.5e11), (4, 5e10))
    levels = (7 / 8 / 32 / 4.5e11, 3 / 4 / 32 / 5e10)
    assert time_s("all_to_all", V, span) == pytest.approx(V * max(levels), rel=1e-12)


def test_slices_over_dcn() -> None:
    span = Span((ring(4), ring(4, 1)), HOP, (Tier("dcn", 4, 6.25e9),))
    slow = 3 / 4 / (6.25e9 * 16)
    assert time_s("all_gather", V, span) == pytest.approx(V * max(slow, 1 / (4 * W1)), rel=1e-12)
    assert price("all_gather", span).latency_s == pytest.approx(4 * HOP)


def test_a_permute_uses_the_slowest_link_once() -> None:
    assert time_s("permute", V, torus(ring(8))) == V / W1
    both = Span((ring(4),), HOP, (Tier("dcn", 2, 6.25e9, 1e-5),))
    assert price("permute", both).s_per_byte == 1 / 6.25e9
    assert price("permute", both).latency_s == 1e-5


@given(st.sampled_from(KINDS), st.floats(0, 1e12))
def test_one_chip_sends_nothing(kind: str, n_bytes: float) -> None:
    for span in (Span(), torus(ring(1)), switched((1, 1e9))):
        assert time_s(kind, n_bytes, span) == 0


@given(st.sampled_from(KINDS), spans, st.floats(1, 1e12), st.floats(1, 1e3))
def test_time_is_linear_above_its_floor(kind: str, span: Span, n: float, more: float) -> None:
    cost = price(kind, span)
    assert cost.s_per_byte > 0
    assert cost.time_s(n) >= cost.latency_s
    if cost.time_s(n) > cost.latency_s:
        assert cost.time_s(n * more) == pytest.approx(more * cost.time_s(n), rel=1e-12)


@given(st.sampled_from(KINDS), spans, st.floats(0.01, 1), st.sampled_from([1, 2]))
def test_less_bandwidth_is_never_faster(
    kind: str, span: Span, share: float, directions: int
) -> None:
    slow_rings = tuple(
        replace(r, link_bytes_per_s_one_way=r.link_bytes_per_s_one_way * share) for r in span.rings
    )
    slow_tiers = tuple(replace(t, bytes_per_s=t.bytes_per_s * share) for t in span.tiers)
    for slower in (replace(span, rings=slow_rings), replace(span, tiers=slow_tiers)):
        before, after = price(kind, span, directions), price(kind, slower, directions)
        assert after.s_per_byte >= before.s_per_byte * (1 - 1e-12)


@given(st.lists(rings, min_size=1, max_size=3), st.floats(0, 1e-5), st.floats(1, 1e12))
def test_reductions_on_rings(parts: list[Ring], hop: float, n_bytes: float) -> None:
    span = Span(tuple(parts), hop)
    gather = time_s("all_gather", n_bytes, span)
    assert time_s("reduce_scatter", n_bytes, span) == gather
    assert time_s("all_reduce", n_bytes, span) == pytest.approx(2 * gather, rel=1e-12)
    alone = Span(span.rings[:1], hop)
    exchange = time_s("all_to_all", n_bytes, alone)
    assert exchange <= time_s("all_gather", n_bytes, alone) * (1 + 1e-12)


@given(rings, st.floats(1, 1e12))
def test_one_way_is_never_faster(part: Ring, n_bytes: float) -> None:
    for kind in KINDS:
        span = Span((part,))
        assert time_s(kind, n_bytes, span, 1) >= time_s(kind, n_bytes, span, 2) * (1 - 1e-12)


def test_adjoints() -> None:
    assert [ADJOINT[k] for k in ("all_gather", "reduce_scatter", "all_to_all")] == [
        "reduce_scatter", "all_gather", "all_to_all",
    ]  # fmt: skip
    assert all(ADJOINT[ADJOINT[kind]] == kind for kind in KINDS)
    assert set(DISPLAY_NAMES) == set(ADJOINT) == set(KINDS)


def test_bytes_that_a_chip_takes_in() -> None:
    assert received_bytes("all_gather", 800.0, 8) == 700
    assert received_bytes("reduce_scatter", 800.0, 8) == 700
    assert received_bytes("all_reduce", 800.0, 8) == 1400
    assert received_bytes("all_to_all", 800.0, 8) == 87.5
    assert received_bytes("permute", 800.0, 8) == 800
    assert all(received_bytes(k, 800.0, 1) == 0 for k in KINDS if k != "permute")


def test_what_is_no_collective() -> None:
    with pytest.raises(UnknownName, match='unknown collective "allgather"'):
        price("allgather", torus(ring(4)))
    with pytest.raises(BadInput, match="1 or 2 directions, not 3"):
        price("all_gather", torus(ring(4)), 3)


@pytest.mark.parametrize("kind", KINDS)
def test_links_and_network_slow_their_own_levels(kind: str) -> None:
    node, network = Tier("node", 8, 450e9), Tier("scale-out", 4, 25e9)
    found = price(kind, Span(tiers=(node, network)))
    inside, outside = found.inside_s_per_byte, found.outside_s_per_byte
    assert 0 < inside < outside == found.s_per_byte
    assert found.time_s(V, links=0.99) == found.time_s(V) == V * outside
    assert found.time_s(V, network=0.5) == pytest.approx(2 * V * outside)
    assert found.time_s(V, links=inside / outside / 2) == pytest.approx(2 * V * outside)
