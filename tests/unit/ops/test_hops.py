"""AllGather and AllToAll played out hop by hop on small rings and lines, against the formulas."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest

from shardwise.ops.collective import price
from shardwise.strategy.span import Ring, Span

W1 = 4.5e10


def neighbours(n: int, closed: bool, directions: int) -> list[tuple[int, int]]:
    """Every link, one way: (from, to)."""
    right = [(i, (i + 1) % n) for i in range(n if closed else n - 1)]
    both = directions == 2 or not closed
    return right + [(b, a) for a, b in right] if both else right


def gather_steps(n: int, closed: bool, directions: int) -> int:
    """Steps until all hold all shards; in a step each link passes on one shard that is missing."""
    held = [{i} for i in range(n)]
    fresh = {(i, link): i for link in neighbours(n, closed, directions) for i in [link[0]]}
    steps = 0
    while any(len(h) < n for h in held):
        arrived = {}
        for (_, link), shard in fresh.items():
            arrived[link] = shard
        fresh = {}
        for (source, target), shard in arrived.items():
            if shard in held[target]:
                continue
            held[target].add(shard)
            onward = [
                link
                for link in neighbours(n, closed, directions)
                if link[0] == target and (n == 2 or link[1] != source)
            ]
            for link in onward:
                fresh[target, link] = shard
        steps += 1
        assert steps < 2 * n
    return steps


def routes(n: int, closed: bool, directions: int, a: int, b: int) -> list[tuple[Fraction, list]]:
    """Shortest ways from a to b; two of equal length take half each."""
    right = (b - a) % n if closed else b - a
    there = [((a + i) % n, (a + i + 1) % n) for i in range(max(0, right))]
    if closed and directions == 1:
        return [(Fraction(1), there)]
    left = (a - b) % n if closed else a - b
    back = [((a - i) % n, (a - i - 1) % n) for i in range(max(0, left))]
    if not closed:
        return [(Fraction(1), there or back)]
    if right == left:
        return [(Fraction(1, 2), there), (Fraction(1, 2), back)]
    return [(Fraction(1), there if right < left else back)]


def fullest_link(n: int, closed: bool, directions: int) -> Fraction:
    """Parts of 1/n^2 of the array that cross the fullest link, one way, when all send to all."""
    load: Counter[tuple[int, int]] = Counter()
    for a in range(n):
        for b in range(n):
            if a == b:
                continue
            for share, way in routes(n, closed, directions, a, b):
                for source, target in way:
                    load[source, target] += share
    # Two chips on a ring are joined by two links.
    return max(load.values()) / (2 if n == 2 and closed and directions == 2 else 1)


@pytest.mark.parametrize("n", range(2, 10))
@pytest.mark.parametrize(("closed", "directions"), [(True, 2), (True, 1), (False, 2)])
def test_a_gather_takes_the_steps_that_are_counted(n: int, closed: bool, directions: int) -> None:
    span = Span((Ring(0, n, 1, closed, W1),), 1e-6)
    cost, steps = price("all_gather", span, directions), gather_steps(n, closed, directions)
    assert cost.s_per_byte == pytest.approx(steps / (n * W1), rel=1e-12)
    assert cost.latency_s == pytest.approx(steps * 1e-6, rel=1e-12)


@pytest.mark.parametrize("n", range(2, 10))
@pytest.mark.parametrize(("closed", "directions"), [(True, 2), (True, 1), (False, 2)])
def test_an_exchange_fills_the_fullest_link(n: int, closed: bool, directions: int) -> None:
    span = Span((Ring(0, n, 1, closed, W1),))
    load = fullest_link(n, closed, directions)
    expected = float(load) / n**2 / W1
    assert price("all_to_all", span, directions).s_per_byte == pytest.approx(expected, rel=1e-12)
