"""Shapes of schedules to try, and a second way to say when events run."""

from __future__ import annotations

from graphlib import TopologicalSorter
from itertools import pairwise

from hypothesis import strategies as st

from shardwise.strategy import schedules
from shardwise.strategy.schedules import Event, Order, Schedule

ALL = tuple(schedules.schedules().values())
Shape = tuple[Schedule, int, int, int]
Node = tuple[str, int, int]  # kind, microbatch, place on its path


@st.composite
def shapes(draw: st.DrawFn, most_stages: int = 8) -> Shape:
    """A schedule with stages, microbatches and chunks that it allows."""
    schedule = draw(st.sampled_from(ALL))
    pairs = 2 if schedule.name == "dualpipe" else 1
    p = pairs * draw(st.integers(1, most_stages // pairs))
    v = schedule.chunks or draw(st.integers(2, 4))
    least = {"gpipe": 1, "1f1b": 1, "interleaved": p, "zb-h1": p, "zb-v": 2 * p - 1}
    low = least.get(schedule.name, 2 * p)
    step = p if schedule.name == "interleaved" else pairs
    return schedule, p, low + step * draw(st.integers(0, 2 + 8 // step)), v


def grid(most_stages: int = 6) -> list[Shape]:
    """Every schedule at each small p, and a few m from its least on."""
    found = []
    for schedule in ALL:
        for p in range(1, most_stages + 1):
            chunks = (schedule.chunks,) if schedule.chunks else (2, 3)
            some = [m for m in range(1, 5 * p) if schedule.legal(p, m, chunks[0])]
            few = sorted({*some[:3], some[-1]}) if some else []
            found += [(schedule, p, m, v) for m in few for v in chunks]
    return found


def node(order: Order, event: Event) -> Node:
    path = order.path(event.microbatch)
    return event.kind, event.microbatch, path.index((event.stage, event.chunk))


def inputs(order: Order, event: Event) -> list[Node]:
    """What must have ended before `event`, said from the definition of back-propagation."""
    kind, i, place = node(order, event)
    if kind == "W":
        return [("B", i, place)]
    if kind == "F":
        return [("F", i, place - 1)] if place else []
    last = len(order.path(i)) - 1
    return [("F", i, place)] + ([("B", i, place + 1)] if place < last else [])


def makespan(order: Order, f: float, b: float, w: float, send: float = 0.0) -> float:
    """The longest path through the graph of events, pairs one after the other."""
    events = {node(order, e): e for row in order.stages for e in row}
    split = {n[1:] for n in events if n[0] == "W"}
    before = {n: inputs(order, event) for n, event in events.items()}
    for row in order.stages:
        for earlier, later in pairwise(row):
            before[node(order, later)].append(node(order, earlier))
    end: dict[Node, float] = {}
    for n in TopologicalSorter(before).static_order():
        own = {"F": f, "W": w, "B": b if n[1:] in split else b + w}[n[0]]
        here = events[n].stage
        ready = [end[s] + (send if events[s].stage != here else 0.0) for s in before[n]]
        end[n] = own + max(ready, default=0.0)
    return max(end.values())
