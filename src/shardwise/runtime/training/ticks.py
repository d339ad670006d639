"""A pipeline schedule in lockstep: the event of each stage in every tick, and its buffer slots.

One program runs on all stages, and stages exchange results between ticks, so a tick has at most one
event per stage, and takes as long as the longest of them. The event, and the buffer slots that it
reads and writes, are known before the program is compiled.

A backward event takes as long as two forward events, or three if it recomputes the forward pass.
Where stages alternate forward and backward events, as under 1F1B, a stage with a forward event
would wait for those with a backward event in every tick. So a backward event may be divided into
parts, a tick each, which run an equal number of the chunk's layers: the last layers first.

Zero-bubble schedules compute gradients of weights in events of their own (W). The program computes
them in the backward event: a W would have to repeat the chain of gradients of activations, which
takes more time than the bubbles that it fills.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shardwise.strategy.schedules import Order

TickTable = np.ndarray[tuple[int, int], np.dtype[np.int32]]
IDLE, FORWARD, BACKWARD = range(3)
KINDS = {"F": FORWARD, "B": BACKWARD}
FIELDS = (
    "kind",
    "microbatch",
    "chunk",
    "first",  # whether the event has the first layers of the model
    "last",  # whether it has the last layers
    "part",  # of a backward event: which part of the chunk's layers, counted from the first layers
    "keep_slot",  # slot of the chunk's saved activations, from F to the last part of B
    "read_slot",  # slot from which the event reads its input
    "from_previous",  # slot that receives what the previous stage sends after this tick
    "from_next",  # slot that receives what the next stage sends after this tick
    "stay_slot",  # slot for the event's own result, if the same stage reads it later
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticks:
    """The events of a schedule, as integer tables [tick, stage].

    Args:
        rows: name of `FIELDS` -> table. Results that nobody reads go to the slot `n_inputs`, behind
            the last one.
        n_saved: number of slots for the saved activations of a chunk.
        n_inputs: number of slots for inputs of a chunk: activations, or their gradients.
        up: whether any stage sends to the next one.
        down: whether any stage sends to the previous one.
        parts: number of parts of a backward event.
    """

    rows: dict[str, TickTable]
    n_saved: int
    n_inputs: int
    up: bool
    down: bool
    parts: int = 1

    def seconds(self, backward_s: float) -> float:
        """Time of all ticks, for a backward event that takes so many times a forward event."""
        seconds = np.array([0.0, 1.0, backward_s / self.parts])
        return float(seconds[self.rows["kind"]].max(axis=1).sum())


class _Event(NamedTuple):
    """An event of a schedule, or a part of a backward event.

    `part` is counted in the order of execution; all other events have one part.
    """

    stage: int
    kind: str
    microbatch: int
    chunk: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class _Events:
    """The forward and backward events of an order, the latter in parts."""

    order: Order
    parts: int

    @property
    def stages(self) -> list[list[_Event]]:
        """The events of each stage."""
        return [
            [
                _Event(event.stage, event.kind, event.microbatch, event.chunk, part)
                for event in events
                if event.kind in KINDS
                for part in range(self.n_parts(event.kind))
            ]
            for events in self.order.stages
        ]

    def n_parts(self, kind: str) -> int:
        """Number of parts of events of a kind."""
        return self.parts if kind == "B" else 1

    def position(self, event: _Event) -> int:
        """Index of the event's chunk on the path of its microbatch through the model."""
        return self.path(event).index((event.stage, event.chunk))

    def path(self, event: _Event) -> Sequence[tuple[int, int]]:
        """The (stage, chunk) pairs that the event's microbatch passes."""
        return self.order.path(event.microbatch)


@dataclass(slots=True)
class _Slots:
    """Allocator of buffer slots, which reuses the lowest released one."""

    n_slots: int
    released: list[int]

    def allocate(self) -> int:
        """Take the lowest free slot, or a new one."""
        if self.released:
            return heapq.heappop(self.released)
        self.n_slots += 1
        return self.n_slots - 1

    def release(self, slot: int) -> None:
        """Free a slot."""
        heapq.heappush(self.released, slot)


