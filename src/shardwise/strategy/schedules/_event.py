"""Pipeline events, and the order in which each stage runs them.

A path is the sequence of (stage, chunk) that a microbatch visits. Each step of a path is one of the
equal parts into which the layers are divided. If a schedule has one path, every microbatch takes
it; if it has two, microbatch i takes path i mod 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["F", "B", "W"]
Path = tuple[tuple[int, int], ...]  # (stage, chunk) of each step


class Event(NamedTuple):
    """One pass of one microbatch through one chunk of layers of a stage.

    Kind `F` is the forward pass, `B` the gradient of the input, `W` the gradient of the weights. If
    no `W` follows, `B` is the full backward pass. A `paired` event overlaps with the next event of
    its stage: both start when both are ready, and end at the same time.
    """

    stage: int
    kind: Kind
    microbatch: int
    chunk: int = 0
    paired: bool = False

    def __str__(self) -> str:
        text = f"{self.kind}{self.microbatch}"
        if self.chunk:
            text += f"/{self.chunk}"
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The events of every stage, in execution order, and the paths of the microbatches."""

    stages: tuple[tuple[Event, ...], ...]
    paths: tuple[Path, ...]

    def path(self, microbatch: int) -> Path:
        """The (stage, chunk) that `microbatch` visits in turn."""
        return self.paths[microbatch % len(self.paths)]

    def n_held(self, stage: int, after_b: float = 1.0) -> tuple[float, int]:
        """Peak activation memory of `stage` in chunks, and the event that reaches it.

        A chunk's activations for one microbatch are in memory from `F` to the last of `B` and `W`.

        Args:
            stage: index of the stage.
            after_b: share of a chunk's activations that stays in memory between `B` and `W`, to
                compute the gradients of the weights.

        Returns:
            The peak in chunks, and the index in `stages[stage]` of the first event to reach it.
        """
        events = self.stages[stage]
        with_w = {(event.microbatch, event.chunk) for event in events if event.kind == "W"}
        before_b = 0.0
        waiting_for_w = 0.0
        peak = 0.0
        peak_index = 0
        for index, event in enumerate(events):
            if event.kind == "F":
                before_b += 1
            elif event.kind == "W":
                waiting_for_w -= 1
            else:
                before_b -= 1
                if (event.microbatch, event.chunk) in with_w:
                    waiting_for_w += 1
            n_chunks = before_b + waiting_for_w * after_b
            if n_chunks > peak:
                peak = n_chunks
                peak_index = index
        return peak, peak_index


def line(stages: int, chunks: int = 1) -> Path:
    """The path through chunk 0 of every stage in turn, then through chunk 1, and so on.

    >>> line(2, 2)
    ((0, 0), (1, 0), (0, 1), (1, 1))
    """
    return tuple((stage, chunk) for chunk in range(chunks) for stage in range(stages))


def vee(stages: int) -> Path:
    """The path through chunk 0 of every stage, and back through chunk 1 of every stage.

    The first stage has both ends of the model.

    >>> vee(2)
    ((0, 0), (1, 0), (1, 1), (0, 1))
    """
    down = [(stage, 0) for stage in range(stages)]
    up = [(stage, 1) for stage in reversed(range(stages))]
    return (*down, *up)
