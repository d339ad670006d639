"""Simulation of a schedule: when each step runs, which waits occur, and the total time.

The core runs its operations one after the other, in schedule order. Transfers run on engines of
their own (links of one torus axis, DMA, host, ...), each of which runs one at a time, in the order
of their starts; transfers that share an engine evenly need the same time. `Await` blocks the core.
A fused transfer progresses only while the operations run that advance it; the remainder runs when
it is awaited.

While the core is blocked it waits for one transfer, or for those ahead of it in the queue of its
engines: each is charged with the part of the wait in which it runs. So

    step = operations + all exposed time,    transfer = hidden + exposed.

A loop is simulated until one trip leaves the engines in the state in which it found them; further
trips are repetitions of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from shardwise.check.timeline.result import Bar, Timeline, TransferTotals
from shardwise.check.timeline.steps import (
    COPY,
    CORE,
    Await,
    Compute,
    Loop,
    Operation,
    Step,
    Transfer,
)

MAX_BARS = 20_000  # beyond this, repeated trips of a loop are shown as one bar
ROUNDING = 1e-9  # of a trip: states that differ by less are equal
Key = tuple[str, ...]
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Interval:
    """Time that a transfer occupies its engines, and the interval that it was queued behind."""

    transfer: Transfer
    start: float
    end: float
    previous: _Interval | None


@dataclass(slots=True)
class _Simulation:
    """State of the engines while a schedule is simulated.

    Args:
        totals: (quantity, name, ...) -> seconds or runs.
        last_interval: engine -> the last interval in its queue.
        in_flight: transfers that have started and not been awaited.
        fused: fused transfers with the seconds that remain of them.
        transfers: all transfers so far.
    """

    max_bars: int
    now: float = 0.0
    last_interval: dict[str, _Interval] = field(default_factory=dict)
    in_flight: dict[str, _Interval] = field(default_factory=dict)
    fused: dict[str, tuple[Transfer, float]] = field(default_factory=dict)
    totals: defaultdict[Key, float] = field(default_factory=lambda: defaultdict(float))
    bars: list[Bar] = field(default_factory=list)
    transfers: dict[str, Transfer] = field(default_factory=dict)

    def run(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            match step:
                case Compute():
                    self.compute(step)
                case Transfer():
                    self.start(step)
                case Await():
                    self.wait(step.name)
                case Loop():
                    self.loop(step)

    def compute(self, step: Compute) -> None:
        begin = self.now
        self.now += step.seconds
        for name in step.advances:
            if name in self.fused:
                self.advance(name, begin, self.now)
        if step.seconds > 0:
            for name in self.overlapping(step):
                self.totals["overlapped", name, *step.operation] += step.seconds
            self.totals["busy", CORE] += step.seconds
            self.totals["operation", *step.operation] += step.seconds
            self.bars.append(
                Bar(
                    engine=CORE,
                    name=step.name,
                    operation=step.operation,
                    kind="compute",
                    start_s=begin,
                    end_s=self.now,
                )
            )

    def overlapping(self, step: Compute) -> Iterator[str]:
        """Yield the collectives that are in flight while an operation runs."""
        for name, interval in self.in_flight.items():
            if interval.transfer.kind != COPY:
                yield name
        for name in step.advances:
            if name in self.transfers:
                yield name

    def advance(self, name: str, begin: float, end: float) -> None:
        """Let a fused transfer progress while an operation runs."""
        transfer, remaining = self.fused[name]
        start = begin
        for engine in transfer.engines:
            if engine in self.last_interval:
                start = max(start, self.last_interval[engine].end)
        seconds = min(remaining, end - start)
        if seconds > 0:
            self.enqueue(transfer, start, seconds)
            self.fused[name] = (transfer, remaining - seconds)

    def start(self, step: Transfer) -> None:
        self.transfers[step.name] = step
        self.totals["runs", step.name] += 1
        if step.form == "fused":
            self.fused[step.name] = (step, step.seconds)
        else:
            self.in_flight[step.name] = self.enqueue(step, self.now, step.seconds)

    def enqueue(self, transfer: Transfer, earliest: float, seconds: float) -> _Interval:
        """Append a transfer to the queues of its engines."""
        previous = None
        start = earliest
        for engine in transfer.engines:
            interval = self.last_interval.get(engine)
            if interval is not None and interval.end > start:
                previous = interval
                start = interval.end
        interval = _Interval(transfer, start, start + seconds, previous)
        self.totals["transfer", transfer.name] += seconds
        for engine in transfer.engines:
            self.last_interval[engine] = interval
            self.totals["busy", engine] += seconds
            if seconds > 0:
                self.bars.append(_transfer_bar(engine, interval))
        return interval

    def wait(self, name: str) -> None:
        if name in self.fused:
            transfer, remaining = self.fused.pop(name)
            self.block(self.enqueue(transfer, self.now, remaining))
        elif name in self.in_flight:
            self.block(self.in_flight.pop(name))

    def block(self, interval: _Interval) -> None:
        """Block the core until an interval ends."""
        if interval.end <= self.now:
            return
        self.bars.append(
            Bar(
                engine=CORE,
                name=interval.transfer.name,
                operation=interval.transfer.operation,
                kind="wait",
                start_s=self.now,
                end_s=interval.end,
                details=(("label", interval.transfer.label),),
            )
        )
        end = interval.end
        charged: _Interval | None = interval
        while charged is not None and end > self.now:
            start = max(self.now, charged.start)
            self.totals["exposed", charged.transfer.name] += end - start
            end = start
            charged = charged.previous
        self.now = interval.end

    def loop(self, loop: Loop) -> None:
        before = self.state()
        for trip in range(1, loop.trips + 1):
            begin = self.now
            totals = self.totals.copy()
            n_bars = len(self.bars)
            self.run(loop.body)
            after = self.state()
            if _equal(before, after, self.now - begin):
                self.repeat(loop, loop.trips - trip, begin, totals, self.bars[n_bars:])
                return
            before = after

    def repeat(
        self,
        loop: Loop,
        n_trips: int,
        begin: float,
        totals: defaultdict[Key, float],
        bars: list[Bar],
    ) -> None:
        """Add further trips that equal the last one, which had these bars and began at `begin`."""
        if n_trips == 0:
            return
        period = self.now - begin
        for key, value in list(self.totals.items()):
            self.totals[key] += n_trips * (value - totals[key])
        n_drawn = min(n_trips, max(0, self.max_bars - len(self.bars)) // max(len(bars), 1))
        for trip in range(1, n_drawn + 1):
            for bar in bars:
                start_s = bar.start_s + trip * period
                self.bars.append(replace(bar, start_s=start_s, end_s=bar.end_s + trip * period))
        if n_drawn < n_trips:
            self.bars.append(
                Bar(
                    engine=CORE,
                    name=f"{n_trips - n_drawn:,} more trips of {loop.name}",
                    operation=(loop.name, ""),
                    kind="trips",
                    start_s=self.now + n_drawn * period,
                    end_s=self.now + n_trips * period,
                    details=(("trips", n_trips - n_drawn),),
                )
            )
        self.shift(n_trips * period)

    def shift(self, seconds: float) -> None:
        """Move the clock, and with it every interval that has not ended."""
        moved: set[_Interval] = set()
        pending: list[_Interval | None] = [*self.last_interval.values(), *self.in_flight.values()]
        while pending:
            interval = pending.pop()
            if interval is None or interval in moved or interval.end <= self.now:
                continue
            moved.add(interval)
            pending.append(interval.previous)
        for interval in moved:
            interval.start += seconds
            interval.end += seconds
        self.now += seconds

    def state(self) -> dict[Key, float]:
        """Seconds for which engines are still busy, and that remain of transfers."""
        state: dict[Key, float] = {}
        for engine, interval in self.last_interval.items():
            if interval.end > self.now:
                state["engine", engine] = interval.end - self.now
        for name, interval in self.in_flight.items():
            state["in flight", name] = max(0.0, interval.end - self.now)
        for name, (_, remaining) in self.fused.items():
            state["fused", name] = remaining
        return state

    def finish(self) -> Timeline:
        """The timeline; the program ends when the last transfer has."""
        for name in list(self.fused):
            self.wait(name)
        for interval in sorted(self.last_interval.values(), key=lambda interval: interval.end):
            self.block(interval)
        busy_s = {}
        operation_s = {}
        overlapped_s: dict[str, dict[Operation, float]] = defaultdict(dict)
        for (quantity, *key), value in self.totals.items():
            if quantity == "busy":
                busy_s[key[0]] = value
            elif quantity == "operation":
                operation_s[key[0], key[1]] = value
            elif quantity == "overlapped":
                overlapped_s[key[0]][key[1], key[2]] = value
        exposed_s: dict[str, float] = {}
        transfers = []
        for transfer in self.transfers.values():
            totals = self.transfer_totals(transfer, overlapped_s[transfer.name])
            label = transfer.label
            exposed_s[label] = exposed_s.get(label, 0.0) + totals.exposed_s
            transfers.append(totals)
        return Timeline(
            step_s=self.now,
            compute_s=busy_s.get(CORE, 0.0),
            exposed_s=_largest_first(exposed_s),
            busy_s=busy_s,
            operation_s=_largest_first(operation_s),
            transfers=tuple(sorted(transfers, key=lambda totals: -totals.exposed_s)),
            bars=tuple(self.bars),
        )

    def transfer_totals(
        self, transfer: Transfer, overlapped_s: dict[Operation, float]
    ) -> TransferTotals:
        n_runs = self.totals["runs", transfer.name]
        return TransferTotals(
            name=transfer.name,
            label=transfer.label,
            kind=transfer.kind,
            form=transfer.form,
            operation=transfer.operation,
            n_runs=n_runs,
            bytes=transfer.bytes * n_runs,
            seconds=self.totals["transfer", transfer.name],
            exposed_s=self.totals["exposed", transfer.name],
            overlapped_s=_largest_first(overlapped_s),
        )


def simulate(steps: tuple[Step, ...], *, max_bars: int = MAX_BARS) -> Timeline:
    """The timeline of a schedule.

    Args:
        steps: in schedule order.
        max_bars: number of bars beyond which repeated trips of a loop become one bar.
    """
    simulation = _Simulation(max_bars)
    simulation.run(steps)
    return simulation.finish()


def _largest_first(seconds: dict[T, float]) -> dict[T, float]:
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def _transfer_bar(engine: str, interval: _Interval) -> Bar:
    transfer = interval.transfer
    return Bar(
        engine=engine,
        name=transfer.name,
        operation=transfer.operation,
        kind=transfer.kind,
        start_s=interval.start,
        end_s=interval.end,
        details=(("label", transfer.label), ("form", transfer.form), ("bytes", transfer.bytes)),
    )


def _equal(before: dict[Key, float], after: dict[Key, float], trip_s: float) -> bool:
    """Whether a trip left the state as it was, up to rounding."""
    if before.keys() != after.keys():
        return False
    return all(abs(before[key] - after[key]) <= ROUNDING * trip_s for key in before)
