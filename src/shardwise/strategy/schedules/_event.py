"""What a pipeline does: events in the order in which each stage runs them.

A path is the way of a microbatch through the model: the (stage, chunk) that it visits in turn. The
layers are cut into as many equal parts as a path is long. A schedule with one path sends every
microbatch along it; with two, microbatch i takes path i mod 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["F", "B", "W"]
Place = tuple[int, int]
Path = tuple[Place, ...]


class Event(NamedTuple):
    """One piece of work of a stage, on one of its chunks of layers, for one microbatch.

    `F` is the forward pass, `B` the backward pass to the input, `W` the gradient of the weights.
    Where no `W` follows, `B` is the whole backward pass. A `paired` event runs together with the
    next one of its stage: both start when both can, and both end at once.
    """

    stage: int
    kind: Kind
    microbatch: int
    chunk: int = 0
    paired: bool = False

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch}{f'/{self.chunk}' if self.chunk else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A pipeline's events: for each stage those that it runs, in that order."""

    stages: tuple[tuple[Event, ...], ...]
    paths: tuple[Path, ...]

    def path(self, microbatch: int) -> Path:
        """The (stage, chunk) that `microbatch` visits in turn."""
        return self.paths[microbatch % len(self.paths)]

    def n_held(self, stage: int, after_b: float = 1.0) -> tuple[float, int]:
        """Most chunks of activations that `stage` holds at once, and the event that gets there.

        A chunk is held from its forward pass on until its last backward event.

        Args:
            stage: index of the stage.
            after_b: share of a chunk's activations that is kept between `B` and `W`: what the
                gradients of the weights still need.

        Returns:
            The peak in chunks, and the index in `stages[stage]` of the first event to reach it.
        """
        split = {(e.microbatch, e.chunk) for e in self.stages[stage] if e.kind == "W"}
        whole = kept = peak = 0.0
        at = 0
        for i, event in enumerate(self.stages[stage]):
            if event.kind == "F":
                whole += 1
            elif event.kind == "W":
                kept -= 1
            else:
                whole -= 1
                kept += (event.microbatch, event.chunk) in split
            if whole + kept * after_b > peak:
                peak, at = whole + kept * after_b, i
        return peak, at


def line(stages: int, chunks: int = 1) -> Path:
    """Round robin: chunk 0 on every stage in turn, then chunk 1, and so on.

    >>> line(2, 2)
    ((0, 0), (1, 0), (0, 1), (1, 1))
    """
    return tuple((stage, chunk) for chunk in range(chunks) for stage in range(stages))


def vee(stages: int) -> Path:
    """Down the stages with chunk 0 and up again with chunk 1: the ends meet on the first stage.

    >>> vee(2)
    ((0, 0), (1, 0), (1, 1), (0, 1))
    """
    down = tuple((stage, 0) for stage in range(stages))
    return down + tuple((stage, 1) for stage in reversed(range(stages)))
