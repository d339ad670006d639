"""Search of serving deployments: engines, batches, dtypes, one kind of engine or two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.arrays import Num
from shardwise.errors import DoesNotFit, NoLegalEngine, NoStrategy, UnknownFigure
from shardwise.estimate.serving.chip_rates import ServeRates
from shardwise.estimate.serving.efficiency import serving_efficiency
from shardwise.estimate.serving.overhead import DEFAULT_OVERHEAD
from shardwise.hardware import Chip, System
from shardwise.models import ModelConfig
from shardwise.search.given import NOTHING, Fixed
from shardwise.search.serving import choose
from shardwise.search.serving.candidate import Candidate, Server
from shardwise.search.serving.choose import Rule
from shardwise.search.serving.deployments import Points, apart, joined, together
from shardwise.search.serving.evaluate import BUSY, Block, blocks
from shardwise.search.serving.layouts import Sites, machines, sites
from shardwise.strategy.mesh import Mesh
from shardwise.workload import Serve

SHOWN = 5  # deployments of a front that are shown
SLOWEST = 0.2  # seconds per token: a front ends there, at the 300 words a minute that people read


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """What a search found.

    Args:
        candidates: the one to take, then the best of each other layout.
        rule: what it was taken by.
        front: least time per token against most tokens/s/chip.
        n_points: operating points that fit.
        others: best deployment of the other kind, where both were looked at.
    """

    candidates: list[Candidate]
    rule: Rule
    front: list[Candidate]
    n_points: int
    sized: bool
    other: Candidate | None = None
    n_engines: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is searched.

    Args:
        where: a machine, or a chip whose machines are searched.
        jobs: the same work in several dtypes.
        fixed: sizes and words that are fixed, and largest sizes.
        disaggregate: True and False ask for one kind; None looks at both where there are bounds.
    """

    config: ModelConfig
    where: System | Chip
    jobs: Sequence[Serve]
    fixed: Fixed = NOTHING
    peak: bool = False
    disaggregate: bool | None = None

    @property
    def chip(self) -> Chip:
        return self.where.chip if isinstance(self.where, System) else self.where

    @property
    def sized(self) -> bool:
        """Whether the machine is given."""
        return isinstance(self.where, System)

    @property
    def job(self) -> Serve:
        """What all dtypes have in common."""
        return self.jobs[0]

    @property
    def looks_at_both(self) -> bool:
        """Whether engines of one kind and of two kinds are compared."""
        job = self.job
        bounded = job.rate or job.ttft_s or job.tpot_s
        return self.disaggregate is None and bool(bounded) and job.output is not None

    def rates(self, job: Serve) -> ServeRates:
        """What the chip reaches, or its peaks."""
        if self.peak:
            return ServeRates(chip=self.chip, job=job)
        found = serving_efficiency(self.chip.name, self.chip.kind)
        return ServeRates(chip=self.chip, job=job, efficiency=found, overhead=DEFAULT_OVERHEAD)

    def sites(self) -> Sites | None:
        """Every engine to look at."""
        if isinstance(self.where, System):
            systems = [self.where]
        else:
            systems = machines(self.config, self.where, min(self.jobs, key=_weight))
        return sites(self.config, self.job, systems, self.fixed, filling=not self.sized)


def _weight(job: Serve) -> float:
    from shardwise.units import bytes_per_element

    return bytes_per_element(job.weights)


def rank(asked: Request, keep: int = SHOWN, *, each_reader: bool = False) -> Ranking:
    """The deployment to take, with what it was compared to.

    Args:
        each_reader: engines beside other readers of prompts are other deployments.

    Raises:
        NoLegalEngine: no engine is legal. NoStrategy: none meets the bounds.
        DoesNotFit: no engine holds one sequence, or the batch that is asked for.
        UnknownFigure: a figure that the chip's file does not have.
    """
    every = asked.sites()
    if every is None:
        raise NoLegalEngine("no engine is legal.")
    options = [(job, asked.rates(job)) for job in asked.jobs]
    found = blocks(asked.config, every, options, asked.fixed)
    if not found:
        raise DoesNotFit("nothing fits.")
    both = _points(asked, found)
    every_point = joined([p for p in both if len(p)])
    order, rule = choose.ordered(
        every_point,
        asked.job,
        sized=asked.sized,
        name=lambda i: _named(candidate(asked.config, found, every_point, i)),
    )
    candidates = _ranked(asked, found, every_point, order, keep + 1, each_reader=each_reader)
    chosen = candidates[0]
    return Ranking(
        candidates=candidates,
        rule=rule,
        front=_front(asked, found, every_point),
        n_points=len(every_point),
        sized=asked.sized,
        other=_other(asked, found, both, chosen) if asked.looks_at_both else None,
        n_engines=sum(len(b.sites) for b in found),
    )


