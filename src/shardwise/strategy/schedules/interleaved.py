"""Interleaved 1F1B: v chunks of layers on each stage, round robin (arXiv 2104.04473, 2021-04)."""

from __future__ import annotations

from shardwise.arrays import Num, maximum, minimum, where
from shardwise.strategy.schedules._event import Event
from shardwise.strategy.schedules._schedule import Condition, Schedule, Times, multiples


class Interleaved(Schedule):
    """1F1B's bubble divided by v, for v times the sends and more memory on the first stages."""

    name = "interleaved"
    aliases = ("interleaved-1f1b", "vpp")
    source = "arXiv 2104.04473 §2.2.2"
    published = "2021-04"
    chunks = None

    def rules(self, stages: Num, microbatches: Num, chunks: Num) -> tuple[Condition, ...]:
        p = stages
        m = microbatches
        return (
            Condition(
                m % p == 0,
                lambda: (
                    f"{m} microbatches are not a multiple of {p} stages ({m / p:.4g}), which "
                    f"interleaved needs ({self.source}). Nearest: {multiples(m, p)}; or 1f1b."
                ),
            ),
        )

    def events(self, stage: int, stages: int, microbatches: int, chunks: int) -> list[Event]:
        n = microbatches * chunks
        warmup = min(n, 2 * (stages - 1 - stage) + (chunks - 1) * stages)
        events: list[Event] = []
        for i in range(-warmup, n):
            if warmup + i < n:
                microbatch, chunk = _microbatch_and_chunk(warmup + i, stages, chunks)
                events.append(Event(stage, "F", microbatch, chunk))
            if i >= 0:
                microbatch, chunk = _microbatch_and_chunk(i, stages, chunks)
                events.append(Event(stage, "B", microbatch, chunks - 1 - chunk))
        return events

    def bubble(self, stages: Num, microbatches: Num, chunks: Num, times: Times) -> Num:
        """(p-1)(F + B + W) + 2 send (p v - 1), with F, B and W of one chunk, 1/v of a stage.

        Exact for sends up to min(F, B + W), a lower bound for longer ones. Without sends it is
        (p-1)/(v m) of the work.
        """
        sends = where(stages > 1, 2 * (stages * chunks - 1), 0)
        return (stages - 1) * times.all_passes + sends * times.send

    def ends(
        self, stages: Num, microbatches: Num, chunks: Num, first: Num = 0.0, last: Num = 0.0
    ) -> Num:
        """m max(first, last) + p min(first, last) seconds.

        Exact if sends take no time and last >= first: only the first group of p microbatches
        exposes `first`. Otherwise an upper bound.
        """
        bound = microbatches * maximum(first, last) + stages * minimum(first, last)
        return where(stages > 1, bound, microbatches * (first + last))

    def in_flight(
        self, stages: Num, microbatches: Num, chunks: Num, stage: Num, after_b: Num = 1.0
    ) -> Num:
        """min(m v, (v+1) p - 2 stage - 1) chunks; a chunk has 1/v of the stage's layers."""
        return minimum(microbatches * chunks, (chunks + 1) * stages - 2 * stage - 1)


def _microbatch_and_chunk(i: int, stages: int, chunks: int) -> tuple[int, int]:
    """Microbatch and chunk of a stage's i-th forward pass.

    A group of p microbatches runs through chunk 0, then through chunk 1 and so on, then the next
    group. Backward passes have the same order with the chunks reversed.
    """
    group, position = divmod(i, stages * chunks)
    chunk, microbatch = divmod(position, stages)
    return group * stages + microbatch, chunk


SCHEDULE = Interleaved()
