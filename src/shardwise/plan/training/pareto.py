"""Fronts: the strategies, or the machines, than which none is better in two things at once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from shardwise.errors import NoStrategy, ShardwiseError
from shardwise.formulas.flops import mfu
from shardwise.hardware import Switched, System, Torus, legal_slices
from shardwise.models import ModelConfig, count
from shardwise.plan.schema.common import Range
from shardwise.plan.training import build, reasons, refusals
from shardwise.search.given import Choices
from shardwise.search.training import rank
from shardwise.search.training.forms import read_fixed
from shardwise.workload import Train

OCTAVES = 3  # machines from 1/8 to 8 times the one that is asked about


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """One strategy on one machine, or why there is none.

    Args:
        memory_bytes: of a chip.
        chip_s: chips times seconds of a step, what the step costs.
        on_front: no other point is as good in both things and better in one.
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
    """Points by step time against `memory` of a chip or `chips`."""

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
    peak: bool = False,
) -> Front:
    """The strategies than which none is both faster and smaller, fastest first. Raises as `plan`.

    It takes every legal strategy, where a search for the best leaves most of them out.
    """
    given = read_fixed(fixed, most)
    cal = build.rates(system, peak=peak)
    try:
        ranking = rank.rank(model, system, job, cal, given, front=True)
    except NoStrategy:
        raise refusals.no_strategy(model, system, job, given) from None
    if not ranking.front:
        raise refusals.does_not_fit(model, system, job, ranking.candidates)
    points = [_point(model, system, job, c) for c in ranking.front]
    kept = [p for p in _marked(points, "memory_bytes") if p.on_front]
    return Front(
        model=model.name, hardware=system.name, against="memory", points=tuple(reversed(kept))
    )


def chips_front(
    model: ModelConfig,
    system: System,
    job: Train,
    fixed: Choices | None = None,
    *,
    most: Mapping[str, int] | None = None,
    peak: bool = False,
) -> Front:
    """The best plans of the same work on machines of 1/8 to 8 times the size, smallest first.

    Raises:
        NoPlan: none of them has a plan; with the problem of the machine that was asked about.
    """
    points = []
    first: ShardwiseError | None = None
    for other in machines(system):
        try:
            plan = build.plan(model, other, job, fixed, most=most, peak=peak)
        except ShardwiseError as error:
            first = error if first is None or other == system else first
            points.append(_none(other, error.problems[0]))
            continue
        strategy, estimate = plan.strategy, plan.estimate
        points.append(
            FrontPoint(
                hardware=other.name,
                n_chips=other.n_chips,
                step_s=estimate.step_s,
                memory_bytes=plan.memory.total,
                mfu=estimate.mfu,
                tokens_per_s_per_chip=estimate.tokens_per_s_per_chip,
                chip_s=estimate.step_s.expected * other.n_chips,
                mesh=strategy.mesh,
                schedule=strategy.schedule,
                zero=strategy.zero,
                remat=strategy.remat,
                n_microbatches=strategy.n_microbatches,
            )
        )
    if first is not None and all(point.problem for point in points):
        raise first
    return Front(
        model=model.name,
        hardware=system.name,
        against="chips",
        points=tuple(_marked(points, "n_chips")),
    )


def machines(system: System) -> list[System]:
    """The machine and those of about 1/8, 1/4 ... 8 times its chips, smallest first.

    Slices over DCN change their number; a torus takes the slice nearest in size; GPUs fill nodes.
    """
    found = {system.n_chips: system}
    for octave in range(-OCTAVES, OCTAVES + 1):
        for other in _sized(system, system.n_chips * 2.0**octave):
            found.setdefault(other.n_chips, other)
    return [found[n] for n in sorted(found)]


def _sized(system: System, n_chips: float) -> Iterator[System]:
    """The machine of the same chip nearest to a number of chips, if one is near."""
    topology, n = system.topology, round(n_chips)
    if system.n_slices > 1:
        n_slices = n_chips / system.chips_per_slice
        if n_slices == int(n_slices):
            times = f"*{int(n_slices)}" if n_slices > 1 else ""
            name = system.name.replace(f"*{system.n_slices}", times, 1)
            yield dataclasses.replace(system, name=name, n_slices=int(n_slices))
    elif isinstance(topology, Switched):
        if n == n_chips and (n <= topology.domain or n % topology.domain == 0):
            yield refusals.renamed(system, dataclasses.replace(topology, n_gpus=n))
    else:
        near = [s for s in legal_slices(system.chip) if 2 / 3 < s.n_chips / n_chips < 3 / 2]
        if near:
            yield refusals.renamed(system, min(near, key=lambda s: _far(s, n_chips)))


def _far(torus: Torus, n_chips: float) -> tuple[float, int]:
    """How far a slice is in size; of equal ones the most compact is nearest."""
    return abs(math.log(torus.n_chips / n_chips)), max(torus.shape)


def _none(system: System, problem: str) -> FrontPoint:
    return FrontPoint(hardware=system.name, n_chips=system.n_chips, problem=problem)


def _point(model: ModelConfig, system: System, job: Train, found: rank.Candidate) -> FrontPoint:
    layout, step = found.layout, float(found.time.step_s)
    flops = count.model_flops_per_token(model, job.seq) * job.tokens_per_step
    return FrontPoint(
        hardware=system.name,
        n_chips=system.n_chips,
        step_s=reasons.step_range(found),
        memory_bytes=float(found.memory.total),
        mfu=mfu(flops, step, system.n_chips, system.chip.peak(job.compute)),
        tokens_per_s_per_chip=job.tokens_per_step / step / system.n_chips,
        chip_s=step * system.n_chips,
        mesh=found.mesh.sizes,
        schedule=layout.schedule,
        zero=layout.zero,
        remat=layout.policy,
        n_microbatches=layout.n_microbatches,
    )


def _marked(points: Iterable[FrontPoint], against: str) -> list[FrontPoint]:
    """Points, least of what they are compared in first; those on the front have a shorter step."""
    there = sorted(points, key=lambda p: (getattr(p, against) or 0.0, _step(p)))
    found, best = [], math.inf
    for point in there:
        found.append(dataclasses.replace(point, on_front=_step(point) < best))
        best = min(best, _step(point))
    return found


def _step(point: FrontPoint) -> float:
    return point.step_s.expected if point.step_s else math.inf
