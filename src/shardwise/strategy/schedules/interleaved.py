"""Interleaved 1F1B: v chunks of layers on each stage, round robin (arXiv 2104.04473, 2021-04)."""

from __future__ import annotations

from shardwise.arrays import Num, maximum, minimum, where
from shardwise.strategy.schedules._event import Event
from shardwise.strategy.schedules._schedule import Rule, Schedule, Times, multiples


class Interleaved(Schedule):
    """1F1B's bubble over v, for v times the sends and more memory at the first stages."""

    name = "interleaved"
    aliases = ("interleaved-1f1b", "vpp")
    source = "arXiv 2104.04473 §2.2.2"
    published = "2021-04"
    chunks = None

    def rules(self, stages: Num, microbatches: Num, chunks: Num) -> tuple[Rule, ...]:
        p, m = stages, microbatches
        return (
            Rule(
                m % p == 0,
                lambda: (
                    f"{m} microbatches are not a multiple of {p} stages ({m / p:.4g}), which "
                    f"interleaved needs ({self.source}). Nearest: {multiples(m, p)}; or 1f1b."
                ),
            ),
        )

    def events(self, stage: int, stages: int, microbatches: int, chunks: int) -> list[Event]:
        n = microbatches * chunks
        ahead = min(n, 2 * (stages - 1 - stage) + (chunks - 1) * stages)
        found: list[Event] = []
        for i in range(-ahead, n):
            if ahead + i < n:
                microbatch, chunk = _turn(ahead + i, stages, chunks)
                found.append(Event(stage, "F", microbatch, chunk))
            if i >= 0:
                microbatch, chunk = _turn(i, stages, chunks)
                found.append(Event(stage, "B", microbatch, chunks - 1 - chunk))
        return found

    def bubble(self, stages: Num, microbatches: Num, chunks: Num, times: Times) -> Num:
        """(p-1)(F + B + W) + 2 send (p v - 1), times of one chunk: a v-th of a stage's.

        Exact up to a send of min(F, B + W); a lower bound above. Over the work: (p-1)/(v m).
        """
        sends = where(stages > 1, 2 * (stages * chunks - 1), 0)
        return (stages - 1) * times.one + sends * times.send

    def ends(
        self, stages: Num, microbatches: Num, chunks: Num, first: Num = 0.0, last: Num = 0.0
    ) -> Num:
        """m last + p first: the other end's share of one group of p microbatches is not hidden.

        Exact without sends while last >= first; at most m first + p last otherwise.
        """
        most = microbatches * maximum(first, last) + stages * minimum(first, last)
        return where(stages > 1, most, microbatches * (first + last))

    def in_flight(
        self, stages: Num, microbatches: Num, chunks: Num, stage: Num, after_b: Num = 1.0
    ) -> Num:
        """min(m v, (v+1) p - 2 stage - 1) chunks, each a v-th of the stage's layers."""
        return minimum(microbatches * chunks, (chunks + 1) * stages - 2 * stage - 1)


def _turn(i: int, stages: int, chunks: int) -> tuple[int, int]:
    """Microbatch and chunk of a stage's i-th pass: p microbatches through one chunk, then on."""
    group, rest = divmod(i, stages * chunks)
    chunk, microbatch = divmod(rest, stages)
    return group * stages + microbatch, chunk


SCHEDULE = Interleaved()
