"""The walk of a schedule: by hand, and what must hold of any schedule."""

import dataclasses
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.check.timeline.schedule import simulate
from shardwise.check.timeline.steps import CORE, Await, Compute, Loop, Step, Transfer

OP = ("mlp.up", "forward")


def work(name, seconds, drives=()):
    return Compute(name=name, operation=OP, seconds=seconds, advances=drives)


def send(name, seconds, engines=("x",), form="async", label="fsdp"):
    return Transfer(
        name=name,
        label=label,
        kind="all_gather",
        form=form,
        operation=OP,
        engines=engines,
        seconds=seconds,
        bytes=8.0,
    )


def test_operations_alone_take_their_sum():
    line = simulate((work("a", 1.0), work("b", 2.5)))
    assert (line.step_s, line.compute_s, line.exposed_s) == (3.5, 3.5, {})
    assert line.operation_s == {OP: 3.5}


def test_a_synchronous_transfer_stops_the_core():
    line = simulate((work("a", 1.0), send("g", 2.0, form="sync"), Await(name="g"), work("b", 1.0)))
    assert (line.step_s, line.exposed_s) == (4.0, {"fsdp": 2.0})


def test_what_runs_beside_a_transfer_hides_it():
    line = simulate((send("g", 3.0), work("a", 2.0), Await(name="g"), work("b", 1.0)))
    (gather,) = line.transfers
    assert (line.step_s, gather.hidden_s, gather.exposed_s) == (4.0, 2.0, 1.0)
    assert gather.overlapped_s == {OP: 2.0}


def test_a_queue_of_one_engine_charges_each_for_its_own_part():
    line = simulate(
        (send("g", 3.0), send("r", 2.0, label="tensor"), work("a", 1.0), Await(name="r"))
    )
    assert line.step_s == 5.0
    assert line.exposed_s == {"fsdp": 2.0, "tensor": 2.0}


def test_other_engines_do_not_queue():
    line = simulate((send("g", 3.0), send("r", 2.0, ("y",)), Await(name="r"), Await(name="g")))
    assert line.step_s == 3.0
    assert line.busy_s == {"x": 3.0, "y": 2.0}


def test_a_transfer_over_two_axes_waits_for_both():
    steps = (send("a", 1.0, ("x",)), send("b", 2.0, ("y",)), send("c", 1.0, ("x", "y")))
    assert simulate((*steps, Await(name="c"))).step_s == 3.0


def test_a_fused_transfer_moves_only_with_the_operations_that_drive_it():
    steps = (
        send("g", 3.0, form="fused"),
        work("other", 5.0),
        work("chain", 2.0, drives=("g",)),
        Await(name="g"),
    )
    line = simulate(steps)
    assert (line.step_s, line.exposed_s) == (8.0, {"fsdp": 1.0})
    assert line.transfers[0].overlapped_s == {OP: 2.0}


def test_the_program_ends_with_its_last_transfer():
    assert simulate((send("g", 3.0), work("a", 1.0))).step_s == 3.0


def test_trips_of_a_loop_add_up_and_are_drawn_until_the_cap():
    body = (send("g", 3.0), work("a", 2.0), Await(name="g"))
    line = simulate((Loop(name="layers", trips=80, body=body),))
    assert (line.step_s, line.compute_s) == (pytest.approx(240.0), 160.0)
    assert line.exposed_s == {"fsdp": pytest.approx(80.0)}
    assert len([s for s in line.bars if s.kind == "compute"]) == 80
    capped = simulate((Loop(name="layers", trips=80, body=body),), max_bars=30)
    assert capped.step_s == line.step_s
    (rest,) = [s for s in capped.bars if s.kind == "trips"]
    assert rest.end_s == pytest.approx(240.0)
    assert dict(rest.details) == {"trips": 80 - 10}


def test_what_a_trip_leaves_under_way_meets_the_next():
    body = (Await(name="g"), send("g", 3.0), work("a", 2.0))
    line = simulate((Loop(name="layers", trips=10, body=body), Await(name="g")))
    assert line.step_s == pytest.approx(30.0)
    assert line.compute_s == 20.0


ENGINES = st.sampled_from([("x",), ("y",), ("x", "y"), ("hbm",)])
SECONDS = st.integers(0, 50).map(lambda n: n / 8)  # sums of eighths are exact


