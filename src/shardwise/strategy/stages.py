"""Pipeline stages: layers and chunks of the fullest stage, and places that stay empty."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.arrays import Num, ceil_div
from shardwise.strategy.layout import Layout, Layouts
from shardwise.strategy.schedules import find

# The smallest share of places with a layer. LLaMA-3-405B: 126 of 128; DeepSeek-V3: 61 of 64.
FILLED = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The division of the layers into stages, as numbers or as arrays over layouts.

    Args:
        chunks: chunks of layers that each stage holds.
        held: layers that the fullest stage holds.
        layers: layers that this stage runs for one microbatch.
        passes: chunks that it runs for one microbatch (under dualpipe half of those it holds).
        share: `layers` over all layers.
        spare: places that stay empty because the layers do not divide.
    """

    chunks: Num
    held: Num
    layers: Num
    passes: Num
    share: Num
    spare: Num


def stages(n_layers: int, layout: Layout | Layouts) -> Stages:
    """Divide `n_layers` into the equal parts of the layout's schedule, rounded up."""
    if not layout.is_pipelined:
        return Stages(chunks=1, held=n_layers, layers=n_layers, passes=1.0, share=1.0, spare=0)
    schedule = find(layout.schedule)
    chunks = schedule.chunks or layout.virtual
    parts = schedule.parts(layout.sizes["pipe"], chunks)
    layers_per_part = ceil_div(n_layers, parts)
    passes = chunks / schedule.weight_copies
    return Stages(
        chunks=chunks,
        held=layers_per_part * chunks,
        layers=layers_per_part * passes,
        passes=passes,
        share=layers_per_part * passes / n_layers,
        spare=layers_per_part * parts - n_layers,
    )


def filled(n_layers: int, parts: Num) -> Num:
    """Whether equal parts of the layers, rounded up, are full enough for a pipeline (`FILLED`)."""
    return n_layers >= FILLED * ceil_div(n_layers, parts) * parts
