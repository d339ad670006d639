"""A ring of chips goes through links of a grid, wherever one exists."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from shardwise.runtime.layout.ring import ring_order


@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=3).filter(
        lambda shape: math.prod(shape) % 2 == 0 and sum(size > 1 for size in shape) > 1
    ),
    st.randoms(),
)
def test_each_chip_is_one_hop_from_the_next(shape: list[int], random: object) -> None:
    positions = list(itertools.product(*(range(3, 3 + size) for size in shape)))
    random.shuffle(positions)  # type: ignore[attr-defined]
    order = ring_order(positions)
    assert sorted(order) == list(range(len(positions)))
    for chip, following in zip(order, (*order[1:], order[0]), strict=True):
        hops = zip(positions[chip], positions[following], strict=True)
        assert sum(abs(a - b) for a, b in hops) == 1


def test_the_given_order_stays_without_such_a_ring() -> None:
    line = [(0, x) for x in range(4)]
    odd = list(itertools.product(range(3), range(3)))
    corner = [(0, 0), (0, 1), (1, 0), (2, 2)]
    for positions in (line, odd, corner, [(), ()]):
        assert ring_order(positions) == tuple(range(len(positions)))
