"""One layout on one machine: its works derived once, its step at any rates."""

from __future__ import annotations

from dataclasses import replace

from shardwise.estimate.calibration import PEAK, Calibration
from shardwise.estimate.collective_cost import CollectiveCost
from shardwise.estimate.training.chip_rates import IDEAL, Extras, Kernels, Rates, is_end
from shardwise.estimate.training.microbatch import microbatch_time
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.estimate.training.step import StepTime, step_time
from shardwise.hardware import System
from shardwise.models import ModelConfig
from shardwise.ops.einsum import Array
from shardwise.ops.program import Step, training_step
from shardwise.strategy.layout import Layout, Layouts, data_shards, rules_of, table
from shardwise.strategy.mesh import Placement, place
from shardwise.workload import Train


class LayoutStep:
    """The program of a layout, where it runs, and what it takes.

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
        self.config = config
        self.system = system
        self.job = job
        self.layout = layout
        self.extras = extras or Extras()
        self.program = training_program(config, job, layout, self.extras)
        self.placement = placement or min(place(system, layout.sizes), key=self._traffic)
        self.costs = CollectiveCost([self.placement])

    def priced(self, cal: Calibration = PEAK, kernels: Kernels = IDEAL) -> PricedLayout:
        """The layout at the rates of a calibration; by default the bare roofline."""
        rates = Rates(
            chip=self.system.chip, job=self.job, cal=cal, kernels=kernels, extras=self.extras
        )
        return PricedLayout(config=self.config, layout=self.layout, rates=rates, costs=self.costs)

    def at(self, cal: Calibration = PEAK, kernels: Kernels = IDEAL) -> StepTime:
        """The time of the step at the rates of a calibration."""
        priced = self.priced(cal, kernels)
        return step_time(priced, microbatch_time(priced, self.program))

    def _traffic(self, placement: Placement) -> float:
        """What all collectives take on a placement: the choice between several."""
        costs, mesh = CollectiveCost([placement]), self.layout.sizes
        return sum(
            float(costs.of(t.move.kind, t.move.axes).time_s(t.elements(mesh)))
            for t in self.program.transfers
        )


def training_program(
    config: ModelConfig, job: Train, layout: Layout | Layouts, extras: Extras | None = None
) -> Step:
    """The products and collectives of one microbatch under a layout, or under arrays of layouts."""
    rules = rules_of(layout) if isinstance(layout, Layout) else table(layout)
    batch = layout.micro_batch * data_shards(layout.sizes)
    remat = "full" if layout.full_remat else "none"
    program = training_step(config, batch, job.seq, rules, remat=remat)
    program = program.in_chunks(layout.loss_chunks)
    if extras and extras.whole_remat:
        program = whole_layers_again(program)
    return without_gradients(program) if extras and extras.frozen else program


def without_gradients(program: Step) -> Step:
    """The program of a step whose weights stay: no products and no sums of their gradients."""

    def kept(array: Array) -> bool:
        return array.gradient_of not in program.weights

    return replace(
        program,
        matmuls=tuple(m for m in program.matmuls if kept(m.program.einsum.output)),
        transfers=tuple(t for t in program.transfers if kept(t.move.before)),
    )


def whole_layers_again(program: Step) -> Step:
    """A program of full remat that also runs the last products of a layer, which nothing reads."""
    again = {(m.group, m.name) for m in program.matmuls if m.phase == "remat"}
    sent = {(t.name, t.move) for t in program.transfers if t.phase == "remat"}
    if not again:
        return program
    matmuls = [
        replace(m, phase="remat")
        for m in program.matmuls
        if m.phase == "forward" and not is_end(m) and (m.group, m.name) not in again
    ]
    transfers = [  # weights are gathered once for both
        replace(t, phase="remat")
        for t in program.transfers
        if t.phase == "forward" and not is_end(t) and t.role != "fsdp"
        if (t.name, t.move) not in sent
    ]
    return replace(
        program, matmuls=(*program.matmuls, *matmuls), transfers=(*program.transfers, *transfers)
    )