def pipeline_ticks(order: Order, n_layers: int, *, recomputes: bool) -> Ticks:
    """The ticks of a schedule, with backward events in as many parts as take the least time.

    Args:
        n_layers: number of layers of a chunk, which the number of parts has to divide.
        recomputes: whether a backward event runs the forward pass of its layers again.

    Raises:
        ValueError: events wait for each other (deadlock).
    """
    backward_s = 3.0 if recomputes else 2.0
    whole = ticks(order)
    divided = [ticks(order, parts) for parts in (2, 3) if n_layers % parts == 0]
    return min([whole, *divided], key=lambda candidate: round(candidate.seconds(backward_s), 6))


def ticks(order: Order, parts: int = 1) -> Ticks:
    """Assign the events of a schedule to ticks and buffer slots; stages keep the order of events.

    Args:
        parts: number of parts of a backward event.

    Raises:
        ValueError: events wait for each other (deadlock).
    """
    events = _Events(order, parts)
    tick_of = _tick_of_events(events)
    n_ticks = 1 + max(tick_of.values())
    rows = {name: np.zeros((n_ticks, len(order.stages)), np.int32) for name in FIELDS}
    for event, tick in tick_of.items():
        position = events.position(event)
        n_parts = events.n_parts(event.kind)
        cell = (tick, event.stage)
        rows["kind"][cell] = KINDS[event.kind]
        rows["microbatch"][cell] = event.microbatch
        rows["chunk"][cell] = event.chunk
        rows["first"][cell] = position == 0 and event.part == n_parts - 1
        rows["last"][cell] = position == len(events.path(event)) - 1 and event.part == 0
        rows["part"][cell] = n_parts - 1 - event.part
    n_saved = _allocate_activations(events, tick_of, rows["keep_slot"])
    n_inputs = _allocate_inputs(events, tick_of, rows)
    for name in ("from_previous", "from_next", "stay_slot"):
        rows[name][rows[name] < 0] = n_inputs
    return Ticks(
        rows=rows,
        n_saved=n_saved,
        n_inputs=n_inputs,
        up=bool((rows["from_previous"] < n_inputs).any()),
        down=bool((rows["from_next"] < n_inputs).any()),
        parts=parts,
    )


def branch_counts(schedule: Ticks) -> dict[str, tuple[int, ...]]:
    """Count how often the stage with the model's last layer takes each branch in `pipeline`.

    Returns:
        Name scope of a conditional -> executions of each of its branches, in their order.
    """
    rows = schedule.rows
    (stage,) = {int(index) for index in np.nonzero(rows["last"])[1]}
    kinds = rows["kind"][:, stage]
    counts = [int((kinds == kind).sum()) for kind in (IDLE, FORWARD, BACKWARD)]
    n_embeds = int((rows["first"][:, stage] & (kinds == FORWARD)).sum())
    n_heads = int((rows["last"][:, stage] & (kinds == BACKWARD)).sum())
    n_forward = counts[FORWARD]
    return {
        "stage.forward": (sum(counts) - n_forward, n_forward),
        "stage.backward": (counts[IDLE] + n_forward, counts[BACKWARD]),
        "stage.embed": (counts[FORWARD] - n_embeds, n_embeds),
        "stage.head": (counts[BACKWARD] - n_heads, n_heads),
    }


def lockstep(schedule: Ticks) -> tuple[tuple[int, tuple[dict[str, int], ...]], ...]:
    """Group the ticks by the branches that the stages take in them.

    Returns:
        For each group (number of ticks, branches: name scope of a conditional in `pipeline` ->
        index of the branch, a mapping for each kind of event that a stage executes in such a tick).
    """
    groups: dict[frozenset[tuple[int, int, int]], int] = {}
    columns = (schedule.rows[name] for name in ("kind", "first", "last"))
    for events in np.stack(list(columns), axis=-1):
        key = frozenset((int(kind), int(first), int(last)) for kind, first, last in events)
        groups[key] = groups.get(key, 0) + 1
    return tuple(
        (n_ticks, tuple(_branches(*event) for event in sorted(events)))
        for events, n_ticks in groups.items()
    )


