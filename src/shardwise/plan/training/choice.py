"""The machine for a training run: the cheapest and the fastest that keep the bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from shardwise import units
from shardwise.errors import BadInput, NoPlan, ShardwiseError
from shardwise.estimate.training.framework_profiles import profile_of
from shardwise.hardware import Chip, System
from shardwise.models import ModelConfig
from shardwise.plan.machine_front import ChipPrice, price_of, split_by_price
from shardwise.plan.training.run_machines import (
    MAX_CHIPS,
    BeatenMachine,
    MachineSearch,
    TrainingMachine,
)
from shardwise.search.machines import doubling_machines
from shardwise.workload import Train

GOOD_MFU_SHARE = 0.5  # of the best MFU of the front; chips of machines below it mostly wait


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingChoice:
    """Machines for a run, none of which is both cheaper and faster than another.

    Args:
        compute: dtype of matmuls.
        framework: software that runs the step; empty for the usual one.
        mtp_layers: layers of multi-token prediction.
        front: the machines that keep the bounds, cheapest first.
        others: the cheapest machine that keeps the time, of each chip that has none in `front`; it
            is dearer and slower than one there, or beyond the budget.
        beaten: machines of which others, or the bounds, were found to rule out any plan.
        unable: chip -> why it has no row: "dtype" if it lacks the products of the run or its
            framework, "fit" if no machine of it holds the run within the time.
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
    others: tuple[TrainingMachine, ...] = ()
    beaten: tuple[BeatenMachine, ...] = ()
    unable: dict[str, Literal["dtype", "fit"]] = field(default_factory=dict)

    @property
    def cheapest(self) -> TrainingMachine:
        """The cheapest machine that keeps the bounds."""
        return self.front[0]

    @property
    def fastest(self) -> TrainingMachine:
        """The fastest machine that keeps the bounds."""
        return self.front[-1]

    def is_wasteful(self, row: TrainingMachine) -> bool:
        """Whether an MFU is so far below that of another row that most of the price is waiting."""
        return row.mfu < GOOD_MFU_SHARE * max(other.mfu for other in self.front)

    @property
    def fastest_busy(self) -> TrainingMachine:
        """The fastest machine that is not wasteful."""
        return [row for row in self.front if not self.is_wasteful(row)][-1]

    @property
    def cheapest_confirmed(self) -> TrainingMachine | None:
        """The cheapest row whose price a first source states; None if there is none."""
        rows = [row for row in (*self.front, *self.others) if self.prices[row.chip].confirmed]
        return min(rows, key=lambda row: row.usd, default=None)

    @property
    def chosen(self) -> TrainingMachine:
        """The fastest if only a budget is given, else the cheapest."""
        only_budget = self.budget_usd is not None and self.within_s is None
        return self.fastest if only_budget else self.cheapest


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
    search = MachineSearch(model, job, peak)
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
    others = tuple(_others(search, systems, {row.chip for row in front}, seconds))
    planned = set(search.searched.values())
    with_row = {row.chip for row in (*front, *others)}
    unable: dict[str, Literal["dtype", "fit"]] = {
        chip.name: "fit" if chip in able else "dtype"
        for chip in priced
        if chip.name not in with_row
    }
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
        others=others,
        beaten=tuple(row for name, row in search.beaten.items() if not search.rows.get(name)),
        unable=unable,
    )


def _others(
    search: MachineSearch, systems: Sequence[System], on_front: set[str], within_s: float
) -> list[TrainingMachine]:
    """The cheapest machine that keeps the time, of each chip without one on the front."""
    of_chip: dict[str, list[System]] = {}
    for system in systems:
        if system.chip.name not in on_front:
            of_chip.setdefault(system.chip.name, []).append(system)
    cheapest = [search.cheapest(sizes, within_s) for sizes in of_chip.values()]
    return sorted((row for row in cheapest if row), key=lambda row: row.usd)


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


def _nearest(
    search: MachineSearch,
    systems: Sequence[System],
    within_s: float | None,
    budget_usd: float | None,
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
