"""Simulate a schedule: every event starts as soon as its inputs and its stage are ready."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardwise.errors import BadInput, BadShape, raise_all
from shardwise.strategy.schedules._event import Event, Kind, Order

# Seconds of an event: one number for all, one per stage, or one per chunk of each stage.
Durations = float | Sequence[float] | Sequence[Sequence[float]]


class TimedEvent(NamedTuple):
    """An event with its start and end in seconds from the start of the step."""

    event: Event
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Start and end of every event of a pipeline.

    Args:
        order: the events of each stage, in execution order.
        stages: the same events with their times.
        busy_s: seconds in which each stage runs events.
    """

    order: Order
    stages: tuple[tuple[TimedEvent, ...], ...]
    busy_s: tuple[float, ...]

    @property
    def makespan_s(self) -> float:
        """Seconds from the first start to the last end."""
        return max(events[-1].end_s for events in self.stages)

    @property
    def idle_s(self) -> tuple[float, ...]:
        """Seconds of the step in which each stage is idle: makespan - busy time."""
        return tuple(self.makespan_s - busy for busy in self.busy_s)

    @property
    def window_s(self) -> tuple[float, ...]:
        """Seconds from the first start to the last end of each stage.

        The longest is the time per step if each stage starts the next step without waiting for the
        others. This needs an optimizer that allows it (arXiv 2401.10241 §4, post-validation).
        """
        return tuple(events[-1].end_s - events[0].start_s for events in self.stages)

    def peak(self, stage: int, after_b: float = 1.0) -> tuple[float, TimedEvent]:
        """Peak activation memory of `stage` in chunks, and the event that reaches it."""
        n_chunks, index = self.order.n_held(stage, after_b)
        return n_chunks, self.stages[stage][index]


def simulate(
    order: Order,
    f_s: Durations,
    b_s: Durations,
    w_s: Durations,
    send_s: float = 0.0,
    pair_s: Durations | None = None,
) -> Timeline:
    """Simulate a pipeline: the start and end of every event of `order`.

    Args:
        order: events of each stage, in execution order.
        f_s, b_s, w_s: seconds of one event: the forward pass of one chunk, the gradient of its
            input, the gradient of its weights. A `B` without a `W` takes b_s + w_s.
        send_s: seconds from the end of an event until another stage can use its result. Sending
            does not occupy a stage.
        pair_s: seconds of two paired events; by default the sum of both.

    Raises:
        BadShape: durations are given for another number of stages or chunks.
        BadInput: a deadlock: some events wait for each other.
    """
    durations = {"F": f_s, "B": b_s, "W": w_s}
    if pair_s is not None:
        durations["pair"] = pair_s
    return _Simulation(order, _per_chunk(order, durations), send_s).run()


def _per_chunk(order: Order, durations: dict[str, Durations]) -> dict[str, list[list[float]]]:
    """The durations as one number for each chunk of each stage."""
    n_stages = len(order.stages)
    n_chunks = 1 + max(chunk for path in order.paths for _, chunk in path)
    per_chunk = {}
    problems = []
    for name, value in durations.items():
        rows = _rows(value, n_stages, n_chunks)
        if len(rows) != n_stages:
            problems.append(
                f"{name} durations for {len(rows)} stages; the schedule has {n_stages}."
            )
        for stage, row in enumerate(rows):
            if len(row) != n_chunks:
                problems.append(
                    f"{name} durations of stage {stage} for {len(row)} chunks; the schedule has "
                    f"{n_chunks}."
                )
        per_chunk[name] = rows
    raise_all(BadShape, problems)
    return per_chunk


def _rows(value: Durations, n_stages: int, n_chunks: int) -> list[list[float]]:
    """Durations as [stage][chunk], however they are given."""
    if not isinstance(value, Sequence):
        return [[value] * n_chunks for _ in range(n_stages)]
    rows = []
    for of_stage in value:
        if isinstance(of_stage, Sequence):
            rows.append(list(of_stage))
        else:
            rows.append([of_stage] * n_chunks)
    return rows