def _points(asked: Request, found: Sequence[Block]) -> list[Points]:
    """Deployments with one kind of engine, then with two."""
    job, both = asked.job, []
    if asked.disaggregate is not True:
        both += together(found, job, sized=asked.sized)
    if asked.disaggregate or asked.looks_at_both:
        limit = max(s.n_chips for b in found for s in b.sites.systems)
        limit = limit if asked.sized or not job.rate else 10**9
        try:
            both += apart(asked.config, found, job, limit, sized=asked.sized)
        except UnknownFigure:
            if asked.disaggregate:
                raise
    if not any(len(p) for p in both):
        raise NoStrategy(*_too_slow(asked, found))
    return both


def _too_slow(asked: Request, found: Sequence[Block]) -> list[str]:
    """When the given machine has too few chips."""
    where, rate = asked.where, asked.job.rate
    name = where.name
    if rate:
        most = max(
            float((b.sites.sizes["data"][b.row] * b.steady.requests_per_s).max()) for b in found
        )
        return [
            f"{name} serves {most:.3g} requests/s at most; --rate {rate:g}/s needs more chips. "
            f"How many: shardwise plan {asked.config.name} {asked.chip.name} --serve --rate "
            f"{rate:g}/s"
        ]
    return [f"{name} has no room for two kinds of engines. Leave --disaggregate out."]


def candidate(config: ModelConfig, found: Sequence[Block], points: Points, i: int) -> Candidate:
    """One of the points in numbers."""
    block = found[int(points.block[i])]
    row = int(points.point[i])
    reader = None
    if points.reader[i] >= 0:
        other = found[int(points.reader[i])]
        reader = _server(config, other, int(points.site[i]), int(points.readers[i]))
    return Candidate(
        server=_server(config, block, int(block.row[row]), int(points.engines[i])),
        batch=int(block.batch[row]),
        reader=reader,
        busy=BUSY[int(points.busy[i])] if reader else 0.0,
        chips=int(points.chips[i]),
        transfer_s=float(points.transfer_s[i]),
    )


def _named(one: Candidate) -> str:
    """What an engine is, in a refusal: `tensor 16 on v5e:4x4, batch 1`."""
    mesh = Mesh(**{**one.server.layout.sizes, "data": 1})
    return f"{mesh} on {one.server.system.name}, batch {one.batch:,}"


def _server(config: ModelConfig, block: Block, row: int, count: int) -> Server:
    here = block.sites
    return Server(
        config=config,
        job=block.job,
        system=here.systems[int(here.system[row])],
        layout=block.layout(row),
        placement=here.placements[row],
        rates=block.rates,
        count=count,
    )


def _front(asked: Request, found: Sequence[Block], points: Points) -> list[Candidate]:
    """Some of the front, evenly between its ends on a scale of ratios."""
    import numpy as np

    rows = choose.front(points, asked.job)
    rows = rows[: max(1, int((points.tpot_s[rows] <= SLOWEST).sum()))]
    place = np.log(points.tpot_s[rows])
    wanted = np.linspace(place[0], place[-1], SHOWN)
    near = sorted({int(abs(place - w).argmin()) for w in wanted})
    return [candidate(asked.config, found, points, int(rows[i])) for i in near]


def _ranked(
    asked: Request,
    found: Sequence[Block],
    points: Points,
    order: Num,
    keep: int,
    *,
    each_reader: bool,
) -> list[Candidate]:
    """The best deployment of each engine that generates, and of each kind, best first."""
    best: dict[tuple[int, ...], int] = {}
    for i in order:
        block, reader = int(points.block[i]), int(points.reader[i])
        engine = int(found[block].row[int(points.point[i])])
        reads = (reader, int(points.site[i])) if each_reader else (int(reader >= 0),)
        best.setdefault((block, engine, *reads), int(i))
        if len(best) >= keep:
            break
    return [candidate(asked.config, found, points, i) for i in best.values()]


def _other(
    asked: Request, found: Sequence[Block], both: Sequence[Points], chosen: Candidate
) -> Candidate | None:
    """The best deployment of the kind that was not taken, or None where it meets no bound."""
    split = chosen.reader is None
    parts = [p for p in both if len(p) and (p.reader[0] >= 0) == split]
    if not parts:
        return None
    points = joined(parts)
    try:
        order, _ = choose.ordered(points, asked.job, sized=asked.sized)
    except NoStrategy:
        return None
    return candidate(asked.config, found, points, int(order[0]))
