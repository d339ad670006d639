"""GPipe: every forward pass, then every backward pass (arXiv 1811.06965, 2018-11)."""

from __future__ import annotations

from shardwise.arrays import Num
from shardwise.strategy.schedules._event import Event
from shardwise.strategy.schedules._schedule import Schedule, Times
from shardwise.strategy.schedules._writer import Writer


class GPipe(Schedule):
    """All forward passes, then all backward passes: the simplest order and the most memory."""

    name = "gpipe"
    aliases = ("afab",)
    source = "arXiv 1811.06965"
    published = "2018-11"
    searched = False  # as slow as 1F1B with more memory

    def events(self, stage: int, stages: int, microbatches: int, chunks: int) -> list[Event]:
        writer = Writer(stage)
        writer.add("F0", microbatches)
        writer.add("B0", microbatches)
        return writer.events

    def bubble(self, stages: Num, microbatches: Num, chunks: Num, times: Times) -> Num:
        """(p-1)(F + B + W + 2 send). Exact.

        Without sends it is (p-1)/m of the work, m (F + B + W) (arXiv 2104.04473 §2.2.1). Backward
        passes run in the order of the forward passes, so that all stages have the same order.
        """
        return (stages - 1) * (times.all_passes + 2 * times.send)

    def in_flight(
        self, stages: Num, microbatches: Num, chunks: Num, stage: Num, after_b: Num = 1.0
    ) -> Num:
        """m chunks: all forward passes run before any activation is freed."""
        return microbatches + 0 * stage


SCHEDULE = GPipe()
