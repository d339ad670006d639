"""Search serving deployments: engines, batches and dtypes, colocated or disaggregated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.arrays import Num
from shardwise.errors import DoesNotFit, NoLegalEngine, NoStrategy, TooManyChips, UnknownFigure
from shardwise.estimate.serving.chip_rates import ServeRates
from shardwise.estimate.serving.efficiency import (
    MEASURED,
    ServingEfficiency,
    serving_efficiency,
)
from shardwise.estimate.serving.measured_rates import is_measured
from shardwise.estimate.serving.overhead import OURS, engine_overhead, measured_overhead
from shardwise.hardware import Chip, System, chip_of
from shardwise.hardware.shape import MAX_CHIPS
from shardwise.models import ModelConfig
from shardwise.search.given import NOTHING_FIXED, Fixed
from shardwise.search.serving import choose
from shardwise.search.serving.candidate import Candidate, Server
from shardwise.search.serving.closed_loop import with_filled_batch
from shardwise.search.serving.deployments import Points, colocated, concatenate, disaggregated
from shardwise.search.serving.evaluate import PREFILL_LOADS, EngineBlock, blocks
from shardwise.search.serving.layouts import CandidateEngines, candidate_engines, machines
from shardwise.search.serving.rule import NO_SLACK, Rule, Slack
from shardwise.strategy.mesh import Mesh
from shardwise.units import bytes_per_element
from shardwise.workload import Serve

SHOWN = 5  # number of deployments of the Pareto front in a plan
PART_OF_LOAD = 0.8  # of the highest load: simulated requests may need more engines than means
MAX_TPOT_S = 0.2  # end of the front: 300 words a minute, about the speed at which people read


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The result of a search.

    Args:
        candidates: the best deployment, then the best of every other layout.
        rule: the criterion that the best one was chosen by.
        front: Pareto front of TPOT and tokens/s/chip.
        n_points: number of deployments that fit in memory.
        machine_is_given: whether the search was on one machine, not on all machines of a chip type.
        other: if the best deployment is colocated, the best disaggregated one, and the reverse;
            None if only one kind was searched or the other kind misses the bounds.
        n_engines: number of engines that were evaluated.
    """

    candidates: list[Candidate]
    rule: Rule
    front: list[Candidate]
    n_points: int
    machine_is_given: bool
    other: Candidate | None = None
    n_engines: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The input of a search.

    Args:
        hardware: the machine, or a chip type of which all machines are searched.
        jobs: the same workload in each combination of dtypes to try.
        fixed: sizes of mesh roles and options that the user fixed, and largest sizes.
        peak: whether to use the chip's peak rates rather than the expected ones.
        disaggregate: True to search only disaggregated deployments, False only colocated ones;
            None to compare both, if the job has an output length and a bound on latency, for which
            prefill is separated.
        slack: how far the means of a deployment may miss the bounds and the rate.
    """

    config: ModelConfig
    hardware: System | Chip
    jobs: Sequence[Serve]
    fixed: Fixed = NOTHING_FIXED
    peak: bool = False
    disaggregate: bool | None = None
    slack: Slack = NO_SLACK

    @property
    def chip(self) -> Chip:
        return chip_of(self.hardware)

    @property
    def machine_is_given(self) -> bool:
        """Whether the search is on one machine, not on all machines of a chip type."""
        return isinstance(self.hardware, System)

    @property
    def job(self) -> Serve:
        """The workload, in the first combination of dtypes."""
        return self.jobs[0]

    @property
    def compares_both_kinds(self) -> bool:
        """Whether colocated and disaggregated deployments are compared."""
        job = self.job
        bounded = job.ttft_s or job.tpot_s
        return self.disaggregate is None and bool(bounded) and job.output is not None

    def rates(self, job: Serve) -> ServeRates:
        """The rates that the chip is expected to reach in a job, or its peak rates."""
        if self.peak:
            return ServeRates(chip=self.chip, job=job)
        if is_measured(self.chip) and job.engine in ("unknown", OURS.name):
            return ServeRates(
                chip=self.chip,
                job=job,
                efficiency=ServingEfficiency(name=MEASURED, as_of=self.chip.as_of),
                overhead=measured_overhead(self.chip),
            )
        efficiency = serving_efficiency(self.chip.name, self.chip.kind)
        overhead = engine_overhead(job.engine)
        return ServeRates(chip=self.chip, job=job, efficiency=efficiency, overhead=overhead)

    @property
    def systems(self) -> list[System]:
        """The machines that are searched."""
        if isinstance(self.hardware, System):
            return [self.hardware]
        smallest = min(self.jobs, key=lambda job: bytes_per_element(job.weights))
        return machines(self.config, self.hardware, smallest)

    def engines(self) -> CandidateEngines | None:
        """Every legal engine with its placements; None if no engine is legal."""
        return candidate_engines(
            self.config, self.job, self.systems, self.fixed, fills_machine=not self.machine_is_given
        )


def rank(request: Request, keep: int = SHOWN, *, each_prefill: bool = False) -> Ranking:
    """Search for the best deployment, and for the best deployments with other layouts.

    Args:
        keep: number of deployments with other layouts.
        each_prefill: whether deployments that differ only in their prefill engines also count as
            having different layouts.

    Raises:
        NoLegalEngine: no mesh is legal for the model on the machines.
        NoStrategy: no deployment meets the bounds.
        TooManyChips: deployments that meet them have more than `MAX_CHIPS` chips.
        DoesNotFit: no engine has enough memory for one sequence, or for the requested batch.
        UnknownFigure: the chip's file lacks a value that the search needs.
    """
    engines = request.engines()
    if engines is None:
        raise NoLegalEngine("no engine is legal.")
    options = [(job, request.rates(job)) for job in request.jobs]
    evaluated = blocks(request.config, engines, options, request.fixed)
    if not evaluated:
        raise DoesNotFit("nothing fits.")
    parts = _deployments(request, evaluated)
    points = concatenate(parts)
    order, rule = choose.ordered(
        points,
        request.job,
        machine_is_given=request.machine_is_given,
        name=lambda i: _describe(_on_grid(request.config, evaluated, points, i)),
        slack=request.slack,
    )
    if points.chips[order[0]] > MAX_CHIPS:
        raise TooManyChips(_too_many_chips(request, int(points.chips[order].min())))
    order = order[points.chips[order] <= MAX_CHIPS]
    candidates = _best_layouts(
        request, evaluated, points, order, keep + 1, each_prefill=each_prefill
    )
    other = None
    if request.compares_both_kinds:
        other = _other_kind(request, evaluated, parts, candidates[0])
    return Ranking(
        candidates=candidates,
        rule=rule,
        front=_front(request, evaluated, points.take((points.chips <= MAX_CHIPS).nonzero()[0])),
        n_points=len(points),
        machine_is_given=request.machine_is_given,
        other=other,
        n_engines=sum(len(block.engines) for block in evaluated),
    )


def _deployments(request: Request, evaluated: Sequence[EngineBlock]) -> list[Points]:
    """Deployments of the kinds that the request asks for: colocated, then disaggregated ones."""
    job = request.job
    machine_is_given = request.machine_is_given
    parts: list[Points] = []
    if request.disaggregate is not True:
        parts += colocated(evaluated, job, machine_is_given=machine_is_given, slack=request.slack)
    if request.disaggregate or request.compares_both_kinds:
        max_chips: float = max(
            system.n_chips for block in evaluated for system in block.engines.systems
        )
        if job.states_load and not machine_is_given:
            max_chips = math.inf
        try:
            parts += disaggregated(
                request.config, evaluated, job, max_chips, machine_is_given=machine_is_given
            )
        except UnknownFigure:
            if request.disaggregate:
                raise
    parts = [part for part in parts if len(part)]
    if not parts:
        raise NoStrategy(_machine_too_small(request, evaluated))
    return parts


def _machine_too_small(request: Request, evaluated: Sequence[EngineBlock]) -> str:
    """Message for a machine that cannot serve the requests, with what would work."""
    name = request.hardware.name
    job = request.job
    if not job.states_load:
        return f"{name} has too few chips for prefill and decode engines. Omit --disaggregate."
    chip = request.chip.spelling
    more = f"more chips. For their number ask the same of {chip} instead of {name}."
    if job.users:
        most = max(int((_engines_of_machine(block) * block.batch).max()) for block in evaluated)
        if most < job.users:
            return (
                f"{name} runs at most {most:,} requests at once; --users {job.users:,} need {more}"
            )
        return f"{name} is too small to serve --users {job.users:,} as asked: they need {more}"
    max_rates = []
    for block in evaluated:
        rates = _engines_of_machine(block) * block.steady.requests_per_s
        max_rates.append(float(rates.max()))
    return (
        f"{name} serves at most {max(max_rates):.3g} requests/s; --rate {job.rate:g}/s needs {more}"
    )


def _engines_of_machine(block: EngineBlock) -> Num:
    """Number of engines that the machine has room for, at each operating point of a block."""
    return block.engines.sizes["data"][block.engine_index]


def _too_many_chips(request: Request, n_chips: int) -> str:
    """Message for a load that needs more chips than machines have, with one that works."""
    job = request.job
    load = job.rate or job.users or 0
    most = PART_OF_LOAD * load * MAX_CHIPS / n_chips
    digit = 10.0 ** math.floor(math.log10(most))
    part = math.floor(most / digit) * digit
    chips = (
        f"{n_chips:,} chips of {request.chip.name}; deployments of up to {MAX_CHIPS:,} are planned."
    )
    if job.users:
        return f"--users {load:,} need {chips} Plan a part of the users: --users {part:.0f}"
    return f"--rate {load:g}/s needs {chips} Plan a part of the requests: --rate {part:g}/s"


def candidate(
    config: ModelConfig, evaluated: Sequence[EngineBlock], points: Points, index: int
) -> Candidate:
    """The deployment at `index` of `points`, with the batch that users in a closed loop fill."""
    return with_filled_batch(_on_grid(config, evaluated, points, index))


def _on_grid(
    config: ModelConfig, evaluated: Sequence[EngineBlock], points: Points, index: int
) -> Candidate:
    """The deployment at `index` of `points`, as one value with its engines and placements."""
    block = evaluated[int(points.decode_block[index])]
    point = int(points.decode_point[index])
    prefill_server = None
    prefill_busy = 0.0
    if points.prefill_block[index] >= 0:
        prefill_block = evaluated[int(points.prefill_block[index])]
        row = int(points.prefill_row[index])
        prefill_server = _server(config, prefill_block, row, int(points.n_prefill[index]))
        prefill_busy = PREFILL_LOADS[int(points.prefill_load[index])]
    return Candidate(
        server=_server(config, block, int(block.engine_index[point]), int(points.n_decode[index])),
        batch=int(block.batch[point]),
        prefill_server=prefill_server,
        prefill_busy=prefill_busy,
        chips=int(points.chips[index]),
        transfer_s=float(points.transfer_s[index]),
    )


def _describe(deployment: Candidate) -> str:
    """A short description of a deployment for error messages: `tensor 16 on v5e:4x4, batch 1`."""
    server = deployment.server
    mesh = Mesh(**{**server.layout.sizes, "data": 1})
    return f"{mesh} on {server.system.name}, batch {deployment.batch:,}"


def _server(config: ModelConfig, block: EngineBlock, row: int, count: int) -> Server:
    """The engines of a deployment, of the kind at index `row` of a block."""
    engines = block.engines
    return Server(
        config=config,
        job=block.job,
        system=engines.systems[int(engines.system_index[row])],
        layout=block.layout(row),
        placement=engines.placements[row],
        rates=block.rates,
        count=count,
    )


def _front(request: Request, evaluated: Sequence[EngineBlock], points: Points) -> list[Candidate]:
    """Up to `SHOWN` deployments of the Pareto front, evenly spaced in the logarithm of TPOT."""
    import numpy as np

    rows = choose.front(points, request.job)
    rows = rows[: max(1, int((points.tpot_s[rows] <= MAX_TPOT_S).sum()))]
    log_tpot = np.log(points.tpot_s[rows])
    nearest = set()
    for target in np.linspace(log_tpot[0], log_tpot[-1], SHOWN):
        nearest.add(int(abs(log_tpot - target).argmin()))
    return [candidate(request.config, evaluated, points, int(rows[i])) for i in sorted(nearest)]


def _best_layouts(
    request: Request,
    evaluated: Sequence[EngineBlock],
    points: Points,
    order: Num,
    keep: int,
    *,
    each_prefill: bool,
) -> list[Candidate]:
    """The best deployment for each decode engine and kind, at most `keep` of them, best first.

    The kinds are colocated and disaggregated. With `each_prefill`, deployments of the same decode
    engine with different prefill engines are also kept.

    Args:
        order: indices of `points`, best first.
    """
    best: dict[tuple[int, ...], int] = {}
    for index in order:
        decode_block = int(points.decode_block[index])
        prefill_block = int(points.prefill_block[index])
        engine = int(evaluated[decode_block].engine_index[int(points.decode_point[index])])
        layout: tuple[int, ...] = (decode_block, engine, int(prefill_block >= 0))
        if each_prefill:
            layout = (decode_block, engine, prefill_block, int(points.prefill_row[index]))
        best.setdefault(layout, int(index))
        if len(best) >= keep:
            break
    return [candidate(request.config, evaluated, points, index) for index in best.values()]


def _other_kind(
    request: Request,
    evaluated: Sequence[EngineBlock],
    parts: Sequence[Points],
    chosen: Candidate,
) -> Candidate | None:
    """The best deployment of the kind that was not chosen, or None if none meets the bounds."""
    chosen_is_colocated = chosen.prefill_server is None
    other_parts = [part for part in parts if (part.prefill_block[0] >= 0) == chosen_is_colocated]
    if not other_parts:
        return None
    points = concatenate(other_parts)
    try:
        order, _ = choose.ordered(
            points,
            request.job,
            machine_is_given=request.machine_is_given,
            slack=request.slack,
        )
    except NoStrategy:
        return None
    return candidate(request.config, evaluated, points, int(order[0]))
