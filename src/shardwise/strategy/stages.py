"""How a pipeline cuts the layers: the fullest stage's share, chunks, and places left empty."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.arrays import Num, ceil_div
from shardwise.strategy.layout import Layout, Layouts
from shardwise.strategy.schedules import find

# Stages are filled at least so far. LLaMA-3-405B: 126 layers in 128 places; DeepSeek-V3: 61 in 64.
FILLED = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Numbers, or arrays over layouts.

    Args:
        chunks: chunks of layers that each stage holds.
        held: layers that the fullest stage holds.
        layers: layers that it runs for one microbatch.
        passes: chunks that it runs for one microbatch (half of those it holds under dualpipe).
        share: `layers` over all layers.
        spare: places for layers that stay empty where the layers do not divide.
    """

    chunks: Num
    held: Num
    layers: Num
    passes: Num
    share: Num
    spare: Num


def stages(n_layers: int, split: Layout | Layouts) -> Stages:
    """Cut `n_layers` into the equal parts of the split's schedule, rounded up."""
    if not split.is_pipelined:
        return Stages(chunks=1, held=n_layers, layers=n_layers, passes=1.0, share=1.0, spare=0)
    schedule = find(split.schedule)
    chunks = schedule.chunks or split.virtual
    parts = schedule.parts(split.sizes["pipe"], chunks)
    each = ceil_div(n_layers, parts)
    passes = chunks / schedule.weight_copies
    return Stages(
        chunks=chunks,
        held=each * chunks,
        layers=each * passes,
        passes=passes,
        share=each * passes / n_layers,
        spare=each * parts - n_layers,
    )


def filled(n_layers: int, parts: Num) -> Num:
    """Whether equal parts of the layers, rounded up, are filled far enough to be a pipeline."""
    return n_layers >= FILLED * ceil_div(n_layers, parts) * parts
