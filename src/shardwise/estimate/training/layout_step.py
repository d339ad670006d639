"""One layout on one machine: its works derived once, its step at any rates."""

from __future__ import annotations

from dataclasses import replace

from shardwise.estimate.calibration import PEAK, Calibration
from shardwise.estimate.collective_cost import Prices
from shardwise.estimate.training.chip_rates import IDEAL, Extras, Kernels, Rates, is_end
from shardwise.estimate.training.microbatch import passes
from shardwise.estimate.training.step import StepTime, step_time
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
        extras: what is trained that the configuration does not say.

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
        extras: Extras | None = None,
    ) -> None:
        self.config, self.system, self.job, self.layout = config, system, job, layout
        batch = layout.micro_batch * layout.data_shards
        remat = "full" if layout.full_remat else "none"
        self.extras = extras or Extras()
        works = training_step(config, batch, job.seq, rules_of(layout), remat=remat)
        works = works.in_chunks(layout.loss_chunks)
        works = whole_layers_again(works) if self.extras.whole_remat else works
        self.works: Step = without_gradients(works) if self.extras.frozen else works
        self.placement = placement or min(place(system, layout.sizes), key=self._traffic)
        self.prices = Prices([self.placement])

    def at(self, cal: Calibration = PEAK, kernels: Kernels = IDEAL) -> StepTime:
        """The step at the rates of a calibration; by default the bare roofline."""
        rates = Rates(
            chip=self.system.chip, job=self.job, cal=cal, kernels=kernels, extras=self.extras
        )
        one = passes(self.config, self.works, self.layout, self.prices, rates)
        return step_time(self.config, self.layout, one, self.prices, rates)

    def _traffic(self, placement: Placement) -> float:
        """What all collectives take on a placement: the choice between several."""
        prices, mesh = Prices([placement]), self.layout.sizes
        return sum(
            float(prices.of(t.move.kind, t.move.axes).time_s(t.elements(mesh)))
            for t in self.works.transfers
        )


def without_gradients(works: Step) -> Step:
    """The works of a step whose weights stay: no products and no sums of their gradients."""

    def kept(name: str) -> bool:
        return not (name.startswith("d") and name[1:] in works.weights)

    return replace(
        works,
        matmuls=tuple(m for m in works.matmuls if kept(m.program.einsum.output.name)),
        transfers=tuple(t for t in works.transfers if kept(t.move.before.name)),
    )


def whole_layers_again(works: Step) -> Step:
    """The works of full remat that also runs the last products of a layer, which nothing reads."""
    again = {(m.group, m.name) for m in works.matmuls if m.phase == "remat"}
    sent = {(t.name, t.move) for t in works.transfers if t.phase == "remat"}
    if not again:
        return works
    matmuls = [
        replace(m, phase="remat")
        for m in works.matmuls
        if m.phase == "forward" and not is_end(m.name) and (m.group, m.name) not in again
    ]
    transfers = [  # weights are gathered once for both
        replace(t, phase="remat")
        for t in works.transfers
        if t.phase == "forward" and not is_end(t.name) and t.role != "fsdp"
        if (t.name, t.move) not in sent
    ]
    return replace(
        works, matmuls=(*works.matmuls, *matmuls), transfers=(*works.transfers, *transfers)
    )