class _Simulation:
    """A simulation in progress: the events that each stage has run so far, with their times."""

    def __init__(self, order: Order, seconds: dict[str, list[list[float]]], send_s: float) -> None:
        self.order = order
        self.seconds = seconds
        self.send_s = send_s
        self.positions = []  # one dict per path: (stage, chunk) -> position on the path
        for path in order.paths:
            self.positions.append({place: position for position, place in enumerate(path)})
        self.with_w = set()  # (stage, microbatch, chunk) whose `B` has a separate `W`
        for events in order.stages:
            for event in events:
                if event.kind == "W":
                    self.with_w.add((event.stage, event.microbatch, event.chunk))
        self.end_s: dict[tuple[Kind, int, int], float] = {}  # kind, microbatch, position
        self.stages: list[list[TimedEvent]] = [[] for _ in order.stages]
        self.busy_s = [0.0] * len(order.stages)

    def run(self) -> Timeline:
        """Advance the stages in turn, each as far as possible, until all have finished."""
        unfinished = [stage for stage, events in enumerate(self.order.stages) if events]
        while unfinished:
            advanced = [stage for stage in unfinished if self.advance(stage)]
            if not advanced:
                raise BadInput(*map(self._deadlock, unfinished))
            unfinished = [stage for stage in unfinished if not self._finished(stage)]
        stages = tuple(map(tuple, self.stages))
        return Timeline(order=self.order, stages=stages, busy_s=tuple(self.busy_s))

    def _finished(self, stage: int) -> bool:
        return len(self.stages[stage]) == len(self.order.stages[stage])

    def advance(self, stage: int) -> bool:
        """Run the next events of `stage` until one is not ready; return whether any ran."""
        events = self.order.stages[stage]
        timed = self.stages[stage]
        n_before = len(timed)
        while not self._finished(stage):
            group = events[len(timed) : len(timed) + 1]
            if group[0].paired:
                group = events[len(timed) : len(timed) + 2]
            start = 0.0
            if timed:
                start = timed[-1].end_s
            for event in group:
                ready_s = self._ready_s(event)
                if ready_s is None:
                    return len(timed) > n_before
                start = max(start, ready_s)
            duration = self._duration_s(group)
            self.busy_s[stage] += duration
            for event in group:
                timed.append(TimedEvent(event, start, start + duration))
                key = (event.kind, event.microbatch, self._position(event))
                self.end_s[key] = start + duration
        return len(timed) > n_before

    def _position(self, event: Event) -> int:
        """The position of an event on the path of its microbatch."""
        return self.positions[event.microbatch % len(self.positions)][event.stage, event.chunk]

    def _ready_s(self, event: Event) -> float | None:
        """Time at which the inputs of `event` are on its stage; None if it is not known yet."""
        path = self.order.path(event.microbatch)
        latest = 0.0
        for kind, position in needs(event.kind, self._position(event), len(path)):
            end_s = self.end_s.get((kind, event.microbatch, position))
            if end_s is None:
                return None
            source_stage, _ = path[position]
            if source_stage != event.stage:
                end_s += self.send_s
            latest = max(latest, end_s)
        return latest

    def _duration_s(self, group: tuple[Event, ...]) -> float:
        """Seconds of one event or of a pair."""
        if len(group) == 2 and "pair" in self.seconds:
            return self.seconds["pair"][group[0].stage][group[0].chunk]
        return sum(self._unpaired_s(event) for event in group)

    def _unpaired_s(self, event: Event) -> float:
        seconds = self.seconds[event.kind][event.stage][event.chunk]
        if event.kind == "B" and (event.stage, event.microbatch, event.chunk) not in self.with_w:
            seconds += self.seconds["W"][event.stage][event.chunk]
        return seconds

    def _deadlock(self, stage: int) -> str:
        event = self.order.stages[stage][len(self.stages[stage])]
        return f"stage {stage} waits forever at {event}: an event that it needs never runs."


def needs(kind: Kind, position: int, length: int) -> tuple[tuple[Kind, int], ...]:
    """The events of the same microbatch that must end first, as (kind, position on the path).

    Args:
        kind: kind of the event.
        position: its position on the path.
        length: length of the path.
    """
    if kind == "W":
        return (("B", position),)
    if kind == "B":
        if position + 1 == length:
            return (("F", position),)
        return (("F", position), ("B", position + 1))
    if position == 0:
        return ()
    return (("F", position - 1),)
