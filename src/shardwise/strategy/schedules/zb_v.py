"""ZB-V: two chunks on each stage, down and up again, no bubble inside (arXiv 2405.15362, 2024-05).

The order is the one for F = B = W, the same whatever the times are.
"""

from __future__ import annotations

from shardwise.arrays import Num, maximum, where
from shardwise.strategy.schedules._event import Event, Path, vee
from shardwise.strategy.schedules._schedule import Rule, Schedule, Times
from shardwise.strategy.schedules._writer import Writer


class ZeroBubbleV(Schedule):
    """No stage waits between its first event and its last where F = B = W; 1F1B's memory."""

    name = "zb-v"
    aliases = ("zbv", "v-zb")
    source = "arXiv 2405.15362 and 2401.10241"
    published = "2024-05"
    splits_backward = True
    chunks = 2

    def rules(self, stages: Num, microbatches: Num, chunks: Num) -> tuple[Rule, ...]:
        p, m = stages, microbatches
        return (
            Rule(
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
        ahead = stages - 1 - stage
        run = Writer(stage)
        run.add("F0", 2 * ahead + 1)
        run.add("F1 F0", stage)
        run.add("F1 B1~ W", ahead + 1)
        run.add("F0 B0~ W F1 B1~ W", microbatches - 2 * stages + stage + 1)
        run.add("B0~ W F1 B1~ W", ahead)
        run.add("B0~ B1~", stage)
        run.add("B0~ W", ahead + 1)
        run.add("W", 2 * stage)
        return run.found

    def bubble(self, stages: Num, microbatches: Num, chunks: Num, times: Times) -> Num:
        """(p-1) B where times are equal, and the longest of twelve paths where they are not.

        Exact without sends; with them close, and never above. It is the whole step's: the sources
        count none when no stage waits for others before the optimizer, see `Timeline.window_s`.
        """
        p, (f, b, w, c) = stages - 1, (times.f, times.b, times.w, times.send)
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
        """m (first + last) at most: stage 0 has both ends of the layers."""
        return microbatches * (first + last)

    def in_flight(
        self, stages: Num, microbatches: Num, chunks: Num, stage: Num, after_b: Num = 1.0
    ) -> Num:
        """2 p chunks of half a stage on every stage, all of them before the first `B`."""
        return 2 * stages + 0 * stage


SCHEDULE = ZeroBubbleV()
