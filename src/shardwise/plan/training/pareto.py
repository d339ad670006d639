"""Pareto fronts: step time against memory per chip, or step time against number of chips."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shardwise.errors import NoStrategy, ShardwiseError
from shardwise.estimate.training.usual_kernels import with_usual_kernels
from shardwise.formulas.flops import mfu
from shardwise.hardware import Switched, System, Torus, legal_slices
from shardwise.models import ModelConfig, count
from shardwise.plan.machine import rates_of
from shardwise.plan.schema.common import Range
from shardwise.plan.training import build, reasons, refusals
from shardwise.plan.training.sweep import plan_fields
from shardwise.search.given import Choices
from shardwise.search.training import rank
from shardwise.search.training.forms import read_fixed
from shardwise.search.training.rank import Candidate
from shardwise.workload import Train

OCTAVES = 3  # machines have 2^-3 to 2^3 times the chips of the given one


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """One strategy on one machine, or the reason why the machine has no plan.

    Args:
        memory_bytes: bytes per chip.
        chip_s: cost of a step in chip-seconds: number of chips times seconds of the step.
        on_front: whether the point is on the Pareto front: every faster point needs more memory, or
            more chips.
        problem: why the machine has no plan; the other numbers are then None.
    """

    hardware: str
    n_chips: int
    step_s: Range | None = None
    memory_bytes: float | None = None
    mfu: float | None = None
    tokens_per_s_per_chip: float | None = None
    chip_s: float | None = None
    mesh: dict[str, int] | None = None
    schedule: str | None = None
    zero: int | None = None
    remat: str | None = None
    n_microbatches: int | None = None
    on_front: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """A Pareto front of step times.

    Args:
        against: the other axis: "memory" (bytes per chip) or "chips" (number of chips).
    """

    model: str
    hardware: str
    against: str
    points: tuple[FrontPoint, ...]


def memory_front(
    model: ModelConfig,
    system: System,
    job: Train,
    fixed: Choices | None = None,
    *,
    most: Mapping[str, int] | None = None,
    any_layout: bool = False,
    peak: bool = False,
) -> Front:
    """The Pareto front of step time against memory per chip, fastest point first.

    It evaluates all legal strategies, most of which a search for the fastest one can skip.
    Arguments and errors are those of `shardwise.plan.api.plan`.
    """
    choices = read_fixed(fixed, most, any_layout=any_layout)
    job = with_usual_kernels(model, system.chip, job)
    rates = rates_of(system, job, peak=peak)
    try:
        ranking = rank.rank(model, system, job, rates, choices, front=True)
    except NoStrategy:
        raise refusals.no_strategy(model, system, job, choices) from None
    if not ranking.front:
        raise refusals.does_not_fit(model, system, job, choices, ranking.candidates)
    points = [_point(model, system, job, candidate) for candidate in ranking.front]
    front = [point for point in _mark_front(points, "memory_bytes") if point.on_front]
    return Front(
        model=model.name, hardware=system.name, against="memory", points=tuple(reversed(front))
    )


def chips_front(
    model: ModelConfig,
    system: System,
    job: Train,
    fixed: Choices | None = None,
    *,
    most: Mapping[str, int] | None = None,
    any_layout: bool = False,
    peak: bool = False,
) -> Front:
    """The best plans on machines of 1/8 to 8 times the chips of `system`, smallest first.

    Other arguments are those of `shardwise.plan.api.plan`.

    Raises:
        NoPlan: no machine has a plan. The error is the one for `system`.
    """
    points = []
    refusal: ShardwiseError | None = None
    for machine in machines(system):
        point = FrontPoint(hardware=machine.name, n_chips=machine.n_chips)
        try:
            plan = build.plan(
                model, machine, job, fixed, most=most, any_layout=any_layout, peak=peak
            )
        except ShardwiseError as error:
            if refusal is None or machine == system:
                refusal = error
            points.append(dataclasses.replace(point, problem=error.problems[0]))
            continue
        chip_s = plan.step.expected * machine.n_chips
        points.append(dataclasses.replace(point, **plan_fields(plan), chip_s=chip_s))
    if refusal is not None and all(point.problem for point in points):
        raise refusal
    return Front(
        model=model.name,
        hardware=system.name,
        against="chips",
        points=tuple(_mark_front(points, "n_chips")),
    )


def machines(system: System) -> list[System]:
    """Machines of about 1/8, 1/4, ... 8 times the chips of `system`, with itself, smallest first.

    A machine of several slices gets fewer or more slices, a torus becomes the legal slice nearest
    in size, and GPUs fill whole nodes.
    """
    by_size = {system.n_chips: system}
    for octave in range(-OCTAVES, OCTAVES + 1):
        machine = _machine_near(system, system.n_chips * 2.0**octave)
        if machine is not None:
            by_size.setdefault(machine.n_chips, machine)
    return [by_size[n_chips] for n_chips in sorted(by_size)]


def _machine_near(system: System, n_chips: float) -> System | None:
    """The machine of the same chip that has about `n_chips` chips; None if there is none."""
    topology = system.topology
    if system.n_slices > 1:
        n_slices = n_chips / system.chips_per_slice
        if n_slices == int(n_slices):
            return system.resized(topology, int(n_slices))
    elif isinstance(topology, Switched):
        n_gpus = round(n_chips)
        if n_gpus == n_chips and (n_gpus <= topology.domain or n_gpus % topology.domain == 0):
            return system.resized(dataclasses.replace(topology, n_gpus=n_gpus))
    else:
        slices = [s for s in legal_slices(system.chip) if 2 / 3 < s.n_chips / n_chips < 3 / 2]
        if slices:
            return system.resized(min(slices, key=lambda torus: _distance(torus, n_chips)))
    return None


def _distance(torus: Torus, n_chips: float) -> tuple[float, int]:
    """Sort key: how far a slice is from `n_chips`; among equals, the more compact comes first."""
    return abs(math.log(torus.n_chips / n_chips)), max(torus.shape)


def _point(model: ModelConfig, system: System, job: Train, candidate: Candidate) -> FrontPoint:
    step_s = float(candidate.time.step_s)
    flops = count.model_flops_per_token(model, job.seq, job.mtp_layers) * job.tokens_per_step
    return FrontPoint(
        hardware=system.name,
        n_chips=system.n_chips,
        step_s=reasons.step_range(candidate),
        memory_bytes=float(candidate.memory.total),
        mfu=mfu(flops, step_s, system.n_chips, system.chip.peak(job.compute)),
        tokens_per_s_per_chip=job.tokens_per_step / step_s / system.n_chips,
        chip_s=step_s * system.n_chips,
        **reasons.strategy_fields(candidate),
    )


def _mark_front(points: Iterable[FrontPoint], against: str) -> list[FrontPoint]:
    """Sort points by the field `against`, smallest first, and mark those on the Pareto front.

    A point is on the front if it is faster than all points before it.
    """
    in_order = sorted(points, key=lambda point: (getattr(point, against) or 0.0, _step_s(point)))
    marked = []
    fastest_s = math.inf
    for point in in_order:
        step_s = _step_s(point)
        marked.append(dataclasses.replace(point, on_front=step_s < fastest_s))
        fastest_s = min(fastest_s, step_s)
    return marked


def _step_s(point: FrontPoint) -> float:
    return point.step_s.expected if point.step_s else math.inf