def _branches(kind: int, first: int, last: int) -> dict[str, int]:
    """The branches that an event takes: name scope of a conditional -> index of the branch."""
    return {
        "stage.forward": int(kind == FORWARD),
        "stage.backward": int(kind == BACKWARD),
        "stage.embed": first,
        "stage.head": last,
    }


def _tick_of_events(events: _Events) -> dict[_Event, int]:
    """Assign each event to the first tick after all events that it depends on."""
    tick_of: dict[_Event, int] = {}
    remaining = [list(reversed(stage)) for stage in events.stages]
    tick = 0
    while any(remaining):
        ready = []
        for stage in remaining:
            if not stage:
                continue
            dependencies = _dependencies(events, stage[-1])
            if all(tick_of.get(event, tick) < tick for event in dependencies):
                ready.append(stage.pop())
        if not ready:
            raise ValueError("the order of events has a deadlock")
        for event in ready:
            tick_of[event] = tick
        tick += 1
    return tick_of


def _dependencies(events: _Events, event: _Event) -> list[_Event]:
    """The events that an event must come after, except the earlier ones of its stage."""
    source = _source(events, event)
    dependencies = [] if source is None else [source]
    if event.kind == "B":
        dependencies.append(event._replace(kind="F", part=0))
    return dependencies


def _allocate_activations(events: _Events, tick_of: dict[_Event, int], table: TickTable) -> int:
    """Write the slots of saved activations to `table`; return the number of slots.

    A slot is in use from F to the last part of B.
    """
    n_slots = 0
    for stage_events in events.stages:
        slots = _Slots(0, [])
        slot_of: dict[tuple[int, int, int], int] = {}
        for event in stage_events:
            key = (event.stage, event.microbatch, event.chunk)
            if event.kind == "F":
                slot_of[key] = slots.allocate()
            table[tick_of[event], event.stage] = slot_of[key]
            if event.kind == "B" and event.part == events.parts - 1:
                slots.release(slot_of[key])
        n_slots = max(n_slots, slots.n_slots)
    return n_slots


def _allocate_inputs(
    events: _Events, tick_of: dict[_Event, int], rows: dict[str, TickTable]
) -> int:
    """Write the slots of inputs to `rows`; return the number of slots.

    A slot is in use from the arrival of an input to the event that reads it.
    """
    for name in ("from_previous", "from_next", "stay_slot"):
        rows[name][:] = -1
    n_slots = 0
    for stage in range(len(events.order.stages)):
        slots = _Slots(0, [])
        occupied: list[tuple[int, int]] = []  # (last tick, slot)
        for start, end, direction in _arrivals(events, tick_of, stage):
            while occupied and occupied[0][0] <= start:
                slots.release(heapq.heappop(occupied)[1])
            slot = slots.allocate()
            heapq.heappush(occupied, (end, slot))
            rows[direction][start, stage] = slot
            rows["read_slot"][end, stage] = slot
        n_slots = max(n_slots, slots.n_slots)
    return n_slots


def _arrivals(
    events: _Events, tick_of: dict[_Event, int], stage: int
) -> list[tuple[int, int, str]]:
    """Inputs of a stage: (tick of arrival, tick of the event that reads it, field).

    The field is the one of `FIELDS` that has the slot of an input from that direction.
    """
    arrivals = []
    for event in events.stages[stage]:
        source = _source(events, event)
        if source is None:
            continue
        direction = "from_next"
        if source.stage == stage:
            direction = "stay_slot"
        elif source.stage == (stage - 1) % len(events.order.stages):
            direction = "from_previous"
        arrivals.append((tick_of[source], tick_of[event], direction))
    return sorted(arrivals)


def _source(events: _Events, event: _Event) -> _Event | None:
    """The event whose result an event reads, None if it reads no result.

    B of the last chunk reads the result of F of that chunk, a further part of B that of the part
    before it.
    """
    path = events.path(event)
    position = events.position(event)
    if event.kind == "F":
        if position == 0:
            return None
        stage, chunk = path[position - 1]
        return _Event(stage, "F", event.microbatch, chunk)
    if event.part:
        return event._replace(part=event.part - 1)
    if position + 1 == len(path):
        return event._replace(kind="F")
    stage, chunk = path[position + 1]
    return _Event(stage, "B", event.microbatch, chunk, events.parts - 1)
