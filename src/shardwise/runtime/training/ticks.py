"""A pipeline schedule in lockstep: the event of each stage in every tick, and its buffer slots.

One program runs on all stages, and stages exchange results between ticks, so a tick has at most one
event per stage. The event, and the buffer slots that it reads and writes, are known before the
program is compiled.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from shardwise.strategy.schedules import Event, Order

TickTable = np.ndarray[tuple[int, int], np.dtype[np.int32]]
IDLE, FORWARD, BACKWARD, WEIGHTS = range(4)
KINDS = {"F": FORWARD, "B": BACKWARD, "W": WEIGHTS}
FIELDS = (
    "kind",
    "microbatch",
    "chunk",
    "first",  # whether the chunk has the first layers of the model
    "last",  # whether it has the last layers
    "keep_slot",  # slot of the chunk's saved activations, from F to the last event that reads them
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
        splits: whether some gradients of weights are computed by events of their own (W), after
            the gradients of activations.
    """

    rows: dict[str, TickTable]
    n_saved: int
    n_inputs: int
    up: bool
    down: bool
    splits: bool


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


def ticks(order: Order) -> Ticks:
    """Assign the events of a schedule to ticks and buffer slots; stages keep the order of events.

    Raises:
        ValueError: events wait for each other (deadlock).
    """
    tick_of = _tick_of_events(order)
    n_ticks = 1 + max(tick_of.values())
    rows = {name: np.zeros((n_ticks, len(order.stages)), np.int32) for name in FIELDS}
    for event, tick in tick_of.items():
        position = _position(order, event)
        cell = (tick, event.stage)
        rows["kind"][cell] = KINDS[event.kind]
        rows["microbatch"][cell] = event.microbatch
        rows["chunk"][cell] = event.chunk
        rows["first"][cell] = position == 0
        rows["last"][cell] = position == len(order.path(event.microbatch)) - 1
    n_saved = _allocate_activations(order, tick_of, rows["keep_slot"])
    n_inputs = _allocate_inputs(order, tick_of, rows)
    for name in ("from_previous", "from_next", "stay_slot"):
        rows[name][rows[name] < 0] = n_inputs
    return Ticks(
        rows=rows,
        n_saved=n_saved,
        n_inputs=n_inputs,
        up=bool((rows["from_previous"] < n_inputs).any()),
        down=bool((rows["from_next"] < n_inputs).any()),
        splits=any(e.kind == "W" for stage in order.stages for e in stage),
    )


def branch_counts(schedule: Ticks) -> dict[str, tuple[int, ...]]:
    """Count how often the stage with the model's last layer takes each branch in `pipeline`.

    Returns:
        Name scope of a conditional -> executions of each of its branches, in their order.
    """
    rows = schedule.rows
    (stage,) = {int(index) for index in np.nonzero(rows["last"])[1]}
    kinds = rows["kind"][:, stage]
    counts = [int((kinds == kind).sum()) for kind in range(3 + schedule.splits)]
    n_embeds = int((rows["first"][:, stage] & (kinds == FORWARD)).sum())
    n_heads = int((rows["last"][:, stage] & (kinds == BACKWARD)).sum())
    n_forward = counts[FORWARD]
    return {
        "stage.forward": (sum(counts) - n_forward, n_forward),
        "stage.backward": (counts[IDLE] + n_forward, *counts[BACKWARD:]),
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
        "stage.backward": max(kind - FORWARD, 0),
        "stage.embed": first,
        "stage.head": last,
    }


def _position(order: Order, event: Event) -> int:
    """Index of the event's chunk on the path of its microbatch through the model."""
    return order.path(event.microbatch).index((event.stage, event.chunk))


def _tick_of_events(order: Order) -> dict[Event, int]:
    """Assign each event to the first tick after all events that it depends on."""
    tick_of: dict[Event, int] = {}
    tick_of_key: dict[tuple[str, int, int], int] = {}  # (kind, microbatch, position)
    remaining = [list(reversed(stage)) for stage in order.stages]
    tick = 0
    while any(remaining):
        ready = []
        for events in remaining:
            if not events:
                continue
            dependencies = _dependencies(order, events[-1])
            if all(tick_of_key.get(key, tick) < tick for key in dependencies):
                ready.append(events.pop())
        if not ready:
            raise ValueError("the order of events has a deadlock")
        for event in ready:
            tick_of[event] = tick
            tick_of_key[event.kind, event.microbatch, _position(order, event)] = tick
        tick += 1
    return tick_of


