"""The machines of a training run: their best plans, as far as they may be the cheapest or fastest.

Machines are those of several chips, in sizes that double. A machine is searched for its best plan
unless its lower bounds, the run's FLOPs at peak rates and their price, exceed the user's bounds or
show that a searched machine is both cheaper and faster. A search leaves out what exceeds the bounds
or is slower than where such a machine wins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from shardwise import units
from shardwise.errors import ShardwiseError
from shardwise.estimate.chip_memory import capacity_bytes
from shardwise.estimate.training.usual_kernels import with_usual_kernels
from shardwise.formulas.flops import mfu
from shardwise.hardware import Chip, System
from shardwise.models import ModelConfig, count
from shardwise.plan.machine import rates_of
from shardwise.plan.machine_front import is_dominated, pareto_front
from shardwise.search.given import Fixed
from shardwise.search.machines import doubling_machines
from shardwise.search.training import rank
from shardwise.workload import Train

MAX_CHIPS = 2**15  # the largest published runs have 16,384 to 24,576 GPUs
HOUR = 3600.0
ROUNDING = 1e-9  # a search keeps runs that exceed a bound by this share, which may just keep it


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMachine:
    """The best plan of a run on a machine.

    Args:
        step_s: expected seconds of a step.
        run_s: expected seconds of the whole run.
        usd: price of the run.
        rates: chip of the runs from which the rates come; another one's are borrowed.
    """

    hardware: str
    chip: str
    n_chips: int
    step_s: float
    run_s: float
    usd: float
    mfu: float
    mesh: dict[str, int]
    rates: str

    @property
    def cost(self) -> float:
        """Dollars of the run."""
        return self.usd

    @property
    def seconds(self) -> float:
        """Seconds of the run."""
        return self.run_s


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatenMachine:
    """A machine of which it is known only that others, or the bounds of the run, rule it out.

    Args:
        searched: whether its splits were searched; otherwise its peak rates rule it out.
        least_run_s, least_usd: seconds and dollars that a run on it exceeds.
    """

    hardware: str
    chip: str
    n_chips: int
    searched: bool
    least_run_s: float
    least_usd: float


@dataclass(slots=True)
class MachineSearch:
    """A run, and the machines that were searched for its best plan.

    Args:
        rows: machine -> its best plan; None if it has none.
        searched: machine -> its chip, also of machines that others were found to beat.
        beaten: machine -> what is known of it, where its best plan is not.
    """

    model: ModelConfig
    job: Train
    peak: bool
    rows: dict[str, TrainingMachine | None] = field(default_factory=dict)
    searched: dict[str, str] = field(default_factory=dict)
    beaten: dict[str, BeatenMachine] = field(default_factory=dict)

    def machines(self, chips: Sequence[Chip]) -> list[System]:
        """Machines that may hold the weights."""
        weight_bytes = count.parameters(self.model).total * units.bytes_per_element(
            self.job.weights
        )
        return [
            system
            for chip in chips
            for system in doubling_machines(chip, MAX_CHIPS)
            if system.n_chips * capacity_bytes(chip) > weight_bytes
        ]

    def least(self, system: System) -> tuple[float, float]:
        """Lower bounds: dollars and seconds of the run at peak FLOP/s."""
        flops = self._flops_per_token() * (self.job.tokens or 0.0)
        seconds = flops / (system.n_chips * system.chip.peak(self.job.compute))
        return _usd(system, seconds), seconds

    def _flops_per_token(self) -> float:
        """Training FLOPs of one token."""
        return float(count.model_flops_per_token(self.model, self.job.seq, self.job.mtp_layers))

    def within(
        self, systems: Sequence[System], within_s: float, usd: float
    ) -> list[TrainingMachine]:
        """The Pareto front of the machines that keep both bounds."""
        kept: list[TrainingMachine] = []
        for system in sorted(systems, key=self.least):
            least_usd, least_s = self.least(system)
            if least_usd > usd or least_s > within_s or is_dominated(kept, least_usd, least_s):
                self._beat(system, least_s, searched=False)
                continue
            bound_s = (1 + ROUNDING) * min(within_s, usd / _usd(system, 1.0))
            row = self._row(system, min(bound_s, self._limit_s(kept, system)))
            if row and row.usd <= usd and row.run_s <= within_s:
                kept.append(row)
        return pareto_front(kept)

    def _limit_s(self, kept: Sequence[TrainingMachine], system: System) -> float:
        """Seconds from which a run on a machine is dearer and slower than on one of `kept`."""
        usd_per_s = _usd(system, 1.0)
        return min((max(row.usd / usd_per_s, row.run_s) for row in kept), default=math.inf)

    def _row(self, system: System, limit_s: float) -> TrainingMachine | None:
        """The best plan on a machine; None if it has none, or none whose run is below a limit."""
        if system.name in self.rows:
            return self.rows[system.name]
        row = self._best(system, limit_s)
        self.searched[system.name] = system.chip.name
        if row and row.run_s >= limit_s:
            row = None
        if row is None and math.isfinite(limit_s):
            self._beat(system, max(limit_s, self.least(system)[1]), searched=True)
        if row or math.isinf(limit_s):
            self.rows[system.name] = row
        return row

    def _beat(self, system: System, least_s: float, *, searched: bool) -> None:
        self.beaten[system.name] = BeatenMachine(
            hardware=system.name,
            chip=system.chip.name,
            n_chips=system.n_chips,
            searched=searched,
            least_run_s=least_s,
            least_usd=_usd(system, least_s),
        )

    def cheapest(self, systems: Sequence[System], within_s: float) -> TrainingMachine | None:
        """The cheapest machine of a chip that has a plan within a time; None if none has.

        Larger ones are searched until one is dearer: from there on, traffic grows. Machines
        that weights, gradients and optimizer alone would fill are not searched.
        """
        best: TrainingMachine | None = None
        n_bytes = count.parameters(self.model).total * self.job.state_bytes
        for system in sorted(systems, key=lambda system: system.n_chips):
            is_full = system.n_chips * capacity_bytes(system.chip) < n_bytes
            if is_full or self.least(system)[1] > within_s:
                continue
            dearest_s = best.usd / _usd(system, 1.0) if best else math.inf
            row = self._row(system, min(dearest_s, (1 + ROUNDING) * within_s))
            if row and row.run_s <= within_s:
                best = row
            elif best:
                break
        return best

    def _best(self, system: System, limit_s: float) -> TrainingMachine | None:
        job = with_usual_kernels(self.model, system.chip, self.job)
        rates = rates_of(system, job, peak=self.peak)
        steps = (self.job.tokens or 0.0) / self.job.tokens_per_step
        below = Fixed(limit_s=limit_s / steps)
        try:
            best = rank.rank(self.model, system, job, rates, below, keep=1).candidates[0]
        except ShardwiseError:
            return None
        if not best.fits:
            return None
        step_s = float(best.time.step_s)
        run_s = step_s * steps
        flops = self._flops_per_token() * self.job.tokens_per_step
        return TrainingMachine(
            hardware=system.name,
            chip=system.chip.name,
            n_chips=system.n_chips,
            step_s=step_s,
            run_s=run_s,
            usd=_usd(system, run_s),
            mfu=mfu(flops, step_s, system.n_chips, system.chip.peak(self.job.compute)),
            mesh={role: size for role, size in best.layout.sizes.items() if size > 1},
            rates=rates.name,
        )


def _usd(system: System, seconds: float) -> float:
    return system.n_chips * (system.chip.usd_per_chip_hour or 0.0) * seconds / HOUR
