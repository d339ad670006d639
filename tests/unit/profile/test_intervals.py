"""A time divided among spans: the parts sum to it, and exposed and hidden are all communication."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.profile.intervals import Span, covered, partition

LEVEL_OF = {"matmul": 0, "communication": 1, "gap": 2}
TIMES = st.integers(0, 100)
SPANS = st.lists(st.tuples(st.sampled_from(sorted(LEVEL_OF)), TIMES, TIMES), max_size=12)


def spans_of(drawn: list[tuple[str, int, int]]) -> list[Span[str]]:
    return [Span(min(a, b), max(a, b), LEVEL_OF[key], key) for key, a, b in drawn]


@given(SPANS, TIMES, st.integers(1, 100))
def test_parts_sum_to_the_time(drawn: list[tuple[str, int, int]], start: int, length: int) -> None:
    parts = partition(spans_of(drawn), start, start + length, rest="host")
    assert sum(parts.values()) == pytest.approx(length)
    assert all(part > 0 for part in parts.values())


@given(SPANS)
def test_exposed_and_hidden_are_all_communication(drawn: list[tuple[str, int, int]]) -> None:
    spans = spans_of(drawn)
    parts = partition(spans, 0, 100, rest="host")
    instants = {
        key: {t for s in spans if s.key == key for t in range(int(s.start), int(s.end))}
        for key in LEVEL_OF
    }
    communication = instants["communication"]
    hidden = communication & instants["matmul"]
    intervals = [(s.start, s.end) for s in spans if s.key == "communication"]
    assert covered(intervals, 0, 100) == len(communication)
    assert parts.get("communication", 0) + len(hidden) == pytest.approx(len(communication))
    assert parts.get("matmul", 0) == pytest.approx(len(instants["matmul"]))


def test_spans_of_a_level_share_an_instant() -> None:
    spans = [Span(0, 4, 0, "a"), Span(2, 4, 0, "b"), Span(0, 9, 1, "behind")]
    parts = partition(spans, 0, 10, rest="host")
    assert parts == {"a": 3, "b": 1, "behind": 5, "host": 1}


def test_what_lies_outside_does_not_count() -> None:
    assert partition([Span(-5, 2, 0, "a"), Span(8, 50, 0, "b")], 0, 10, rest="host") == {
        "a": 2,
        "b": 2,
        "host": 6,
    }
    assert covered([(-5, 2), (1, 3), (8, 50)], 0, 10) == 5
