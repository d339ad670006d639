"""One layout on one machine: its works derived once, its step at any rates."""

from __future__ import annotations

from shardwise.estimate.calibration import PEAK, Calibration
from shardwise.estimate.passes import passes
from shardwise.estimate.prices import Prices
from shardwise.estimate.rates import IDEAL, Kernels, Rates
from shardwise.estimate.step import StepTime, step_time
from shardwise.hardware import System
from shardwise.models import ModelConfig
from shardwise.ops.program import Step, training_step
from shardwise.strategy.layout import Layout, rules_of
from shardwise.strategy.mesh import Placement, place
from shardwise.workload import Train


class LayoutStep:
    """The works of a layout, where they run, and what they take.

    Args:
        placement: of the mesh on the machine; the one with the least traffic when not given.

    Raises:
        NoStrategy: the mesh does not lie on the machine.
        UnknownFigure: a figure that the chip's file does not have.
    """

    def __init__(
        self,
        config: ModelConfig,
        system: System,
        job: Train,
        layout: Layout,
        placement: Placement | None = None,
    ) -> None:
        self.config, self.system, self.job, self.layout = config, system, job, layout
        batch = layout.micro_batch * layout.data_shards
        remat = "full" if layout.remat == "full" else "none"
        self.works: Step = training_step(config, batch, job.seq, rules_of(layout), remat=remat)
        self.placement = placement or min(place(system, layout.sizes), key=self._traffic)
        self.prices = Prices([self.placement])

    def at(self, cal: Calibration = PEAK, kernels: Kernels = IDEAL) -> StepTime:
        """The step at the rates of a calibration; by default the bare roofline."""
        rates = Rates(chip=self.system.chip, job=self.job, cal=cal, kernels=kernels)
        one = passes(self.config, self.works, self.layout, self.prices, rates)
        return step_time(self.config, self.layout, one, self.prices, rates)

    def _traffic(self, placement: Placement) -> float:
        """What all collectives take on a placement: the choice between several."""
        prices, mesh = Prices([placement]), self.layout.sizes
        return sum(
            float(prices.of(t.move.kind, t.move.axes).time_s(t.elements(mesh)))
            for t in self.works.transfers
        )
