"""Run a schedule: every event starts as soon as its inputs and its stage are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardwise.errors import BadInput, BadShape
from shardwise.strategy.schedules._event import Event, Kind, Order

# One figure for every event, one for each stage, or one for each chunk of each stage.
Durations = float | Sequence[float] | Sequence[Sequence[float]]


class Span(NamedTuple):
    """An event with its start and end in seconds from the start of the step."""

    event: Event
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """When every event of a pipeline ran. Bubbles are what is between them."""

    order: Order
    stages: tuple[tuple[Span, ...], ...]
    busy_s: tuple[float, ...]

    @property
    def makespan_s(self) -> float:
        """Seconds from the first start to the last end."""
        return max(spans[-1].end_s for spans in self.stages)

    @property
    def idle_s(self) -> tuple[float, ...]:
        """For each stage, the seconds of the step in which it waits: makespan less work."""
        return tuple(self.makespan_s - busy for busy in self.busy_s)

    @property
    def window_s(self) -> tuple[float, ...]:
        """For each stage, seconds from its own first start to its own last end.

        The longest is what a step costs when a stage goes on to the next step without waiting for
        the others, which needs an optimizer that does not (2401.10241 §4, post-validation).
        """
        return tuple(spans[-1].end_s - spans[0].start_s for spans in self.stages)

    def peak(self, stage: int, after_b: float = 1.0) -> tuple[float, Span]:
        """Most chunks of activations held at once on `stage`, and the span that gets there."""
        held, at = self.order.n_held(stage, after_b)
        return held, self.stages[stage][at]


def simulate(
    order: Order,
    f_s: Durations,
    b_s: Durations,
    w_s: Durations,
    send_s: float = 0.0,
    pair_s: Durations | None = None,
) -> Timeline:
    """When each event of `order` runs.

    Args:
        order: events of each stage, in its order.
        f_s, b_s, w_s: seconds of one event: the forward pass of one chunk, the backward pass to
            its input, its gradients of weights. A `B` without a `W` lasts b_s + w_s.
        send_s: seconds from the end of an event until another stage can use its result. Sending
            does not occupy a stage.
        pair_s: seconds of two events that run together; by default as long as one after the other.

    Raises:
        BadShape: durations for another number of stages or chunks.
        BadInput: an order that waits for itself.
    """
    run = _Run(order, _per_chunk(order, {"F": f_s, "B": b_s, "W": w_s}), send_s)
    if pair_s is not None:
        run.pair = _per_chunk(order, {"pair": pair_s})["pair"]
    return run.finish()


def _per_chunk(order: Order, given: dict[str, Durations]) -> dict[str, list[list[float]]]:
    """Every figure as one number for each chunk of each stage."""
    n, chunks = len(order.stages), 1 + max(chunk for path in order.paths for _, chunk in path)
    found, problems = {}, []
    for name, value in given.items():
        if isinstance(value, Sequence):
            rows = [list(v) if isinstance(v, Sequence) else [v] * chunks for v in value]
        else:
            rows = [[value] * chunks for _ in range(n)]
        if len(rows) != n:
            problems.append(f"{name} durations for {len(rows)} stages; the schedule has {n}.")
        problems += [
            f"{name} durations of stage {i} for {len(row)} chunks; the schedule has {chunks}."
            for i, row in enumerate(rows)
            if len(row) != chunks
        ]
        found[name] = rows
    if problems:
        raise BadShape(*problems)
    return found


class _Run:
    """The state of a simulation: what has ended, and where each stage stands."""

    def __init__(self, order: Order, seconds: dict[str, list[list[float]]], send_s: float) -> None:
        self.order, self.seconds, self.send_s = order, seconds, send_s
        self.pair: list[list[float]] | None = None
        self.at = [{place: i for i, place in enumerate(path)} for path in order.paths]
        self.split = {e[:1] + e[2:4] for events in order.stages for e in events if e.kind == "W"}
        self.ended: dict[tuple[Kind, int, int], float] = {}
        self.spans: list[list[Span]] = [[] for _ in order.stages]
        self.busy = [0.0] * len(order.stages)

    def finish(self) -> Timeline:
        """Go round the stages, each as far as it can, until all are through."""
        left = {stage for stage, events in enumerate(self.order.stages) if events}
        while left:
            moved = [stage for stage in sorted(left) if self.advance(stage)]
            if not moved:
                raise BadInput(*(self._stuck(stage) for stage in sorted(left)))
            left -= {s for s in moved if len(self.spans[s]) == len(self.order.stages[s])}
        return Timeline(
            order=self.order, stages=tuple(map(tuple, self.spans)), busy_s=tuple(self.busy)
        )

    def advance(self, stage: int) -> bool:
        """Run what `stage` can run now; say whether there was anything."""
        events, spans = self.order.stages[stage], self.spans[stage]
        before = len(spans)
        while len(spans) < len(events):
            i = len(spans)
            group = events[i : i + 2] if events[i].paired else events[i : i + 1]
            ready = [self._ready(event) for event in group]
            if None in ready:
                break
            free = spans[-1].end_s if spans else 0.0
            start = max(free, *(r for r in ready if r is not None))
            took = self._seconds(group)
            self.busy[stage] += took
            for event in group:
                spans.append(Span(event, start, start + took))
                place = self._place(event)
                self.ended[event.kind, event.microbatch, place] = start + took
        return len(spans) > before

    def _place(self, event: Event) -> int:
        return self.at[event.microbatch % len(self.at)][event.stage, event.chunk]

    def _ready(self, event: Event) -> float | None:
        """Seconds at which the inputs of `event` are on its stage; None while one is missing."""
        i, latest = event.microbatch, 0.0
        place, path = self._place(event), self.order.path(i)
        for kind, source in needs(event.kind, place, len(path)):
            end = self.ended.get((kind, i, source))
            if end is None:
                return None
            far = path[source][0] != event.stage
            latest = max(latest, end + self.send_s if far else end)
        return latest

    def _seconds(self, group: tuple[Event, ...]) -> float:
        """Seconds of one event or of a pair."""
        if len(group) == 2 and self.pair is not None:
            return self.pair[group[0].stage][group[0].chunk]
        return sum(self._alone(event) for event in group)

    def _alone(self, event: Event) -> float:
        own = self.seconds[event.kind][event.stage][event.chunk]
        if event.kind != "B" or self._is_split(event):
            return own
        return own + self.seconds["W"][event.stage][event.chunk]

    def _is_split(self, event: Event) -> bool:
        return (event.stage, event.microbatch, event.chunk) in self.split

    def _stuck(self, stage: int) -> str:
        event = self.order.stages[stage][len(self.spans[stage])]
        return f"stage {stage} waits for ever at {event}: what it needs comes later or never."


def needs(kind: Kind, place: int, length: int) -> tuple[tuple[Kind, int], ...]:
    """The events that must have ended: kind, and place on the same microbatch's path."""
    if kind == "F":
        return (("F", place - 1),) if place else ()
    if kind == "W":
        return (("B", place),)
    return (("F", place), ("B", place + 1)) if place + 1 < length else (("F", place),)
