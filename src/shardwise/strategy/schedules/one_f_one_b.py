"""1F1B (PipeDream-Flush): backward passes as soon as possible (arXiv 2104.04473, 2021-04)."""

from __future__ import annotations

from shardwise.arrays import Num, ceil_div, minimum
from shardwise.strategy.schedules._event import Event
from shardwise.strategy.schedules._schedule import Schedule, Times
from shardwise.strategy.schedules._writer import Writer


class OneFOneB(Schedule):
    """The bubble of GPipe, with at most p microbatches in memory."""

    name = "1f1b"
    aliases = ("pipedream-flush",)
    source = "arXiv 2104.04473 §2.2.1"
    published = "2020-06"  # as PipeDream-Flush: arXiv 2006.09503

    def events(self, stage: int, stages: int, microbatches: int, chunks: int) -> list[Event]:
        warmup = min(microbatches, stages - 1 - stage)
        writer = Writer(stage)
        writer.add("F0", warmup)
        writer.add("F0 B0", microbatches - warmup)
        writer.add("B0", warmup)
        return writer.events

    def bubble(self, stages: Num, microbatches: Num, chunks: Num, times: Times) -> Num:
        """(p-1)(F + B + W + 2 send) + 2 send (m-1 - ceil((m-1)/p)). Exact, for any send.

        In the steady state sends cannot be hidden: while a microbatch goes to the last stage and
        back, the first stage has just as much work as the path takes without sends.
        """
        after_first = microbatches - 1
        exposed_sends = after_first - ceil_div(after_first, stages)
        return (stages - 1) * (times.all_passes + 2 * times.send) + 2 * times.send * exposed_sends

    def in_flight(
        self, stages: Num, microbatches: Num, chunks: Num, stage: Num, after_b: Num = 1.0
    ) -> Num:
        """min(m, p - stage) chunks; a stage has one chunk."""
        return minimum(microbatches, stages - stage)


SCHEDULE = OneFOneB()