@st.composite
def schedules(draw, depth=2) -> tuple[Step, ...]:
    """Operations, transfers that are awaited once, now or later, and loops."""
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, 6))):
        what = draw(st.sampled_from(["work", "sync", "async", "fused", "loop"]))
        name = f"{what}{draw(st.integers(0, 10**9))}"
        if what == "work":
            steps.append(work(name, draw(SECONDS)))
        elif what == "loop":
            if depth:
                body = draw(schedules(depth=depth - 1))
                steps.append(Loop(name=name, trips=draw(st.integers(1, 9)), body=body))
        else:
            one = send(name, draw(SECONDS), draw(ENGINES), what, draw(st.sampled_from("ab")))
            between = [work(f"{name}w", draw(SECONDS), (name,) if what == "fused" else ())]
            between = [] if what == "sync" else between
            steps += [one, *between, Await(name=name)]
            if draw(st.booleans()) and what == "async":
                steps[-3:-3] = [steps.pop(-2)]  # before the start: nothing hides it
    return tuple(steps)


def scaled(steps, factor):
    """Transfers that take `factor` times as long."""
    found = []
    for step in steps:
        if isinstance(step, Transfer):
            step = dataclasses.replace(step, seconds=step.seconds * factor)
        elif isinstance(step, Loop):
            step = dataclasses.replace(step, body=scaled(step.body, factor))
        found.append(step)
    return tuple(found)


@given(schedules())
def test_the_step_lies_between_the_busiest_engine_and_all_of_them(steps):
    line = simulate(steps)
    sent = sum(t.seconds for t in line.transfers)
    assert line.step_s >= max(line.busy_s.values(), default=0.0) - 1e-9
    assert line.step_s <= line.compute_s + sent + 1e-9


@given(schedules())
def test_operations_and_what_is_waited_for_are_the_step(steps):
    line = simulate(steps)
    assert math.isclose(line.step_s, line.compute_s + sum(line.exposed_s.values()), abs_tol=1e-9)
    for one in line.transfers:
        assert -1e-9 <= one.exposed_s <= one.seconds + 1e-9


@given(schedules())
def test_faster_transfers_never_slow_the_step(steps):
    assert simulate(scaled(steps, 0.5)).step_s <= simulate(steps).step_s + 1e-9


@given(schedules(), st.integers(1, 12))
def test_more_trips_never_take_less_and_are_those_walked_one_by_one(body, trips):
    looped = simulate((Loop(name="l", trips=trips, body=body),))
    more = simulate((Loop(name="l", trips=trips + 1, body=body),))
    walked = simulate(body * trips)
    assert more.step_s >= looped.step_s - 1e-9
    assert math.isclose(looped.step_s, walked.step_s, abs_tol=1e-6)
    assert math.isclose(
        sum(looped.exposed_s.values()), sum(walked.exposed_s.values()), abs_tol=1e-6
    )
    for engine, seconds in walked.busy_s.items():
        assert math.isclose(looped.busy_s[engine], seconds, abs_tol=1e-6)


@given(schedules())
def test_bars_of_one_engine_do_not_overlap_and_fill_its_time(steps):
    line = simulate(steps, max_bars=10**6)
    rows: dict[str, list] = {}
    for span in line.bars:
        rows.setdefault(span.engine, []).append(span)
    for engine, spans in rows.items():
        spans.sort(key=lambda s: (s.start_s, s.end_s))
        for one, after in itertools.pairwise(spans):
            assert one.end_s <= after.start_s + 1e-9
        kinds = ("compute",) if engine == CORE else ("all_gather",)
        shown = sum(s.seconds for s in spans if s.kind in kinds)
        assert math.isclose(shown, line.busy_s.get(engine, 0.0), abs_tol=1e-6)


def test_permutes_in_opposite_directions_of_an_axis_run_at_once():
    def steps(*engines):
        sends = [send(f"p{i}", 2.0, engines=(name,)) for i, name in enumerate(engines)]
        return (*sends, *(Await(name=one.name) for one in sends))

    assert simulate(steps("x forward", "x backward")).step_s == 2.0
    assert simulate(steps("x forward", "x forward")).step_s == 4.0
    assert simulate(steps("x forward", "x", "x backward")).step_s == 6.0
