"""Simulation of a schedule: when each step runs, which waits occur, and the total time.

The core runs its operations one after the other, in schedule order. Transfers run on separate
engines (links of one torus axis, DMA, host, ...). Each engine runs one transfer at a time, in the
order in which they start; if they shared its bandwidth evenly instead, all of them together would
take the same time. Permutes in opposite directions of a torus axis run at once. `Await` blocks the
core. A fused transfer progresses only while the operations that advance it run; what remains of it
runs when it is awaited.

While the core is blocked, it waits for the awaited transfer, or for transfers ahead of that one in
the queues of its engines. The wait counts as exposed time of whichever of them runs at the moment.
So

    step = operations + all exposed time,    transfer = hidden + exposed.

A loop is simulated until a trip leaves the engines in the state in which it found them; the
remaining trips are copies of that one.
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
    shared_engines,
)

MAX_BARS = 20_000  # beyond this, repeated trips of a loop are shown as one bar
ROUNDING = 1e-9  # fraction of a trip's seconds: states that differ by less count as equal
TotalKey = tuple[str, ...]
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Interval:
    """Interval in which a transfer occupies its engines, in seconds from the program's start.

    `previous` is the interval that it had to wait for in a queue, None if it started at once.
    """

    transfer: Transfer
    start: float
    end: float
    previous: _Interval | None


@dataclass(slots=True)
class _Simulation:
    """State of the engines while a schedule is simulated.

    Args:
        max_bars: number of bars beyond which repeated trips of a loop become one bar.
        now: the core's clock, in seconds from the program's start.
        last_interval: engine -> the last interval in its queue.
        in_flight: name -> interval of each transfer that was started, but not awaited yet.
        fused: name -> each fused transfer that was not awaited yet, with its remaining seconds.
        totals: (quantity, name, ...) -> seconds or number of runs.
        transfers: name -> every transfer that was started.
    """

    max_bars: int
    now: float = 0.0
    last_interval: dict[str, _Interval] = field(default_factory=dict)
    in_flight: dict[str, _Interval] = field(default_factory=dict)
    fused: dict[str, tuple[Transfer, float]] = field(default_factory=dict)
    totals: defaultdict[TotalKey, float] = field(default_factory=lambda: defaultdict(float))
    bars: list[Bar] = field(default_factory=list)
    transfers: dict[str, Transfer] = field(default_factory=dict)

    def run(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            match step:
                case Compute():
                    self.compute(step)
                case Transfer():
                    self.start_transfer(step)
                case Await():
                    self.wait(step.name)
                case Loop():
                    self.run_loop(step)

    def compute(self, step: Compute) -> None:
        begin = self.now
        self.now += step.seconds
        for name in step.advances:
            if name in self.fused:
                self.advance_fused(name, begin, self.now)
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
                    details=(("flops", step.flops), ("hbm_bytes", step.hbm_bytes)),
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

    def advance_fused(self, name: str, begin: float, end: float) -> None:
        """Let a fused transfer progress while an operation runs."""
        transfer, remaining = self.fused[name]
        start = begin
        for interval in self.queued(transfer):
            start = max(start, interval.end)
        seconds = min(remaining, end - start)
        if seconds > 0:
            self.enqueue(transfer, start, seconds)
            self.fused[name] = (transfer, remaining - seconds)

    def start_transfer(self, step: Transfer) -> None:
        self.transfers[step.name] = step
        self.totals["runs", step.name] += 1
        if step.form == "fused":
            self.fused[step.name] = (step, step.seconds)
        else:
            self.in_flight[step.name] = self.enqueue(step, self.now, step.seconds)

    def enqueue(self, transfer: Transfer, earliest: float, seconds: float) -> _Interval:
        """Append `seconds` of a transfer to the queues of its engines."""
        previous = None
        start = earliest
        for queued in self.queued(transfer):
            if queued.end > start:
                previous = queued
                start = queued.end
        interval = _Interval(transfer, start, start + seconds, previous)
        self.totals["transfer", transfer.name] += seconds
        for engine in transfer.engines:
            self.last_interval[engine] = interval
            self.totals["busy", engine] += seconds
            if seconds > 0:
                self.bars.append(_transfer_bar(engine, interval))
        return interval

    def queued(self, transfer: Transfer) -> Iterator[_Interval]:
        """The last transfers in the queues of all engines that share links with a transfer."""
        for engine in transfer.engines:
            for name in shared_engines(engine):
                if name in self.last_interval:
                    yield self.last_interval[name]

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
        blocker: _Interval | None = interval
        while blocker is not None and end > self.now:
            start = max(self.now, blocker.start)
            self.totals["exposed", blocker.transfer.name] += end - start
            end = start
            blocker = blocker.previous
        self.now = interval.end

    def run_loop(self, loop: Loop) -> None:
        before = self.engine_state()
        for trip in range(1, loop.trips + 1):
            begin = self.now
            totals = self.totals.copy()
            n_bars = len(self.bars)
            self.run(loop.body)
            after = self.engine_state()
            if _equal_states(before, after, self.now - begin):
                self.repeat_trip(loop, loop.trips - trip, begin, totals, self.bars[n_bars:])
                return
            before = after

    def repeat_trip(
        self,
        loop: Loop,
        n_trips: int,
        begin: float,
        totals: defaultdict[TotalKey, float],
        bars: list[Bar],
    ) -> None:
        """Add `n_trips` copies of the last trip of a loop.

        Args:
            begin: when the last trip began.
            totals: the totals at that time.
            bars: the bars of the last trip.
        """
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
        self.skip_time(n_trips * period)

    def skip_time(self, seconds: float) -> None:
        """Move the clock, and every interval that has not ended, into the future."""
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

    def engine_state(self) -> dict[TotalKey, float]:
        """Remaining seconds of the queue of each engine and of each transfer."""
        state: dict[TotalKey, float] = {}
        for engine, interval in self.last_interval.items():
            if interval.end > self.now:
                state["engine", engine] = interval.end - self.now
        for name, interval in self.in_flight.items():
            state["in flight", name] = max(0.0, interval.end - self.now)
        for name, (_, remaining) in self.fused.items():
            state["fused", name] = remaining
        return state

    def finish(self) -> Timeline:
        """End the program when its last transfer has ended, and return the timeline."""
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
    """Simulate a schedule and return its timeline.

    Args:
        steps: the steps in schedule order.
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


def _equal_states(
    before: dict[TotalKey, float], after: dict[TotalKey, float], trip_s: float
) -> bool:
    """Whether the states before and after a trip of `trip_s` seconds are equal, up to rounding."""
    if before.keys() != after.keys():
        return False
    return all(abs(before[key] - after[key]) <= ROUNDING * trip_s for key in before)
