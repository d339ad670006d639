"""The machine for a training run: the cheapest and the fastest that keep the bounds.

Machines are those of several chips, in sizes that double. A machine is searched for its best plan
unless its lower bounds, the run's FLOPs at peak rates and their price, exceed the user's bounds or
show that a searched machine is both cheaper and faster. A search leaves out what exceeds the bounds
or is slower than where such a machine wins.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shardwise import units
from shardwise.errors import BadInput, NoPlan, ShardwiseError
from shardwise.estimate.chip_memory import capacity_bytes
from shardwise.estimate.training.framework_profiles import profile_of
from shardwise.estimate.training.usual_kernels import with_usual_kernels
from shardwise.formulas.flops import mfu
from shardwise.hardware import Chip, System
from shardwise.models import ModelConfig, count
from shardwise.plan.machine import rates_of
from shardwise.plan.machine_front import (
    ChipPrice,
    is_dominated,
    pareto_front,
    price_of,
    split_by_price,
)
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
class TrainingChoice:
    """Machines for a run, none of which is both cheaper and faster than another.

    Args:
        compute: dtype of matmuls.
        framework: software that runs the step; empty for the usual one.
        mtp_layers: layers of multi-token prediction.
        front: the machines that keep the bounds, cheapest first.
        prices: chip -> dollars of a chip-hour, and the month of that price.
        without_price: chips that have no price, and are not compared.
        n_searched: machines of which the best plan was searched.
        largest: chip -> chips of its largest machine, where that is below `MAX_CHIPS`.
    """

    model: str
    batch: int
    seq: int
    compute: str
    framework: str
    mtp_layers: int
    tokens: float
    within_s: float | None
    budget_usd: float | None
    front: tuple[TrainingMachine, ...]
    prices: dict[str, ChipPrice]
    without_price: tuple[str, ...]
    n_searched: int
    largest: dict[str, int]

    @property
    def cheapest(self) -> TrainingMachine:
        """The cheapest machine that keeps the bounds."""
        return self.front[0]

    @property
    def fastest(self) -> TrainingMachine:
        """The fastest machine that keeps the bounds."""
        return self.front[-1]

    @property
    def chosen(self) -> TrainingMachine:
        """The fastest if only a budget is given, else the cheapest."""
        only_budget = self.budget_usd is not None and self.within_s is None
        return self.fastest if only_budget else self.cheapest


@dataclass(slots=True)
class _Search:
    """A run, and the machines that were searched for its best plan.

    Args:
        rows: machine -> its best plan; None if it has none.
        searched: machine -> its chip, also of machines that others were found to beat.
    """

    model: ModelConfig
    job: Train
    peak: bool
    rows: dict[str, TrainingMachine | None] = field(default_factory=dict)
    searched: dict[str, str] = field(default_factory=dict)

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
        if row or math.isinf(limit_s):
            self.rows[system.name] = row
        return row

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


def choose(
    model: ModelConfig,
    chips: Sequence[Chip],
    job: Train,
    *,
    within_s: float | None = None,
    budget_usd: float | None = None,
    peak: bool = False,
) -> TrainingChoice:
    """Choose the machine for a run among all sizes of several chips.

    Args:
        job: the run; its tokens must be given.
        within_s: bound on the expected time of the run.
        budget_usd: bound on its price.
        peak: whether to use the chips' peak rates rather than the expected ones.

    Raises:
        BadInput: the job has no tokens, or no chip has a price.
        NoPlan: no machine keeps the bounds; the error names the nearest ones.
    """
    if job.tokens is None:
        raise BadInput("the price of a run needs its tokens: --tokens 15T.")
    priced, without_price = split_by_price(chips)
    search = _Search(model, job, peak)
    able = [chip for chip in priced if _computes(chip, job)]
    if not able:
        under = f" under {job.framework}" if job.framework else ""
        raise BadInput(
            f"none of {', '.join(chip.name for chip in priced)} trains in {job.compute}{under}."
        )
    systems = search.machines(able)
    seconds = float("inf") if within_s is None else within_s
    usd = float("inf") if budget_usd is None else budget_usd
    front = search.within(systems, seconds, usd)
    if not front:
        raise NoPlan(*_nearest(search, systems, within_s, budget_usd))
    planned = set(search.searched.values())
    return TrainingChoice(
        model=model.name,
        batch=job.batch,
        seq=job.seq,
        compute=job.compute,
        framework=job.framework,
        mtp_layers=job.mtp_layers,
        tokens=job.tokens,
        within_s=within_s,
        budget_usd=budget_usd,
        front=tuple(front),
        prices={chip.name: price_of(chip) for chip in priced if chip.name in planned},
        without_price=without_price,
        n_searched=len(search.searched),
        largest=_largest(able),
    )


def chosen_system(choice: TrainingChoice, chips: Sequence[Chip]) -> System:
    """The machine that a choice from `chips` took, with their figures."""
    return next(
        system
        for chip in chips
        if chip.name == choice.chosen.chip
        for system in doubling_machines(chip, MAX_CHIPS)
        if system.name == choice.chosen.hardware
    )


def _computes(chip: Chip, job: Train) -> bool:
    """Whether the chip has products of the job's dtype, and runs its framework."""
    try:
        profile_of(job, chip)
        return bool(chip.peak(job.compute))
    except ShardwiseError:
        return False


def _largest(chips: Sequence[Chip]) -> dict[str, int]:
    """Chips of the largest machines of a slice, or of a node whose network has no figure."""
    largest = {
        chip.name: max(system.n_chips for system in doubling_machines(chip, MAX_CHIPS))
        for chip in chips
    }
    return {name: n for name, n in largest.items() if 2 * n <= MAX_CHIPS}


def _usd(system: System, seconds: float) -> float:
    return system.n_chips * (system.chip.usd_per_chip_hour or 0.0) * seconds / HOUR


def _nearest(
    search: _Search, systems: Sequence[System], within_s: float | None, budget_usd: float | None
) -> Iterator[str]:
    """What the machines that keep one of the bounds miss of the other."""
    bounds = []
    if within_s is not None:
        bounds.append(f"within {units.show_seconds(within_s)}")
    if budget_usd is not None:
        bounds.append(f"for {units.show_dollars(budget_usd)}")
    yield f"no machine trains {search.model.name} {' '.join(bounds)}".rstrip() + "."
    unbounded = float("inf")
    if within_s is not None:
        in_time = search.within(systems, within_s, unbounded)
        if in_time:
            yield f"Cheapest in that time: {_described(in_time[0])}."
    if budget_usd is not None:
        affordable = search.within(systems, unbounded, budget_usd)
        if affordable:
            yield f"Fastest for that price: {_described(affordable[-1])}."
    any_machine = search.within(systems, unbounded, unbounded)
    if any_machine:
        yield f"Cheapest of all: {_described(any_machine[0])}."
        yield f"Fastest of all: {_described(any_machine[-1])}."


def _described(row: TrainingMachine) -> str:
    return f"{row.hardware}, {units.show_seconds(row.run_s)}, {units.show_dollars(row.usd)}"
