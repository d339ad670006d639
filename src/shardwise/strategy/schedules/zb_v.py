"""ZB-V: two chunks on each stage, on a V-shaped path, without a bubble (arXiv 2405.15362, 2024-05).

The order of events is the one for F = B = W, whatever the times are.
"""

from __future__ import annotations

from shardwise.arrays import Num, maximum, where
from shardwise.strategy.schedules._event import Event, Path, vee
from shardwise.strategy.schedules._schedule import Condition, Schedule, Times
from shardwise.strategy.schedules._writer import Writer


class ZeroBubbleV(Schedule):
    """If F = B = W, no stage is idle between its first and last event; the memory is 1F1B's."""

    name = "zb-v"
    aliases = ("zbv", "v-zb")
    source = "arXiv 2405.15362 and 2401.10241"
    published = "2024-05"
    splits_backward = True
    chunks = 2

    def rules(self, stages: Num, microbatches: Num, chunks: Num) -> tuple[Condition, ...]:
        p = stages
        m = microbatches
        return (
            Condition(
                m >= 2 * p - 1,
                lambda: (
                    f"{m} microbatches are fewer than the {2 * p - 1} forward passes with which "
                    f"zb-v fills {p} stages (2 p - 1). Nearest: {2 * p - 1}; or zb-h1 from {p} on."
                ),
            ),
        )

    def paths(self, stages: int, chunks: int) -> tuple[Path, ...]:
        return (vee(stages),)

    def events(self, stage: int, stages: int, microbatches: int, chunks: int) -> list[Event]:
        warmup = stages - 1 - stage
        writer = Writer(stage)
        writer.add("F0", 2 * warmup + 1)
        writer.add("F1 F0", stage)
        writer.add("F1 B1~ W", warmup + 1)
        writer.add("F0 B0~ W F1 B1~ W", microbatches - 2 * stages + stage + 1)
        writer.add("B0~ W F1 B1~ W", warmup)
        writer.add("B0~ B1~", stage)
        writer.add("B0~ W", warmup + 1)
        writer.add("W", 2 * stage)
        return writer.events

    def bubble(self, stages: Num, microbatches: Num, chunks: Num, times: Times) -> Num:
        """(p-1) B if F = B = W, else the longest of twelve chains of events less the work.

        Exact if sends take no time, otherwise a close lower bound. The sources report no bubble,
        since in their optimizer no stage waits for the others: see `Timeline.window_s`.
        """
        p = stages - 1
        f = times.f
        b = times.b
        w = times.w
        c = times.send
        longest = maximum(
            p * b + (5 * p - 2) * c,
            b + (p - 1) * w + 3 * p * c,
            f + (p - 1) * w + (3 * p - 2) * c,
            2 * p * (b - w) + (6 * p - 2) * c,
            2 * p * b - (2 * p + 1) * w + 6 * p * c,
            (2 * p - 1) * f - (p - 1) * b + (3 * p - 2) * c,
            2 * p * f - p * b - w + 3 * p * c,
            2 * p * f - (2 * p + 1) * w + 4 * p * c,
            (2 * p - 1) * f + b - 2 * p * w + (4 * p - 2) * c,
            p * (f + b) - (2 * p + 1) * w + 6 * p * c,
            p * f - w + 5 * p * c,
            (p - 1) * f + b + (5 * p - 2) * c,
        )
        return where(stages > 1, longest, 0.0 * longest)

    def ends(
        self, stages: Num, microbatches: Num, chunks: Num, first: Num = 0.0, last: Num = 0.0
    ) -> Num:
        """At most m (first + last): stage 0 has both ends of the model."""
        return microbatches * (first + last)

    def in_flight(
        self, stages: Num, microbatches: Num, chunks: Num, stage: Num, after_b: Num = 1.0
    ) -> Num:
        """2 p chunks on every stage, before the first `B`; a chunk has half a stage's layers."""
        return 2 * stages + 0 * stage


SCHEDULE = ZeroBubbleV()
