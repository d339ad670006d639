"""A layout with everything that its items are priced by: model, rates, cost of collectives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from shardwise.arrays import Num, where
from shardwise.estimate.collective_cost import CollectiveCost
from shardwise.estimate.items import PricedItem
from shardwise.estimate.training.chip_rates import Rates
from shardwise.models import ModelConfig
from shardwise.ops.einsum import shards
from shardwise.strategy.layout import Layout, Layouts
from shardwise.strategy.stages import Stages, stages
from shardwise.workload import Train


@dataclass(frozen=True, kw_only=True)
class PricedLayout:
    """One layout, or arrays of layouts of one form, on chips at given rates.

    Args:
        config: the model.
        layout: of a training step.
        rates: what the chip reaches in the job.
        costs: of collectives on the placements of the layouts.
    """

    config: ModelConfig
    layout: Layout | Layouts
    rates: Rates
    costs: CollectiveCost

    @property
    def job(self) -> Train:
        """The work."""
        return self.rates.job

    @cached_property
    def mesh(self) -> dict[str, Num]:
        """Chips by role."""
        return {**self.layout.sizes}

    @cached_property
    def stage(self) -> Stages:
        """The fullest stage of the pipeline."""
        return stages(self.config.n_layers, self.layout)

    @property
    def remat_share(self) -> float:
        """Share of the layers that remat applies to."""
        layers = self.layout.remat_layers
        return min(1.0, layers / self.config.n_layers) if layers else 1.0

    def priced(self, item: PricedItem) -> PricedItem:
        """A collective with the seconds of one occurrence; nothing over one chip."""
        cal = self.rates.cal
        cost = self.costs.of(item.kind, item.axes)
        moved_s = cost.time_s(item.joined_bytes, cal.links, cal.network)
        start_s = where(shards(item.axes, self.mesh) > 1, cal.collective_s, 0.0)
        return replace(item, occurrence_s=moved_s + start_s)
