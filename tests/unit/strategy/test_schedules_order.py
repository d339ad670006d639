"""Orders of events: each once, dependencies kept, patterns as their sources draw them."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings

from shardwise.errors import BadInput, BadShape
from shardwise.strategy import schedules
from shardwise.strategy.schedules import Event, Order, simulate
from tests.unit.strategy.schedule_cases import ALL, Shape, grid, inputs, makespan, node, shapes


def text(order: Order, stage: int) -> str:
    return " ".join(str(event) for event in order.stages[stage])


@given(shapes())
@settings(max_examples=120, derandomize=True, deadline=None)
def test_every_event_is_there_once(shape: Shape) -> None:
    schedule, p, m, v = shape
    order = schedule.order(p, m, v)
    seen = Counter(node(order, event) for row in order.stages for event in row)
    length = len(order.paths[0])
    for kind in "FB":
        expected = {(kind, i, place) for i in range(m) for place in range(length)}
        assert {n for n in seen if n[0] == kind} == expected
    assert set(seen.values()) == {1}
    weights = [n for n in seen if n[0] == "W"]
    if not schedule.splits_backward:
        assert weights == []
    elif schedule.name != "dualpipe":
        assert len(weights) == m * length


@given(shapes())
@settings(max_examples=120, derandomize=True, deadline=None)
def test_events_lie_on_their_stage_and_path(shape: Shape) -> None:
    schedule, p, m, v = shape
    order = schedule.order(p, m, v)
    assert len(order.stages) == p
    for stage, row in enumerate(order.stages):
        assert {event.stage for event in row} == {stage}
        assert {event.chunk for event in row} == set(range(v))
    for path in order.paths:
        assert len(path) == schedule.parts(p, v) == len(set(path))
    held = Counter(place for path in order.paths for place in path)
    assert set(held) == {(stage, chunk) for stage in range(p) for chunk in range(v)}


@given(shapes())
@settings(max_examples=80, derandomize=True, deadline=None)
def test_dependencies_are_kept(shape: Shape) -> None:
    schedule, p, m, v = shape
    order = schedule.order(p, m, v)
    line = simulate(order, 3.0, 4.0, 2.0, 1.0)
    end = {node(order, s.event): s.end_s for row in line.stages for s in row}
    start = {node(order, s.event): s.start_s for row in line.stages for s in row}
    stage = {node(order, s.event): s.event.stage for row in line.stages for s in row}
    for row in order.stages:
        for event in row:
            n = node(order, event)
            for source in inputs(order, event):
                wait = 1.0 if stage[source] != stage[n] else 0.0
                assert end[source] + wait <= start[n]
    for spans in line.stages:
        for one, two in pairwise(spans):
            assert one.end_s <= two.start_s or (one.event.paired and one.start_s == two.start_s)


@pytest.mark.parametrize("shape", [s for s in grid(4) if s[0].name != "dualpipe"], ids=str)
def test_simulation_is_the_longest_path(shape: Shape) -> None:
    schedule, p, m, v = shape
    order = schedule.order(p, m, v)
    for times in ((1.0, 1.0, 1.0, 0.0), (3.0, 4.0, 2.0, 0.0), (5.0, 2.0, 7.0, 3.0)):
        assert simulate(order, *times).makespan_s == makespan(order, *times)


def test_patterns_of_the_sources() -> None:
    find = schedules.find
    assert text(find("gpipe").order(2, 3), 1) == "F0 F1 F2 B0 B1 B2"
    assert text(find("1f1b").order(4, 5), 0) == "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4"
    assert text(find("1f1b").order(4, 5), 3) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"
    assert text(find("1f1b").order(4, 2), 0) == "F0 F1 B0 B1"
    interleaved = find("interleaved").order(2, 2, 2)
    assert text(interleaved, 0) == "F0 F1 F0/1 F1/1 B0/1 B1/1 B0 B1"
    assert text(interleaved, 1) == "F0 F1 F0/1 B0/1 F1/1 B1/1 B0 B1"
    assert text(find("zb-h1").order(2, 3), 0) == "F0 F1 B0 W0 F2 B1 W1 B2 W2"
    assert text(find("zb-h1").order(2, 3), 1) == "F0 B0 F1 B1 W0 F2 B2 W1 W2"
    assert text(find("zb-v").order(2, 3), 1) == (
        "F0 F0/1 F1 F1/1 B0/1 W0/1 F2 B0 W0 F2/1 B1/1 W1/1 B1 B2/1 B2 W1 W2/1 W2"
    )


def test_dualpipe_of_the_report() -> None:
    """Eight stages, ten microbatches each way: figure 5 of arXiv 2412.19437, first device."""
    order = schedules.find("dualpipe").order(8, 20)
    kinds = "".join(e.kind for e in order.stages[0])
    steady, inner, last = "FBFB" * 3, "BFB" * 3, "BB" + "WB" * 3 + "W"
    assert kinds == "F" * 6 + "FF" + "BWF" * 3 + steady + inner + last
    for stage in range(8):
        mirror = [
            (e.kind, e.microbatch ^ 1, e.chunk ^ 1, e.paired) for e in order.stages[7 - stage]
        ]
        assert [tuple(e[1:]) for e in order.stages[stage]] == mirror
        pairs = sum(e.paired for e in order.stages[stage])
        assert pairs == (9, 10, 11, 11, 11, 11, 10, 9)[stage]


def test_an_order_that_waits_for_itself_is_told() -> None:
    order = Order(
        stages=((Event(0, "B", 0), Event(0, "F", 0)), (Event(1, "F", 0), Event(1, "B", 0))),
        paths=(((0, 0), (1, 0)),),
    )
    with pytest.raises(BadInput) as caught:
        simulate(order, 1.0, 1.0, 1.0)
    assert caught.value.problems == (
        "stage 0 waits forever at B0: an event that it needs never runs.",
        "stage 1 waits forever at F0: an event that it needs never runs.",
    )


def test_durations_by_stage_and_chunk() -> None:
    order = schedules.find("interleaved").order(2, 2, 2)
    even = simulate(order, 1.0, 1.0, 1.0)
    assert simulate(order, [1.0, 1.0], [[1.0, 1.0], [1.0, 1.0]], 1.0).stages == even.stages
    late = simulate(order, 1.0, [[1.0, 1.0], [1.0, 5.0]], 1.0)
    assert late.busy_s == (12.0, 20.0)
    with pytest.raises(BadShape) as caught:
        simulate(order, [1.0], [[1.0], [1.0]], 1.0)
    assert caught.value.problems == (
        "F durations for 1 stages; the schedule has 2.",
        "B durations of stage 0 for 1 chunks; the schedule has 2.",
        "B durations of stage 1 for 1 chunks; the schedule has 2.",
    )


def test_a_timeline_adds_up() -> None:
    for schedule in ALL:
        p = 4
        m = 8
        line = simulate(schedule.order(p, m), 3.0, 4.0, 2.0, 1.0)
        for stage, spans in enumerate(line.stages):
            gaps = line.makespan_s - spans[-1].end_s + spans[0].start_s
            apart = {(s.start_s, s.end_s) for s in spans}
            assert sum(end - start for start, end in apart) == line.busy_s[stage]
            assert line.idle_s[stage] == line.makespan_s - line.busy_s[stage]
            assert line.window_s[stage] == line.makespan_s - gaps
