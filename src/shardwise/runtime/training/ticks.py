"""A schedule's events in lockstep: what each stage does in every tick, and where results wait.

One program runs on all stages, and stages exchange results between ticks. So a tick is one event of
each stage at most. Which event, and the places in memory of what it reads and leaves, are numbers
known before the program is compiled.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from shardwise.strategy.schedules import Event, Order

Table = np.ndarray[tuple[int, int], np.dtype[np.int32]]
Visit = tuple[int, int]  # microbatch, position on its path

IDLE, FORWARD, BACKWARD, WEIGHTS = range(4)
KINDS = {"F": FORWARD, "B": BACKWARD, "W": WEIGHTS}
FIELDS = (
    "kind",
    "microbatch",
    "chunk",
    "first",  # whether the chunk is the first of the model
    "last",
    "kept",  # where its activations lie between F and the last event that reads them
    "reads",  # where its input lies
    "from_below",  # where what arrives from the stage before goes
    "from_above",
    "stays",  # where its own result goes, if it stays on the stage
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticks:
    """Tables [tick, stage] of numbers.

    Args:
        rows: by the names of `FIELDS`. A place that nothing goes to is `n_inputs`: one more than
            there are.
        n_kept: places for activations of a chunk.
        n_inputs: places for what a chunk is given: activations, or gradients of them.
        up, down: whether anything is sent to the stage after, or before.
        splits: whether some gradients of weights are computed later than those of activations.
    """

    rows: dict[str, Table]
    n_kept: int
    n_inputs: int
    up: bool
    down: bool
    splits: bool


@dataclass(slots=True)
class _Places:
    """Places in memory that are given out again when they are free."""

    n: int
    free: list[int]

    def take(self) -> int:
        if self.free:
            return heapq.heappop(self.free)
        self.n += 1
        return self.n - 1

    def give(self, place: int) -> None:
        heapq.heappush(self.free, place)


def ticks(order: Order) -> Ticks:
    """The order as tables; every stage keeps its order of events.

    Raises:
        ValueError: an order that waits for itself.
    """
    when = _when(order)
    n, p = 1 + max(when.values()), len(order.stages)
    rows = {name: np.zeros((n, p), np.int32) for name in FIELDS}
    for event, tick in when.items():
        at, s = _position(order, event), event.stage
        rows["kind"][tick, s] = KINDS[event.kind]
        rows["microbatch"][tick, s], rows["chunk"][tick, s] = event.microbatch, event.chunk
        rows["first"][tick, s] = at == 0
        rows["last"][tick, s] = at == len(order.path(event.microbatch)) - 1
    n_kept = _keep(order, when, rows["kept"])
    n_inputs = _inputs(order, when, rows)
    for name in ("from_below", "from_above", "stays"):
        rows[name][rows[name] < 0] = n_inputs
    return Ticks(
        rows=rows,
        n_kept=n_kept,
        n_inputs=n_inputs,
        up=bool((rows["from_below"] < n_inputs).any()),
        down=bool((rows["from_above"] < n_inputs).any()),
        splits=any(e.kind == "W" for stage in order.stages for e in stage),
    )


def taken(found: Ticks) -> dict[str, tuple[int, ...]]:
    """How often the stage with the end of the model takes each side of the choices in `pipeline`.

    By the name scopes that they have there.
    """
    kinds, first, last = (found.rows[name] for name in ("kind", "first", "last"))
    (stage,) = {int(s) for s in np.nonzero(last)[1]}
    n = [int((kinds[:, stage] == kind).sum()) for kind in range(3 + found.splits)]
    embeds = int((first[:, stage] & (kinds[:, stage] == FORWARD)).sum())
    heads = int((last[:, stage] & (kinds[:, stage] == BACKWARD)).sum())
    return {
        "stage": tuple(n),
        "stage.embed": (n[FORWARD] - embeds, embeds),
        "stage.head": (n[BACKWARD] - heads, heads),
    }


def _position(order: Order, event: Event) -> int:
    return order.path(event.microbatch).index((event.stage, event.chunk))


def _when(order: Order) -> dict[Event, int]:
    """The tick of each event: the first after all that it needs."""
    ended: dict[tuple[str, int, int], int] = {}  # kind, microbatch, position -> tick
    found: dict[Event, int] = {}
    waiting = [list(reversed(stage)) for stage in order.stages]
    tick = 0
    while any(waiting):
        now = []
        for stage in waiting:
            if stage and all(ended.get(key, tick) < tick for key in _needs(order, stage[-1])):
                now.append(stage.pop())
        if not now:
            raise ValueError("the order of events waits for itself")
        for event in now:
            found[event] = tick
            ended[event.kind, event.microbatch, _position(order, event)] = tick
        tick += 1
    return found


def _needs(order: Order, event: Event) -> Iterable[tuple[str, int, int]]:
    """What has to have ended in an earlier tick."""
    at, m = _position(order, event), event.microbatch
    if event.kind == "F":
        return [("F", m, at - 1)] if at else []
    if event.kind == "W":
        return [("B", m, at)]
    after = at + 1 < len(order.path(m))
    return [("F", m, at), *([("B", m, at + 1)] if after else [])]


def _ends(order: Order, when: dict[Event, int]) -> dict[tuple[int, int, int], int]:
    """(stage, microbatch, chunk) -> tick of the last event on it."""
    found: dict[tuple[int, int, int], int] = {}
    for event, tick in when.items():
        key = (event.stage, event.microbatch, event.chunk)
        found[key] = max(found.get(key, 0), tick)
    return found


def _keep(order: Order, when: dict[Event, int], kept: Table) -> int:
    """Places of activations, from F to the last event that reads them."""
    ends, most = _ends(order, when), 0
    for events in order.stages:
        places, taken = _Places(0, []), {}
        for event in events:
            key = (event.stage, event.microbatch, event.chunk)
            if event.kind == "F":
                taken[key] = places.take()
            kept[when[event], event.stage] = taken[key]
            if when[event] == ends[key]:
                places.give(taken[key])
        most = max(most, places.n)
    return most


def _inputs(order: Order, when: dict[Event, int], rows: dict[str, Table]) -> int:
    """Places of what events are given, from the tick of its arrival to that of its last reader."""
    ends, most = _ends(order, when), 0
    for name in ("from_below", "from_above", "stays"):
        rows[name][:] = -1
    for s, events in enumerate(order.stages):
        arrives: list[tuple[int, int, str, Event]] = []  # from, until, way, event that reads it
        for event in events:
            source = _source(order, event)
            if source is None:
                continue
            until = ends[s, event.microbatch, event.chunk] if event.kind == "B" else when[event]
            below = source.stage == (s - 1) % len(order.stages)
            way = "stays" if source.stage == s else "from_below" if below else "from_above"
            arrives.append((when[source], until, way, event))
        places = _Places(0, [])
        busy: list[tuple[int, int]] = []  # until, place
        for start, until, way, event in sorted(arrives, key=lambda a: (a[0], a[1], a[2])):
            while busy and busy[0][0] <= start:
                places.give(heapq.heappop(busy)[1])
            place = places.take()
            heapq.heappush(busy, (until, place))
            rows[way][start, s] = place
            for reader in events:
                same = (reader.microbatch, reader.chunk) == (event.microbatch, event.chunk)
                if same and (reader is event or (event.kind == "B" and reader.kind == "W")):
                    rows["reads"][when[reader], s] = place
        most = max(most, places.n)
    return most


def _source(order: Order, event: Event) -> Event | None:
    """The event whose result this one reads; the last B reads the result of its own F."""
    path, at = order.path(event.microbatch), _position(order, event)
    if event.kind == "F":
        return Event(path[at - 1][0], "F", event.microbatch, path[at - 1][1]) if at else None
    if event.kind == "W":
        return None
    if at + 1 == len(path):
        return Event(event.stage, "F", event.microbatch, event.chunk)
    return Event(path[at + 1][0], "B", event.microbatch, path[at + 1][1])
