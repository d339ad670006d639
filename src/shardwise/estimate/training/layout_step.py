"""Training step of one layout on one machine: its program, and its time at any rates."""

from __future__ import annotations

import functools
from dataclasses import replace

from shardwise.estimate.calibration import PEAK, Calibration
from shardwise.estimate.collective_cost import CollectiveCost
from shardwise.estimate.training.chip_rates import Rates
from shardwise.estimate.training.local_work import LocalWork
from shardwise.estimate.training.matmul_kinds import is_embedding_or_head
from shardwise.estimate.training.microbatch import MicrobatchTime, microbatch_time
from shardwise.estimate.training.priced_layout import PricedLayout, WorkKey
from shardwise.estimate.training.run_variant import IDEAL, PLAIN_RUN, FusionProfile, RunVariant
from shardwise.estimate.training.step import StepTime, step_time
from shardwise.hardware import System
from shardwise.models import ModelConfig
from shardwise.ops.einsum import Array
from shardwise.ops.program import Step, training_step
from shardwise.strategy.layout import Layout, Layouts, data_shards, rules_of, table
from shardwise.strategy.mesh import Placement, place
from shardwise.workload import Train

CACHED_PROGRAMS = 64  # number of cached programs, so that a layout is derived once for many rates


class LayoutStep:
    """Training step of one layout on one machine.

    Args:
        job: batch, sequence length and dtypes.
        placement: placement of the mesh on the machine; by default the one with the least traffic.
        variant: properties of the run that the job does not state.

    Raises:
        NoStrategy: the mesh has no placement on the machine.
        UnknownFigure: the chip's file lacks a value that the estimate needs.
    """

    def __init__(
        self,
        config: ModelConfig,
        system: System,
        job: Train,
        layout: Layout,
        placement: Placement | None = None,
        variant: RunVariant | None = None,
    ) -> None:
        self.config = config
        self.system = system
        self.job = job
        self.layout = layout
        self.variant = variant or PLAIN_RUN
        self.program, self.work = _program(config, job, layout, self.variant)
        self.placement = placement or min(place(system, layout.sizes), key=self._traffic_s)
        self.costs = CollectiveCost([self.placement])

    def priced(
        self, calibration: Calibration = PEAK, fusion: FusionProfile = IDEAL
    ) -> PricedLayout:
        """The layout at the rates of a calibration; by default those of the pure roofline."""
        rates = Rates(
            chip=self.system.chip,
            job=self.job,
            calibration=calibration,
            fusion=fusion,
            variant=self.variant,
        )
        return PricedLayout(
            config=self.config, layout=self.layout, rates=rates, costs=self.costs, work=self.work
        )

    def time(self, calibration: Calibration = PEAK, fusion: FusionProfile = IDEAL) -> StepTime:
        """Time of the step at the rates of a calibration; by default those of the pure roofline."""
        return step_time(self.priced(calibration, fusion), self.microbatch(calibration, fusion))

    def microbatch(
        self,
        calibration: Calibration = PEAK,
        fusion: FusionProfile = IDEAL,
        same_compute: MicrobatchTime | None = None,
    ) -> MicrobatchTime:
        """Time of one microbatch; `same_compute` is one whose compute times are the same."""
        return microbatch_time(self.priced(calibration, fusion), self.program, same_compute)

    def _traffic_s(self, placement: Placement) -> float:
        """Seconds of the program's collectives in one microbatch on a placement."""
        costs = CollectiveCost([placement])
        total = 0.0
        for transfer in self.program.transfers:
            price = costs.price(transfer.move.kind, transfer.move.axes)
            total += float(price.time_s(transfer.elements(self.layout.sizes)))
        return total


@functools.lru_cache(maxsize=CACHED_PROGRAMS)
def _program(
    config: ModelConfig, job: Train, layout: Layout, variant: RunVariant
) -> tuple[Step, dict[WorkKey, LocalWork]]:
    """The program of one layout, and the work of its matmuls as far as it has been priced.

    Cached, since neither depends on the machine.
    """
    return training_program(config, job, layout, variant), {}


def training_program(
    config: ModelConfig, job: Train, layout: Layout | Layouts, variant: RunVariant | None = None
) -> Step:
    """Matmuls and collectives of one microbatch under a layout, or under arrays of layouts."""
    rules = rules_of(layout) if isinstance(layout, Layout) else table(layout)
    batch = layout.micro_batch * data_shards(layout.sizes)
    remat = "full" if layout.full_remat else "none"
    program = training_step(config, batch, job.seq, rules, remat=remat)
    program = program.in_chunks(layout.loss_chunks)
    if variant and variant.whole_remat:
        program = with_whole_remat(program)
    if variant and variant.frozen:
        program = without_gradients(program)
    return program


def without_gradients(program: Step) -> Step:
    """Program of a step with frozen weights: their gradients are neither computed nor synced."""

    def is_gradient(array: Array) -> bool:
        return array.gradient_of in program.weights

    return replace(
        program,
        matmuls=tuple(m for m in program.matmuls if not is_gradient(m.program.einsum.output)),
        transfers=tuple(t for t in program.transfers if not is_gradient(t.move.before)),
    )


def with_whole_remat(program: Step) -> Step:
    """Program of full remat that recomputes whole layers.

    This includes the last matmuls of a layer, whose outputs the backward pass does not read.
    """
    matmuls = [*program.matmuls]
    transfers = [*program.transfers]
    remat_matmuls = {(m.group, m.name) for m in matmuls if m.phase == "remat"}
    remat_transfers = {(t.name, t.move) for t in transfers if t.phase == "remat"}
    if not remat_matmuls:
        return program
    for matmul in program.matmuls:
        if matmul.phase != "forward" or is_embedding_or_head(matmul):
            continue
        if (matmul.group, matmul.name) not in remat_matmuls:
            matmuls.append(replace(matmul, phase="remat"))
    for transfer in program.transfers:
        if transfer.phase != "forward" or is_embedding_or_head(transfer):
            continue
        # Weights are gathered once for recomputation and the backward pass.
        is_weight_gather = transfer.role == "fsdp"
        if not is_weight_gather and (transfer.name, transfer.move) not in remat_transfers:
            transfers.append(replace(transfer, phase="remat"))
    return replace(program, matmuls=tuple(matmuls), transfers=tuple(transfers))