def _dependencies(order: Order, event: Event) -> list[tuple[str, int, int]]:
    """(kind, microbatch, position) of the events that an event must come after."""
    position = _position(order, event)
    m = event.microbatch
    if event.kind == "W":
        return [("B", m, position)]
    if event.kind == "F":
        if position == 0:
            return []
        return [("F", m, position - 1)]
    dependencies = [("F", m, position)]
    if position + 1 < len(order.path(m)):
        dependencies.append(("B", m, position + 1))
    return dependencies


def _last_ticks(tick_of: dict[Event, int]) -> dict[tuple[int, int, int], int]:
    """Tick of the last event of each chunk: (stage, microbatch, chunk) -> tick."""
    last_ticks: dict[tuple[int, int, int], int] = {}
    for event, tick in tick_of.items():
        key = (event.stage, event.microbatch, event.chunk)
        last_ticks[key] = max(last_ticks.get(key, 0), tick)
    return last_ticks


def _allocate_activations(order: Order, tick_of: dict[Event, int], table: TickTable) -> int:
    """Write the slots of saved activations to `table`; return the number of slots.

    A slot is in use from F to the last event that reads the activations.
    """
    last_ticks = _last_ticks(tick_of)
    n_slots = 0
    for events in order.stages:
        slots = _Slots(0, [])
        slot_of: dict[tuple[int, int, int], int] = {}
        for event in events:
            key = (event.stage, event.microbatch, event.chunk)
            if event.kind == "F":
                slot_of[key] = slots.allocate()
            table[tick_of[event], event.stage] = slot_of[key]
            if tick_of[event] == last_ticks[key]:
                slots.release(slot_of[key])
        n_slots = max(n_slots, slots.n_slots)
    return n_slots


def _allocate_inputs(order: Order, tick_of: dict[Event, int], rows: dict[str, TickTable]) -> int:
    """Write the slots of inputs to `rows`; return the number of slots.

    A slot is in use from the arrival of an input to the last event that reads it.
    """
    for name in ("from_previous", "from_next", "stay_slot"):
        rows[name][:] = -1
    n_slots = 0
    for stage, events in enumerate(order.stages):
        slots = _Slots(0, [])
        occupied: list[tuple[int, int]] = []  # (last tick, slot)
        for start, end, direction, event in _arrivals(order, tick_of, stage):
            while occupied and occupied[0][0] <= start:
                slots.release(heapq.heappop(occupied)[1])
            slot = slots.allocate()
            heapq.heappush(occupied, (end, slot))
            rows[direction][start, stage] = slot
            for reader in events:
                same_chunk = (reader.microbatch, reader.chunk) == (event.microbatch, event.chunk)
                is_deferred = event.kind == "B" and reader.kind == "W"
                if same_chunk and (reader is event or is_deferred):
                    rows["read_slot"][tick_of[reader], stage] = slot
        n_slots = max(n_slots, slots.n_slots)
    return n_slots


def _arrivals(
    order: Order, tick_of: dict[Event, int], stage: int
) -> list[tuple[int, int, str, Event]]:
    """Inputs of a stage: (tick of arrival, tick of the last reader, field, first reader).

    The field is the one of `FIELDS` that has the slot of an input from that direction.
    """
    last_ticks = _last_ticks(tick_of)
    arrivals = []
    for event in order.stages[stage]:
        source = _source(order, event)
        if source is None:
            continue
        end = tick_of[event]
        if event.kind == "B":
            end = last_ticks[stage, event.microbatch, event.chunk]
        direction = "from_next"
        if source.stage == stage:
            direction = "stay_slot"
        elif source.stage == (stage - 1) % len(order.stages):
            direction = "from_previous"
        arrivals.append((tick_of[source], end, direction, event))
    return sorted(arrivals, key=lambda arrival: arrival[:3])


def _source(order: Order, event: Event) -> Event | None:
    """The event whose result an event reads, None if it reads no result.

    B of the last chunk reads the result of F of that chunk.
    """
    path = order.path(event.microbatch)
    position = _position(order, event)
    if event.kind == "F":
        if position == 0:
            return None
        stage, chunk = path[position - 1]
        return Event(stage, "F", event.microbatch, chunk)
    if event.kind == "W":
        return None
    if position + 1 == len(path):
        return Event(event.stage, "F", event.microbatch, event.chunk)
    stage, chunk = path[position + 1]
    return Event(stage, "B", event.microbatch, chunk)
