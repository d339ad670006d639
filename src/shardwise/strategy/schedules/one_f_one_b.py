"""1F1B (PipeDream-Flush): a backward pass as soon as there is one (arXiv 2104.04473, 2021-04)."""

from __future__ import annotations

from shardwise.arrays import Num, ceil_div, minimum
from shardwise.strategy.schedules._event import Event
from shardwise.strategy.schedules._schedule import Schedule, Times
from shardwise.strategy.schedules._writer import Writer


class OneFOneB(Schedule):
    """GPipe's bubble, with no more than p microbatches in memory."""

    name = "1f1b"
    aliases = ("pipedream-flush",)
    source = "arXiv 2104.04473 §2.2.1"
    published = "2020-06"  # as PipeDream-Flush: arXiv 2006.09503

    def events(self, stage: int, stages: int, microbatches: int, chunks: int) -> list[Event]:
        ahead = min(microbatches, stages - 1 - stage)
        run = Writer(stage)
        run.add("F0", ahead)
        run.add("F0 B0", microbatches - ahead)
        run.add("B0", ahead)
        return run.found

    def bubble(self, stages: Num, microbatches: Num, chunks: Num, times: Times) -> Num:
        """(p-1)(F + B + W + 2 send) + 2 send (m-1 - ceil((m-1)/p)). Exact, for any send.

        Nothing is ahead of its use: a microbatch's way to the last stage and back takes as long as
        its first stage works on others, so every send that is not the step's first is paid again.
        """
        after_first = microbatches - 1
        again = after_first - ceil_div(after_first, stages)
        return (stages - 1) * (times.one + 2 * times.send) + 2 * times.send * again

    def in_flight(
        self, stages: Num, microbatches: Num, chunks: Num, stage: Num, after_b: Num = 1.0
    ) -> Num:
        """min(m, p - stage)."""
        return minimum(microbatches, stages - stage)


SCHEDULE = OneFOneB()
