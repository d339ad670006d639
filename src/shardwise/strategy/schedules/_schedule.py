"""What every pipeline schedule has: its order of events, and closed forms for what follows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from shardwise.arrays import Num, maximum, minimum, where
from shardwise.errors import BadShape, raise_all
from shardwise.strategy.schedules._event import Event, Order, Path, line


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of one event: one chunk of layers of one stage, for one microbatch.

    `f` forward, `b` backward to the input, `w` gradients of the weights. `send` passes before
    another stage can use a result. `pair` is a forward and a whole backward pass that run together,
    f + b + w where nothing is gained.
    """

    f: Num
    b: Num
    w: Num
    send: Num = 0.0
    pair: Num | None = None

    @property
    def one(self) -> Num:
        """f + b + w: all the work of one chunk for one microbatch."""
        return self.f + self.b + self.w

    @property
    def together(self) -> Num:
        """`pair`, or f + b + w."""
        return self.one if self.pair is None else self.pair


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on the numbers of a schedule (arrays too), and what to say when it fails."""

    ok: Num
    say: Callable[[], str]


class Schedule(ABC):
    """A pipeline schedule for p stages, m microbatches and v chunks of layers on each stage.

    Closed forms take numbers or arrays and hold where `legal` says yes.
    """

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    source: ClassVar[str]
    published: ClassVar[
        str
    ]  # year and month: of schedules as fast as each other the older is taken
    searched: ClassVar[bool] = True  # does a search try it without being asked?
    holds_less: ClassVar[bool] = False  # fewer activations than 1F1B on the fullest stage?
    pairs: ClassVar[bool] = False  # does a forward pass hide what a backward pass sends, and back?
    splits_backward: ClassVar[bool] = False  # do some `B` have a `W` of their own?
    weight_copies: ClassVar[int] = 1  # times that the layers lie on the stages, taken together
    chunks: ClassVar[int | None] = 1  # chunks on each stage; None: 2 or more, to be chosen

    def __repr__(self) -> str:
        return self.name

    @abstractmethod
    def events(self, stage: int, stages: int, microbatches: int, chunks: int) -> list[Event]:
        """What `stage` runs, in order."""

    @abstractmethod
    def bubble(self, stages: Num, microbatches: Num, chunks: Num, times: Times) -> Num:
        """Seconds of a step in which the busiest stage waits: makespan less its work."""

    @abstractmethod
    def in_flight(
        self, stages: Num, microbatches: Num, chunks: Num, stage: Num, after_b: Num = 1.0
    ) -> Num:
        """Most chunks of activations that `stage` holds at once.

        Args:
            stages, microbatches, chunks: p, m, v.
            stage: index of the stage.
            after_b: share of a chunk's activations that is kept between `B` and `W`.
        """

    def rules(self, stages: Num, microbatches: Num, chunks: Num) -> tuple[Rule, ...]:
        """What p, m and v must satisfy beyond being whole numbers from 1 on."""
        return ()

    def paths(self, stages: int, chunks: int) -> tuple[Path, ...]:
        """The ways of microbatches through stages and chunks."""
        return (line(stages, chunks),)

    def parts(self, stages: Num, chunks: Num) -> Num:
        """Equal parts that the layers are cut into: the length of a path."""
        return stages * chunks // self.weight_copies

    @property
    def ends_meet(self) -> bool:
        """Whether the first stage has both ends of the model."""
        paths = self.paths(2, self.chunks or 2)
        return any(p[0][0] == 0 for p in paths) and any(p[-1][0] == 0 for p in paths)

    def work(self, stages: Num, microbatches: Num, chunks: Num, times: Times) -> Num:
        """Seconds that the busiest stage works in a step: m v (f + b + w)."""
        return microbatches * chunks // self.weight_copies * times.one

    def step(self, stages: Num, microbatches: Num, chunks: Num, times: Times) -> Num:
        """Seconds of a step from the first start to the last end: work and bubble."""
        shape = (stages, microbatches, chunks)
        return self.work(*shape, times) + self.bubble(*shape, times)

    def ends(
        self, stages: Num, microbatches: Num, chunks: Num, first: Num = 0.0, last: Num = 0.0
    ) -> Num:
        """m last + first: seconds by which the ends of the model lengthen a step.

        Exact without sends for `gpipe`, and for `1f1b` while last >= first. Otherwise an upper
        bound, m max + min: `simulate` takes seconds for every stage and chunk.

        Args:
            stages, microbatches, chunks: p, m, v.
            first, last: seconds per microbatch, all passes together, that the first and the last
                part of the layers take more than the others: embedding; final norm, logits, loss.
        """
        most = microbatches * maximum(first, last) + minimum(first, last)
        return where(stages > 1, most, microbatches * (first + last))

    def legal(self, stages: Num, microbatches: Num, chunks: Num) -> Num:
        """Can this schedule run so? True or False for each element."""
        count = chunks == self.chunks if self.chunks else chunks >= 2
        found = (stages >= 1) & (microbatches >= 1) & count
        for rule in self.rules(maximum(stages, 1), microbatches, chunks):
            found = found & rule.ok
        return found

    def check(self, stages: int, microbatches: int, chunks: int) -> None:
        """Raise what keeps this schedule from running so.

        Raises:
            BadShape: with every problem and the nearest numbers that work.
        """
        given = {"stages": stages, "microbatches": microbatches}
        problems = [f"{n} {what} is below 1." for what, n in given.items() if n < 1]
        if self.chunks and chunks != self.chunks:
            problems.append(
                f"{chunks} chunks on a stage: {self.name} has {self.chunks} ({self.source})."
            )
        elif not self.chunks and chunks < 2:
            problems.append(
                f"{chunks} chunks on a stage: {self.name} has 2 or more on each. "
                "With one chunk take 1f1b."
            )
        if stages >= 1:
            rules = self.rules(stages, microbatches, chunks)
            problems += [rule.say() for rule in rules if not rule.ok]
        raise_all(BadShape, problems)

    def order(self, stages: int, microbatches: int, chunks: int | None = None) -> Order:
        """Every stage's events in the order in which it runs them.

        Args:
            stages, microbatches: p, m.
            chunks: v; the schedule's own number, or 2, when left out.

        Raises:
            BadShape: numbers that this schedule cannot have.
        """
        v = chunks if chunks is not None else self.chunks or 2
        self.check(stages, microbatches, v)
        rows = (tuple(self.events(stage, stages, microbatches, v)) for stage in range(stages))
        return Order(stages=tuple(rows), paths=self.paths(stages, v))

    def layers(self, n_layers: int, stages: int, chunks: int) -> tuple[tuple[range, ...], ...]:
        """The layers of every chunk of every stage.

        Raises:
            BadShape: layers that cannot be cut into equal parts.
        """
        parts = self.parts(stages, chunks)
        if n_layers % parts:
            raise BadShape(self._uneven(n_layers, stages, chunks, parts))
        size = n_layers // parts
        found: list[list[range]] = [[range(0)] * chunks for _ in range(stages)]
        for path in self.paths(stages, chunks):
            for i, (stage, chunk) in enumerate(path):
                found[stage][chunk] = range(i * size, (i + 1) * size)
        return tuple(tuple(row) for row in found)

    def _uneven(self, n_layers: int, stages: int, chunks: int, parts: int) -> str:
        fits = [p for p in range(1, n_layers + 1) if n_layers % self.parts(p, chunks) == 0]
        near = sorted(sorted(fits, key=lambda p: abs(p - stages))[:4])
        return (
            f"{n_layers} layers do not divide over the {parts} parts that {self.name} cuts them "
            f"into ({stages} stages, {chunks} chunks on each): {n_layers / parts:.4g}. Layers that "
            f"do: {multiples(n_layers, parts)}. Stages that do: {', '.join(map(str, near))}."
        )


def multiples(n: int, of: int, least: int = 1) -> str:
    """The multiples of `of` on either side of `n`, none below `least`: "8, 12"."""
    low = max(n // of * of, -(-least // of) * of)
    return f"{low}, {low + of}" if low < n else f"{low}"
