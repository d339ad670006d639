"""A schedule in lockstep: orders are kept, inputs are there in time, places are not shared."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from shardwise.runtime.training.ticks import (
    BACKWARD,
    FIELDS,
    FORWARD,
    Ticks,
    branch_counts,
    lockstep,
    pipeline_ticks,
    ticks,
)
from shardwise.strategy.schedules import Event, Order, find

CASES = [
    ("gpipe", 3, 5, 1),
    ("1f1b", 4, 8, 1),
    ("1f1b", 2, 2, 1),
    ("interleaved", 2, 4, 2),
    ("interleaved", 4, 8, 3),
    ("zb-h1", 4, 6, 1),
    ("zb-v", 3, 7, 2),
]
KIND = {FORWARD: "F", BACKWARD: "B"}


@pytest.fixture(params=CASES, ids=lambda case: "-".join(map(str, case)))
def run(request: pytest.FixtureRequest) -> tuple[Order, Ticks]:
    name, p, m, chunks = request.param
    order = find(name).order(p, m, chunks)
    return order, ticks(order)


def _events(found: Ticks, stage: int) -> list[tuple[int, str, int, int]]:
    """(tick, kind, microbatch, chunk) of a stage."""
    rows = found.rows
    return [
        (t, KIND[int(k)], int(rows["microbatch"][t, stage]), int(rows["chunk"][t, stage]))
        for t, k in enumerate(rows["kind"][:, stage])
        if k
    ]


def test_every_stage_keeps_its_order(run: tuple[Order, Ticks]) -> None:
    order, found = run
    for stage, events in enumerate(order.stages):
        got = [event[1:] for event in _events(found, stage)]
        # Gradients of weights (W) are computed in B.
        assert got == [(e.kind, e.microbatch, e.chunk) for e in events if e.kind != "W"]


def test_what_is_passed_on_is_what_the_next_event_reads(run: tuple[Order, Ticks]) -> None:
    """The tables carried out with names of results in the place of arrays."""
    order, found = run
    rows, p = found.rows, len(order.stages)
    inputs: list[dict[int, Event]] = [{} for _ in range(p)]
    for t in range(len(rows["kind"])):
        did: dict[int, Event] = {}
        for s in range(p):
            row = {name: int(rows[name][t, s]) for name in FIELDS}
            if not row["kind"]:
                continue
            event = Event(s, KIND[row["kind"]], row["microbatch"], row["chunk"])
            did[s] = event
            path = order.path(event.microbatch)
            at = path.index((s, event.chunk))
            if event.kind == "F" and not row["first"]:
                before = Event(path[at - 1][0], "F", event.microbatch, path[at - 1][1])
                assert inputs[s][row["read_slot"]] == before
            if event.kind == "B":
                last = at + 1 == len(path)
                place, kind = (path[at], "F") if last else (path[at + 1], "B")
                assert inputs[s][row["read_slot"]] == Event(
                    place[0], kind, event.microbatch, place[1]
                )
        for s in range(p):
            ways = {"from_previous": (s - 1) % p, "from_next": (s + 1) % p, "stay_slot": s}
            for way, source in ways.items():
                place = int(rows[way][t, s])
                if place < found.n_inputs:
                    inputs[s][place] = did[source]


def test_no_two_chunks_are_kept_in_one_place(run: tuple[Order, Ticks]) -> None:
    order, found = run
    for s in range(len(order.stages)):
        held: dict[tuple[int, int], list[int]] = {}
        for t, _, microbatch, chunk in _events(found, s):
            held.setdefault((microbatch, chunk), []).append(t)
        for (one, a), (other, b) in itertools.combinations(held.items(), 2):
            slots = found.rows["keep_slot"]
            same = slots[a[0], s] == slots[b[0], s]
            assert not same or a[-1] < b[0] or b[-1] < a[0], (one, other)


def test_no_more_is_kept_than_the_schedule_says(run: tuple[Order, Ticks]) -> None:
    order, found = run
    assert found.n_saved == max(order.n_held(s)[0] for s in range(len(order.stages)))


def test_the_last_stage_takes_the_head_once_a_microbatch() -> None:
    found = branch_counts(ticks(find("1f1b").order(4, 8)))
    assert found == {
        "stage.forward": (14, 8),
        "stage.backward": (14, 8),
        "stage.embed": (8, 0),
        "stage.head": (0, 8),
    }
    assert np.sum(found["stage.forward"]) == 2 * (8 + 4 - 1)


def test_ticks_are_grouped_by_what_stages_do_in_them() -> None:
    schedule = ticks(find("1f1b").order(4, 8))
    groups = lockstep(schedule)
    assert sum(n for n, _ in groups) == len(schedule.rows["kind"])
    with_head = [
        n for n, events in groups if any(e["stage.backward"] * e["stage.head"] for e in events)
    ]
    assert sum(with_head) == 8
    forward_only = [n for n, events in groups if not any(e["stage.backward"] for e in events)]
    assert sum(forward_only) == 4  # until the last stage has done its first


@pytest.mark.parametrize(("recomputes", "backward_s"), [(False, 2), (True, 3)])
@pytest.mark.parametrize(
    ("name", "stages", "m", "chunks"),
    [("1f1b", 4, 8, 1), ("gpipe", 4, 8, 1), ("zb-h1", 4, 8, 1), ("interleaved", 4, 16, 2)],
)
def test_no_stage_waits_for_a_longer_event(
    name: str, stages: int, m: int, chunks: int, recomputes: bool, backward_s: int
) -> None:
    """The ticks take as long as stages that do not wait for one another in every tick."""
    order = find(name).order(stages, m, chunks)
    chosen = pipeline_ticks(order, 6, recomputes=recomputes)
    ideal = (m * chunks + stages - 1) * (1 + backward_s)
    assert chosen.seconds(backward_s) == pytest.approx(ideal)
    assert chosen.n_saved == ticks(order).n_saved


def test_backward_events_stay_whole_where_parts_are_of_no_use() -> None:
    one_layer = pipeline_ticks(find("1f1b").order(4, 8), 1, recomputes=False)
    assert one_layer.parts == 1
    assert pipeline_ticks(find("gpipe").order(4, 8), 6, recomputes=False).parts == 1


def test_head_and_embedding_belong_to_one_part_of_a_backward_event() -> None:
    schedule = ticks(find("1f1b").order(4, 8), 2)
    rows = schedule.rows
    backward = rows["kind"] == BACKWARD
    assert backward.sum() == 2 * 4 * 8
    assert set(rows["part"][backward & (rows["last"] == 1)]) == {1}  # the last layers come first
    assert set(rows["part"][backward & (rows["first"] == 1)]) == {0}
    assert (backward & (rows["last"] == 1)).sum() == 8 == (backward & (rows["first"] == 1)).sum()


def test_an_order_that_waits_for_itself_is_refused() -> None:
    right = find("1f1b").order(2, 2)
    wrong = Order(stages=(right.stages[0][::-1], right.stages[1]), paths=right.paths)
    with pytest.raises(ValueError, match="has a deadlock"):
        ticks(wrong)
