"""Pipeline stages: layers and chunks of the largest stage, and places without a layer."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.arrays import Num, ceil_div, maximum
from shardwise.strategy.layout import Layout, Layouts
from shardwise.strategy.schedules import find

# Smallest share of the places for layers that must be filled. A stage has as many places as the
# largest stage has layers: LLaMA-3-405B fills 126 of 128, DeepSeek-V3 61 of 64.
MIN_FILLED_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The division of the layers into stages; numbers, or arrays with one element per layout.

    Args:
        chunks: chunks of layers whose weights a stage holds.
        held: layers whose weights the largest stage holds.
        layers: layers that one microbatch passes on the largest stage.
        passes: chunks that one microbatch passes on a stage; under dualpipe half of `chunks`.
        share: `layers` divided by the layers of the model.
        spare: places without a layer, because the layers do not divide evenly.
    """

    chunks: Num
    held: Num
    layers: Num
    passes: Num
    share: Num
    spare: Num

    def held_beyond(self, n_layers: Num) -> Num:
        """Layers that the last stage holds beyond the largest one if it has `n_layers` more.

        Places without a layer, which are at the end, are filled first.
        """
        return maximum(n_layers - self.spare, 0)

    def passed_beyond(self, n_layers: Num) -> Num:
        """The same layers, as many as one microbatch passes."""
        return self.held_beyond(n_layers) * self.layers / self.held


def stages(n_layers: int, layout: Layout | Layouts) -> Stages:
    """Divide `n_layers` into as many equal parts as the layout's schedule has, rounded up."""
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


def fills_stages(n_layers: int, parts: Num) -> Num:
    """Whether `parts` equal parts, rounded up, have `MIN_FILLED_SHARE` of their places filled."""
    return n_layers >= MIN_FILLED_SHARE * ceil_div(n_layers, parts) * parts
