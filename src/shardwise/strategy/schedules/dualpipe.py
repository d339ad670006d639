"""DualPipe: microbatches from both ends at once (DeepSeek-V3 report, arXiv 2412.19437, 2024-12).

Each stage holds two of p parts of the layers, its own and that of the opposite stage. Even
microbatches go down the stages with chunk 0, odd ones up with chunk 1. In the middle of the step
the forward pass of one direction overlaps with the backward pass of the other.
"""

from __future__ import annotations

from shardwise.arrays import Num, maximum
from shardwise.strategy.schedules._event import Event, Path, line
from shardwise.strategy.schedules._schedule import Condition, Schedule, Times
from shardwise.strategy.schedules._writer import Writer


class DualPipe(Schedule):
    """About half of 1F1B's bubble and hidden communication, for twice the weights."""

    name = "dualpipe"
    source = "arXiv 2412.19437 §3.2.1; github.com/deepseek-ai/DualPipe, 2025-03"
    published = "2024-12"
    pairs = True
    splits_backward = True
    weight_copies = 2
    chunks = 2

    def rules(self, stages: Num, microbatches: Num, chunks: Num) -> tuple[Condition, ...]:
        p = stages
        m = microbatches
        return (
            Condition(
                p % 2 == 0,
                lambda: (
                    f"{p} stages are odd, and dualpipe pairs each with the one opposite. "
                    f"Nearest: {', '.join(str(n) for n in (p - 1, p + 1) if n)}."
                ),
            ),
            Condition(
                m % 2 == 0,
                lambda: (
                    f"{m} microbatches are odd, and dualpipe sends half of them each way. "
                    f"Nearest: {max(m - 1, 2 * p)}, {max(m + 1, 2 * p + 2)}."
                ),
            ),
            Condition(
                m >= 2 * p,
                lambda: (
                    f"{m} microbatches are fewer than dualpipe's least for {p} stages, 2 p = "
                    f"{2 * p}. Nearest: {2 * p}; or zb-h1 from {p} on."
                ),
            ),
        )

    def paths(self, stages: int, chunks: int) -> tuple[Path, ...]:
        return (line(stages), tuple((stage, 1) for stage in reversed(range(stages))))

    def events(self, stage: int, stages: int, microbatches: int, chunks: int) -> list[Event]:
        """The eight phases of the source.

        `near` counts the stages between this one and the nearer end of the pipeline, `inner` those
        between this one and the middle. Letter "a" stands for the chunk of the microbatches that
        enter at the nearer end, "z" for the other chunk.
        """
        near = min(stage, stages - 1 - stage)
        inner = stages // 2 - 1 - near
        writer = Writer(stage, paths=2)
        near_chunk = int(stage >= stages // 2)
        chunks_of_letters = str.maketrans({"a": str(near_chunk), "z": str(1 - near_chunk)})

        def add(words: str, times: int = 1) -> None:
            writer.add(words.translate(chunks_of_letters), times)

        add("Fa", 2 * inner)
        add("Fa Fz", near + 1)
        add("Bz~ W Fz", inner)
        if inner:
            add("Fa+ Bz Fz+ Ba")
        else:  # the middle stages do not pair the first two: their neighbours wait for a result
            add("Fa Bz Fz+ Ba")
        add("Fa+ Bz Fz+ Ba", microbatches // 2 - stages + near)
        add("Bz Fz+ Ba", inner)
        remaining = ["Bz", "Ba"] * (near + 1)
        for word in remaining[: near + 1]:
            add(word)
        for word in remaining[near + 1 :]:
            add(f"{word}~")
        add("W Ba~", inner)
        add("W", near + 1)
        return writer.events

    def work(self, stages: Num, microbatches: Num, chunks: Num, times: Times) -> Num:
        """Seconds of work of the two middle stages: m - p - 1 pairs, p + 1 unpaired microbatches.

        The other stages have fewer pairs. If pairing saves time, they work longer and wait less.
        """
        unpaired = stages + 1
        return (microbatches - unpaired) * times.paired_passes + unpaired * times.all_passes

    def bubble(self, stages: Num, microbatches: Num, chunks: Num, times: Times) -> Num:
        """Idle seconds of a middle stage, with F&B a pair and k = p/2 - 1.

        k (F&B - F - B - W) + max(2 k F, (k-1) F + k B) + k max(B - W, 0), and sends.

        For F = B this is the source's k (F&B + B' - 3 W) with the full backward pass B' = B + W;
        otherwise it differs, since the source counts the unpaired events in the middle as a pair.
        Exact for sends up to about F, a lower bound for longer ones.
        """
        half = maximum(stages // 2, 1)  # fewer than 2 stages are not legal
        c = times.send
        k = half - 1
        fill = maximum(2 * k * times.f, (k - 1) * times.f + k * (times.b + c))
        drain = k * maximum(times.b - times.w + c, 0.0)
        n = microbatches // 2 - stages
        sends = 6 * k + 2 + 2 * n - (n + k - 1) // half
        return fill + drain + k * (times.paired_passes - times.all_passes) + sends * c

    def ends(
        self, stages: Num, microbatches: Num, chunks: Num, first: Num = 0.0, last: Num = 0.0
    ) -> Num:
        """At most m/2 (first + last): each end stage has the first layers for half of m."""
        return microbatches / 2 * (first + last)

    def in_flight(
        self, stages: Num, microbatches: Num, chunks: Num, stage: Num, after_b: Num = 1.0
    ) -> Num:
        """p + 1 chunks on every stage; a chunk has 1/p of the layers."""
        return stages + 1 + 0 * stage


SCHEDULE = DualPipe()
