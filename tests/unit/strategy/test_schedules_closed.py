"""Closed forms: equal to the simulation, on numbers and on arrays; the facts of the papers."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.strategy import schedules
from shardwise.strategy.schedules import Schedule, Times, simulate
from tests.unit.strategy.schedule_cases import ALL, Shape, grid, shapes

EXACT_SENDS = {"gpipe": lambda f, b, w: 9 * w, "1f1b": lambda f, b, w: 9 * w}
EXACT_SENDS |= {"interleaved": lambda f, b, w: min(f, b + w), "zb-h1": lambda f, b, w: w // 2}
EXACT_SENDS |= {"dualpipe": lambda f, b, w: min(f, b, w)}
seconds = st.integers(8, 60)


@pytest.mark.parametrize("shape", grid(), ids=lambda s: f"{s[0].name}-{s[1]}-{s[2]}-{s[3]}")
def test_bubble_is_the_simulated_idle_time(shape: Shape) -> None:
    schedule, p, m, v = shape
    order = schedule.order(p, m, v)
    for f, b, w in product((1, 2, 5), repeat=3):
        times = Times(f=f, b=b, w=w)
        line = simulate(order, f, b, w)
        assert max(line.idle_s) == schedule.bubble(p, m, v, times)
        assert line.makespan_s == schedule.step(p, m, v, times)


@given(shapes(6), seconds, seconds, seconds, st.integers(0, 60))
@settings(max_examples=150, derandomize=True, deadline=None)
def test_sends_are_exact_or_a_lower_bound(shape: Shape, f: int, b: int, w: int, send: int) -> None:
    schedule, p, m, v = shape
    took = simulate(schedule.order(p, m, v), f, b, w, send).makespan_s
    told = schedule.step(p, m, v, Times(f=f, b=b, w=w, send=send))
    limit = EXACT_SENDS.get(schedule.name, lambda f, b, w: 0)(f, b, w)
    assert told == took if send <= limit else told <= took


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 14), (6, 12), (8, 20)])
@given(seconds, seconds, seconds, st.floats(0, 1))
@settings(max_examples=20, derandomize=True, deadline=None)
def test_pairs_that_overlap(p: int, m: int, f: int, b: int, w: int, saved: float) -> None:
    least = max(f, b + w)
    pair = least + int(saved * (f + b + w - least))
    dualpipe = schedules.find("dualpipe")
    line = simulate(dualpipe.order(p, m), f, b, w, 0, pair)
    times = Times(f=f, b=b, w=w, pair=pair)
    assert line.makespan_s == dualpipe.step(p, m, 2, times)
    assert line.idle_s[p // 2] == dualpipe.bubble(p, m, 2, times) == max(line.idle_s)


@given(shapes(), st.sampled_from((1.0, 0.5, 0.25, 0.0)))
@settings(max_examples=120, derandomize=True, deadline=None)
def test_activations_in_flight(shape: Shape, after_b: float) -> None:
    schedule, p, m, v = shape
    order = schedule.order(p, m, v)
    line = simulate(order, 1.0, 1.0, 1.0)
    for stage in range(p):
        held, at = order.n_held(stage, after_b)
        assert held == schedule.in_flight(p, m, v, stage, after_b)
        peak, span = line.peak(stage, after_b)
        assert (peak, span.event) == (held, order.stages[stage][at])
        assert span.event.kind == "F"


@given(shapes(5), st.tuples(*[st.integers(5, 20)] * 3), st.integers(0, 9), st.integers(0, 20))
@settings(max_examples=100, derandomize=True, deadline=None)
def test_ends_lengthen_a_step(
    shape: Shape, fbw: tuple[int, int, int], first: int, last: int
) -> None:
    schedule, p, m, v = shape
    rows = [[[float(t)] * v for _ in range(p)] for t in fbw]
    for path in schedule.paths(p, v):
        for (stage, chunk), extra in ((path[0], first), (path[-1], last)):
            for row in rows:
                row[stage][chunk] += extra
    took = simulate(schedule.order(p, m, v), *rows).makespan_s
    times = Times(f=fbw[0], b=fbw[1], w=fbw[2])
    told = schedule.step(p, m, v, times) + schedule.ends(p, m, v, 3 * first, 3 * last)
    plain = schedule.name in ("1f1b", "interleaved") and last >= first
    assert told == took if plain or schedule.name == "gpipe" else told >= took


@pytest.mark.parametrize("schedule", ALL, ids=lambda s: s.name)
def test_arrays_give_what_numbers_give(schedule: Schedule) -> None:
    p, m, v = (np.ravel(a) for a in np.meshgrid([1, 2, 3, 4, 8], [1, 4, 7, 16, 24], [1, 2, 4]))
    legal = schedule.legal(p, m, v)
    assert legal.any()
    assert not legal.all()
    times = {"f": 1.0 + 0.1 * p, "b": 1.5, "w": 0.5 + 0.1 * v, "send": 0.1}
    found = {
        "bubble": schedule.bubble(p, m, v, Times(**times)),
        "step": schedule.step(p, m, v, Times(**times)),
        "ends": schedule.ends(p, m, v, 0.5, 1.0),
        "in_flight": schedule.in_flight(p, m, v, p - 1, 0.5),
    }
    for i in range(len(p)):
        shape = (int(p[i]), int(m[i]), int(v[i]))
        assert legal[i] == schedule.legal(*shape)
        if legal[i]:
            one = Times(f=times["f"][i], b=1.5, w=times["w"][i], send=0.1)
            assert found["bubble"][i] == pytest.approx(schedule.bubble(*shape, one), rel=1e-12)
            assert found["step"][i] == pytest.approx(schedule.step(*shape, one), rel=1e-12)
            assert found["ends"][i] == schedule.ends(*shape, 0.5, 1.0)
            assert found["in_flight"][i] == schedule.in_flight(*shape, shape[0] - 1, 0.5)


def test_bubbles_of_the_ultra_scale_playbook() -> None:
    """Idle over work at p = 8 for (m, v) = (1, 1), (8, 1), (32, 1), (32, 8)."""
    times = Times(f=1.0, b=1.0, w=1.0)
    for name, m, v, ratio in (
        ("gpipe", 1, 1, 7),
        ("1f1b", 1, 1, 7),
        ("1f1b", 8, 1, 0.875),
        ("1f1b", 32, 1, 0.21875),
        ("interleaved", 32, 8, 0.02734375),
    ):
        schedule = schedules.find(name)
        assert schedule.bubble(8, m, v, times) / schedule.work(8, m, v, times) == ratio


@pytest.mark.parametrize("p", [2, 4, 8])
def test_what_the_papers_say_of_memory(p: int) -> None:
    m = 4 * p
    held = {s.name: [s.in_flight(p, m, s.chunks or 2, i) for i in range(p)] for s in ALL}
    assert held["gpipe"] == [m] * p
    assert held["1f1b"] == list(range(p, 0, -1))
    assert held["zb-h1"] == [p] * p
    assert held["zb-v"] == [2 * p] * p  # of half a stage: p microbatches, as 1F1B's first stage
    assert held["dualpipe"] == [p + 1] * p
    # 2104.04473 §2.2.2 and Korthikanti 2205.05198: 1 + (p-1)/(p v) of 1F1B's first stage.
    assert held["interleaved"][0] / 2 == p * (1 + (p - 1) / (p * 2))


@pytest.mark.parametrize("p", [2, 4, 8])
def test_what_the_papers_say_of_bubbles(p: int) -> None:
    m, one = 4 * p, Times(f=1, b=1, w=1)
    find = schedules.find
    assert 3 * find("zb-h1").bubble(p, m, 1, one) == find("1f1b").bubble(p, m, 1, one)
    assert find("gpipe").bubble(p, m, 1, one) == find("1f1b").bubble(p, m, 1, one)
    line = simulate(find("zb-v").order(p, m), 1.0, 1.0, 1.0)
    assert line.window_s == line.busy_s  # none of its stages ever waits
    published = Times(f=2, b=3, w=1)
    assert find("zb-h1").bubble(p, m, 1, published) == (p - 1) * (2 + 3 - 1)
    for f, w, pair in ((4, 2, 10), (4, 2, 8), (3, 1, 6)):  # F = B
        source = (p // 2 - 1) * (pair + (f + w) - 3 * w)
        assert find("dualpipe").bubble(p, m, 2, Times(f=f, b=f, w=w, pair=pair)) == source
