"""Walk a schedule: what runs when, what waits for what, and how long all of it takes.

The core runs its operations one after the other, in the order of the schedule. Transfers run on
engines of their own (links of one torus axis, DMA, host, ...), each of which does one at a time, in
the order in which they were started; that is also the time that transfers need which share an
engine evenly. `Await` stops the core. A fused transfer moves only while the operations run that
drive it, and what is left of it when it is awaited.

While the core stands still it waits for one transfer, or for those before it in the queue of its
engines: each is charged with the part of the pause in which it runs. So

    step = operations + everything charged,    transfer = hidden + charged.

A loop is walked until one trip leaves the engines as it found them; all further ones are the same.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TypeVar

from shardwise.check.timeline.line import Overlap, Span, Timeline
from shardwise.check.timeline.steps import COPY, CORE, Await, Compute, Loop, Step, Transfer

SPANS = 20_000  # beyond so many, trips of a loop that repeat are shown as one span
Key = tuple[str, ...]
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Piece:
    """A stretch of an engine's time, and the piece that it had to wait for."""

    transfer: Transfer
    start: float
    end: float
    before: _Piece | None


@dataclass(slots=True)
class _Walk:
    cap: int
    now: float = 0.0
    last: dict[str, _Piece] = field(default_factory=dict)
    started: dict[str, _Piece] = field(default_factory=dict)
    left: dict[str, tuple[Transfer, float]] = field(default_factory=dict)
    totals: defaultdict[Key, float] = field(default_factory=lambda: defaultdict(float))
    spans: list[Span] = field(default_factory=list)
    seen: dict[str, Transfer] = field(default_factory=dict)

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
        begin, self.now = self.now, self.now + step.seconds
        for name in step.drives:
            if name in self.left:
                self.drive(name, begin, self.now)
        if step.seconds > 0:
            for name in self.beside(step):
                self.totals["beside", name, *step.group] += step.seconds
            self.totals["busy", CORE] += step.seconds
            self.totals["group", *step.group] += step.seconds
            self.spans.append(
                Span(
                    engine=CORE,
                    name=step.name,
                    group=step.group,
                    what="compute",
                    start_s=begin,
                    end_s=self.now,
                )
            )

    def beside(self, step: Compute) -> list[str]:
        """Collectives that an operation runs beside."""
        found = [n for n, piece in self.started.items() if piece.transfer.kind != COPY]
        return found + [name for name in step.drives if name in self.seen]

    def drive(self, name: str, begin: float, end: float) -> None:
        """A fused transfer moves while an operation runs."""
        transfer, left = self.left[name]
        start = max([begin, *(self.last[e].end for e in transfer.engines if e in self.last)])
        seconds = min(left, end - start)
        if seconds > 0:
            self.put(transfer, start, seconds)
            self.left[name] = (transfer, left - seconds)

    def start(self, step: Transfer) -> None:
        self.seen[step.name] = step
        self.totals["count", step.name] += 1
        if step.form == "fused":
            self.left[step.name] = (step, step.seconds)
        else:
            self.started[step.name] = self.put(step, self.now, step.seconds)

    def put(self, transfer: Transfer, earliest: float, seconds: float) -> _Piece:
        """Onto the engines, behind what they have been given before."""
        queued = [self.last[e] for e in transfer.engines if e in self.last]
        before = max(queued, key=lambda piece: piece.end, default=None)
        if before is not None and before.end <= earliest:
            before = None
        start = before.end if before else earliest
        piece = _Piece(transfer, start, start + seconds, before)
        self.totals["sent", transfer.name] += seconds
        for engine in transfer.engines:
            self.last[engine] = piece
            self.totals["busy", engine] += seconds
            if seconds > 0:
                self.spans.append(_bar(engine, transfer, piece))
        return piece

    def wait(self, name: str) -> None:
        if name in self.left:
            transfer, left = self.left.pop(name)
            self.stop(self.put(transfer, self.now, left))
        elif name in self.started:
            self.stop(self.started.pop(name))

    def stop(self, piece: _Piece) -> None:
        """The core stands still until `piece` ends."""
        if piece.end <= self.now:
            return
        self.spans.append(
            Span(
                engine=CORE,
                name=piece.transfer.name,
                group=piece.transfer.group,
                what="wait",
                start_s=self.now,
                end_s=piece.end,
                detail=(("label", piece.transfer.label),),
            )
        )
        until, charged = piece.end, piece
        while until > self.now:
            since = max(self.now, charged.start)
            self.totals["exposed", charged.transfer.name] += until - since
            until = since
            if charged.before is None:
                break
            charged = charged.before
        self.now = piece.end

    def loop(self, loop: Loop) -> None:
        before = self.state()
        for trip in range(1, loop.trips + 1):
            began, totals, n_spans = self.now, self.totals.copy(), len(self.spans)
            self.run(loop.body)
            after = self.state()
            if _same(before, after, self.now - began):
                self.repeat(loop, loop.trips - trip, began, totals, n_spans)
                return
            before = after

    def repeat(
        self, loop: Loop, times: int, began: float, totals: defaultdict[Key, float], n_spans: int
    ) -> None:
        """Further trips that are like the last one."""
        period, bars = self.now - began, self.spans[n_spans:]
        if times == 0:
            return
        for key, value in list(self.totals.items()):
            self.totals[key] += times * (value - totals[key])
        unrolled = min(times, max(0, self.cap - len(self.spans)) // max(len(bars), 1))
        for trip in range(1, unrolled + 1):
            self.spans += [_later(bar, trip * period) for bar in bars]
        if unrolled < times:
            self.spans.append(
                Span(
                    engine=CORE,
                    name=f"{times - unrolled:,} more trips of {loop.name}",
                    group=(loop.name, ""),
                    what="trips",
                    start_s=self.now + unrolled * period,
                    end_s=self.now + times * period,
                    detail=(("trips", times - unrolled),),
                )
            )
        self.later(times * period)

    def later(self, seconds: float) -> None:
        """The clock moves on, and with it whatever is still under way."""
        moved: dict[int, _Piece] = {}
        todo = [*self.last.values(), *self.started.values()]
        while todo:
            piece = todo.pop()
            if id(piece) in moved or piece.end <= self.now:
                continue
            moved[id(piece)] = piece
            todo += [piece.before] if piece.before else []
        for piece in moved.values():
            piece.start, piece.end = piece.start + seconds, piece.end + seconds
        self.now += seconds

    def state(self) -> dict[Key, float]:
        """What a trip finds: how long engines are still busy, what is still to be moved."""
        found: dict[Key, float] = {
            ("engine", e): p.end - self.now for e, p in self.last.items() if p.end > self.now
        }
        for name, piece in self.started.items():
            found["started", name] = max(0.0, piece.end - self.now)
        for name, (_, left) in self.left.items():
            found["left", name] = left
        return found

    def finish(self) -> Timeline:
        """The program ends when the last transfer has."""
        for name in list(self.left):
            self.wait(name)
        for piece in sorted(self.last.values(), key=lambda p: p.end):
            self.stop(piece)
        totals = self.totals
        busy = {k[1]: v for k, v in totals.items() if k[0] == "busy"}
        exposed: dict[str, float] = {}
        for name, transfer in self.seen.items():
            before = exposed.get(transfer.label, 0.0)
            exposed[transfer.label] = before + totals["exposed", name]
        groups = {(k[1], k[2]): v for k, v in totals.items() if k[0] == "group"}
        transfers = [self.overlap(t) for t in self.seen.values()]
        return Timeline(
            step_s=self.now,
            compute_s=busy.get(CORE, 0.0),
            exposed=_largest_first(exposed),
            busy=busy,
            groups=_largest_first(groups),
            transfers=tuple(sorted(transfers, key=lambda o: -o.exposed_s)),
            spans=tuple(self.spans),
        )

    def overlap(self, transfer: Transfer) -> Overlap:
        count = self.totals["count", transfer.name]
        return Overlap(
            name=transfer.name,
            label=transfer.label,
            kind=transfer.kind,
            form=transfer.form,
            group=transfer.group,
            count=count,
            bytes=transfer.bytes * count,
            seconds=self.totals["sent", transfer.name],
            exposed_s=self.totals["exposed", transfer.name],
            beside=_largest_first(
                {
                    (k[2], k[3]): v
                    for k, v in self.totals.items()
                    if k[0] == "beside" and k[1] == transfer.name
                }
            ),
        )


def simulate(steps: tuple[Step, ...], *, cap: int = SPANS) -> Timeline:
    """The timeline of a schedule.

    Args:
        steps: in the order of the schedule.
        cap: bars above which equal trips of a loop are no longer drawn one by one.
    """
    walk = _Walk(cap)
    walk.run(steps)
    return walk.finish()


def _largest_first(seconds: dict[T, float]) -> dict[T, float]:
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def _bar(engine: str, transfer: Transfer, piece: _Piece) -> Span:
    return Span(
        engine=engine,
        name=transfer.name,
        group=transfer.group,
        what=transfer.kind,
        start_s=piece.start,
        end_s=piece.end,
        detail=(("label", transfer.label), ("form", transfer.form), ("bytes", transfer.bytes)),
    )


def _later(bar: Span, seconds: float) -> Span:
    return Span(
        engine=bar.engine,
        name=bar.name,
        group=bar.group,
        what=bar.what,
        start_s=bar.start_s + seconds,
        end_s=bar.end_s + seconds,
        detail=bar.detail,
    )


def _same(before: dict[Key, float], after: dict[Key, float], trip_s: float) -> bool:
    """Whether a trip left everything as it found it, but for rounding."""
    return before.keys() == after.keys() and all(
        abs(before[k] - after[k]) <= 1e-9 * trip_s for k in before
    )
