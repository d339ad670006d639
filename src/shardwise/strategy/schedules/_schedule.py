"""The base class of pipeline schedules: order of events, closed forms of bubble and memory."""

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
    """Seconds of the events of one microbatch on one chunk of layers.

    `f` is the forward pass, `b` the gradient of the input, `w` the gradient of the weights. `send`
    passes until another stage can use a result. `pair` is a forward and a full backward pass that
    overlap; None if overlapping them saves nothing: f + b + w.
    """

    f: Num
    b: Num
    w: Num
    send: Num = 0.0
    pair: Num | None = None

    @property
    def all_passes(self) -> Num:
        """f + b + w: forward and backward pass of one microbatch on one chunk, seconds."""
        return self.f + self.b + self.w

    @property
    def paired_passes(self) -> Num:
        """`pair`, or f + b + w if it is None, seconds."""
        if self.pair is None:
            return self.all_passes
        return self.pair


@dataclass(frozen=True, slots=True)
class Condition:
    """Whether a condition on p, m and v holds (a bool or an array), and the message if not."""

    holds: Num
    message: Callable[[], str]


class Schedule(ABC):
    """A pipeline schedule for p stages, m microbatches and v chunks of layers on each stage.

    Closed forms take numbers or arrays and are valid where `legal` is true.

    Attributes:
        source: paper or code that publishes the schedule.
        published: year and month; of equally fast schedules a search chooses the oldest.
        searched: whether a search tries it by default.
        holds_less: whether the largest activation memory of a stage is below that of 1F1B.
        pairs: whether forward and backward passes overlap and hide each other's communication.
        splits_backward: whether some `B` have a separate `W`.
        weight_copies: number of copies of every layer, on all stages together.
        chunks: chunks on each stage; None if the user chooses 2 or more.
    """

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    source: ClassVar[str]
    published: ClassVar[str]
    searched: ClassVar[bool] = True
    holds_less: ClassVar[bool] = False
    pairs: ClassVar[bool] = False
    splits_backward: ClassVar[bool] = False
    weight_copies: ClassVar[int] = 1
    chunks: ClassVar[int | None] = 1

    def __repr__(self) -> str:
        return self.name

    @abstractmethod
    def events(self, stage: int, stages: int, microbatches: int, chunks: int) -> list[Event]:
        """The events of `stage` in execution order."""

    @abstractmethod
    def bubble(self, stages: Num, microbatches: Num, chunks: Num, times: Times) -> Num:
        """Seconds of a step in which the busiest stage is idle: makespan - `work`."""

    @abstractmethod
    def in_flight(
        self, stages: Num, microbatches: Num, chunks: Num, stage: Num, after_b: Num = 1.0
    ) -> Num:
        """Peak activation memory of `stage` in chunks of one microbatch each.

        Args:
            stages, microbatches, chunks: p, m, v.
            stage: index of the stage.
            after_b: share of a chunk's activations that stays in memory between `B` and `W`.
        """

    def rules(self, stages: Num, microbatches: Num, chunks: Num) -> tuple[Condition, ...]:
        """The conditions that the schedule sets on p, m and v, besides being at least 1."""
        return ()

    def paths(self, stages: int, chunks: int) -> tuple[Path, ...]:
        """The paths that microbatches take in turn; each visits (stage, chunk) in order."""
        return (line(stages, chunks),)

    def parts(self, stages: Num, chunks: Num) -> Num:
        """Number of equal parts into which the layers are divided: the length of a path."""
        return stages * chunks // self.weight_copies

    @property
    def ends_meet(self) -> bool:
        """Whether the first stage has the first and the last layers of the model."""
        paths = self.paths(2, self.chunks or 2)
        first_stages = [path[0][0] for path in paths]
        last_stages = [path[-1][0] for path in paths]
        return 0 in first_stages and 0 in last_stages

    def work(self, stages: Num, microbatches: Num, chunks: Num, times: Times) -> Num:
        """Seconds of a step in which the busiest stage works: m v (f + b + w)."""
        return microbatches * chunks // self.weight_copies * times.all_passes

    def step(self, stages: Num, microbatches: Num, chunks: Num, times: Times) -> Num:
        """Seconds of a step from the first start to the last end: `work` + `bubble`."""
        shape = (stages, microbatches, chunks)
        return self.work(*shape, times) + self.bubble(*shape, times)

    def ends(
        self, stages: Num, microbatches: Num, chunks: Num, first: Num = 0.0, last: Num = 0.0
    ) -> Num:
        """Seconds that embedding and head add to a step: m max(first, last) + min(first, last).

        Exact if sends take no time, for `gpipe`, and for `1f1b` if last >= first. Otherwise it is
        an upper bound; `simulate` is exact.

        Args:
            stages, microbatches, chunks: p, m, v.
            first: extra seconds per microbatch of the first part of the layers (embedding), forward
                and backward together.
            last: the same for the last part (final norm, logits, loss).
        """
        bound = microbatches * maximum(first, last) + minimum(first, last)
        return where(stages > 1, bound, microbatches * (first + last))

    def legal(self, stages: Num, microbatches: Num, chunks: Num) -> Num:
        """Whether the schedule works for these p, m and v; an array if they are arrays."""
        is_legal = chunks >= 2
        if self.chunks:
            is_legal = chunks == self.chunks
        is_legal = (stages >= 1) & (microbatches >= 1) & is_legal
        for condition in self.rules(maximum(stages, 1), microbatches, chunks):
            is_legal = is_legal & condition.holds
        return is_legal

    def check(self, stages: int, microbatches: int, chunks: int) -> None:
        """Check that the schedule works for these p, m and v.

        Raises:
            BadShape: it does not; the message has every problem and the nearest legal numbers.
        """
        problems = []
        if stages < 1:
            problems.append(f"{stages} stages is below 1.")
        if microbatches < 1:
            problems.append(f"{microbatches} microbatches is below 1.")
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
            for condition in self.rules(stages, microbatches, chunks):
                if not condition.holds:
                    problems.append(condition.message())
        raise_all(BadShape, problems)

    def order(self, stages: int, microbatches: int, chunks: int | None = None) -> Order:
        """The events of every stage in execution order.

        Args:
            stages, microbatches: p, m.
            chunks: v; by default the schedule's fixed number, or 2.

        Raises:
            BadShape: the schedule does not work for these numbers.
        """
        if chunks is None:
            chunks = self.chunks or 2
        self.check(stages, microbatches, chunks)
        events = []
        for stage in range(stages):
            events.append(tuple(self.events(stage, stages, microbatches, chunks)))
        return Order(stages=tuple(events), paths=self.paths(stages, chunks))

    def layers(self, n_layers: int, stages: int, chunks: int) -> tuple[tuple[range, ...], ...]:
        """The range of layers of each chunk of each stage, as [stage][chunk].

        Raises:
            BadShape: the layers do not divide into equal parts.
        """
        parts = self.parts(stages, chunks)
        if n_layers % parts:
            raise BadShape(self._uneven(n_layers, stages, chunks, parts))
        size = n_layers // parts
        ranges = [[range(0)] * chunks for _ in range(stages)]
        for path in self.paths(stages, chunks):
            for part, (stage, chunk) in enumerate(path):
                ranges[stage][chunk] = range(part * size, (part + 1) * size)
        return tuple(map(tuple, ranges))

    def _uneven(self, n_layers: int, stages: int, chunks: int, parts: int) -> str:
        legal = [n for n in range(1, n_layers + 1) if n_layers % self.parts(n, chunks) == 0]
        nearest = sorted(sorted(legal, key=lambda n: abs(n - stages))[:4])
        return (
            f"{n_layers} layers do not divide over the {parts} parts of {self.name} ({stages} "
            f"stages, {chunks} chunks on each): {n_layers / parts:.4g}. Layers that do: "
            f"{multiples(n_layers, parts)}. Stages that do: {', '.join(map(str, nearest))}."
        )


def multiples(n: int, factor: int, minimum: int = 1) -> str:
    """The multiples of `factor` next below and above `n`, none below `minimum`: "8, 12"."""
    low = max(n // factor * factor, -(-minimum // factor) * factor)
    if low >= n:
        return f"{low}"
    return f"{low}, {low + factor}"
