"""ZB-H1: 1F1B with weight gradients deferred into the bubble (arXiv 2401.10241, 2023-11)."""

from __future__ import annotations

from shardwise.arrays import Num, maximum, where
from shardwise.strategy.schedules._event import Event
from shardwise.strategy.schedules._schedule import Condition, Schedule, Times
from shardwise.strategy.schedules._writer import Writer


class ZeroBubbleH1(Schedule):
    """A third of 1F1B's bubble if F = B = W, and on every stage the memory of 1F1B's first."""

    name = "zb-h1"
    aliases = ("zb1p",)
    source = "arXiv 2401.10241 §2.1"
    published = "2023-11"
    splits_backward = True

    def rules(self, stages: Num, microbatches: Num, chunks: Num) -> tuple[Condition, ...]:
        p = stages
        m = microbatches
        return (
            Condition(
                m >= p,
                lambda: (
                    f"{m} microbatches are fewer than the {p} stages, too few for zb-h1 to "
                    f"defer weight gradients ({self.source}). Nearest: {p}; or 1f1b."
                ),
            ),
        )

    def events(self, stage: int, stages: int, microbatches: int, chunks: int) -> list[Event]:
        warmup = stages - 1 - stage
        writer = Writer(stage)
        writer.add("F0", warmup)
        writer.add("F0 B0~", stage)
        writer.add("F0 B0~ W", microbatches - warmup - stage)
        writer.add("B0~ W", warmup)
        writer.add("W", stage)
        return writer.events

    def bubble(self, stages: Num, microbatches: Num, chunks: Num, times: Times) -> Num:
        """(p-1) max(F + B - W, B, F), and sends.

        Exact for sends up to W/2, a lower bound for longer ones. The source gives (p-1)(F + B - W),
        which holds if W is the shortest. The three terms have 4 (p-1), 2 (p-1) and 3 (p-1) sends,
        and fewer if m = p, when there is no steady state.
        """
        p = stages - 1
        c = times.send
        short = where(microbatches > stages, 0, 1)
        fill = p * (times.f + times.b - times.w) + 2 * (p - short) * c
        return 2 * p * c + maximum(fill, p * times.b, p * times.f + (p - 2 * short) * c)

    def in_flight(
        self, stages: Num, microbatches: Num, chunks: Num, stage: Num, after_b: Num = 1.0
    ) -> Num:
        """p - stage chunks that wait for `B`, and `stage` chunks between `B` and `W`."""
        return stages - stage + stage * after_b


SCHEDULE = ZeroBubbleH1()
