"""Find the cheapest deployment whose simulated requests meet the bounds.

The search by closed-form means ranks deployments by cost. They are simulated in the order of their
price; one that misses the bounds gets more engines and is queued again.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardwise import units
from shardwise.errors import NoStrategy
from shardwise.hardware import System
from shardwise.hardware.shape import MAX_CHIPS
from shardwise.plan.schema.traffic import TrafficEstimate
from shardwise.plan.serving.arrivals import Arrivals
from shardwise.plan.serving.engine_kinds import EngineKind, engine_kind, engines_of, one_engine
from shardwise.plan.serving.resize import (
    chips_to_next_price,
    engine_counts,
    engines_to_add,
    price_level,
    resized,
)
from shardwise.plan.serving.traffic import estimate, largest_rate
from shardwise.plan.serving.trials import Trials
from shardwise.search.serving.candidate import Candidate
from shardwise.search.serving.choose import CLEAR_GAIN
from shardwise.search.serving.rank import Ranking, Request
from shardwise.simulate import Spread

N_CANDIDATES = 200  # deployments that the search by means keeps
N_STARTS = 8  # of them queued at first, with separate prefill engines, and as many without
MAX_TRIES = 24  # deployments of which all requests are simulated
MAX_RECORDED_TRIES = 12  # the same of a recording, which has up to ten times the requests
MAX_SCREENS = 72  # of which at least a few are
MAX_TRIES_PER_PRICE = 3
MAX_TRIES_WITH_FEWER = 6  # simulations with fewer engines, after one that meets the bounds
RECORDED_FAR = 4.0  # the same of a recording, whose simulations take long, over the allowed misses
FAR_MARGIN = 0.2  # if that share is this much too small, several engines are added at once
MIN_GAIN = 0.005  # by which added engines must raise the share of requests within the bounds

SimulatedDeployment = tuple[Candidate, TrafficEstimate]


@dataclass(order=True, slots=True)
class _QueuedDeployment:
    """A queued deployment; cheap ones come first, and of equal prices the most promising.

    Args:
        price_level: logarithm of the price, in steps of `resize.PRICE_STEP`.
        used_bound: closed-form mean latency over its bound; the lower, the more promising.
        insertion: order of insertion into the queue.
        n_growths: how often engines were added; a simulation far from the bounds counts as three.
        within: share of requests within the bounds before engines were last added; None at first.
    """

    price_level: int
    used_bound: float
    insertion: int
    candidate: Candidate = field(compare=False)
    n_growths: int = field(compare=False, default=0)
    within: float | None = field(compare=False, default=None)


def under_traffic(
    request: Request,
    ranking: Ranking,
    arrivals: Arrivals,
    *,
    largest: bool,
    fewest: bool = True,
    most: int | None = None,
) -> tuple[Ranking, TrafficEstimate]:
    """The ranking, led by the deployment that meets the bounds in simulation, and its metrics.

    Args:
        request: the request of the search by means.
        ranking: the result of the search by means.
        largest: also find the highest rate that meets the bounds. A job without a load has it.
        fewest: whether engines that are not needed for the rate are removed.
        most: the most chips of a deployment; None for those of the machine.

    Raises:
        NoPlan: no deployment meets the bounds; the message says which came nearest.
    """
    job = request.job
    if job.states_load:
        machine = request.hardware if isinstance(request.hardware, System) else None
        best, traffic = cheapest(
            ranking.candidates, arrivals, job.rate or 0.0, machine, fewest=fewest, most=most
        )
        if job.users:
            best = replace(best, simulated_rate=traffic.rate)
        if largest:
            traffic = replace(traffic, capacity=largest_rate(best, arrivals)[0])
    else:
        best, traffic = at_largest_rate(ranking.candidates[0], arrivals)
    rule = replace(ranking.rule, percentile=arrivals.at)
    return led_by(best, replace(ranking, rule=rule)), traffic


def at_largest_rate(candidate: Candidate, arrivals: Arrivals) -> SimulatedDeployment:
    """The deployment at the highest rate at which it meets its bounds, and the metrics there."""
    highest, traffic = largest_rate(candidate, arrivals)
    return candidate.at_rate(highest.rate), traffic  # throughput and prices, too


def led_by(best: Candidate, ranking: Ranking) -> Ranking:
    """The ranking with another best deployment, before those of other layouts."""
    rivals = [c for c in ranking.candidates if c.server.layout != best.server.layout]
    other = ranking.other
    if other and (other.prefill_server is None) == (best.prefill_server is None):
        other = None  # of the same kind, with which the best one is not compared
    return replace(ranking, candidates=[best, *rivals], other=other)


def cheapest(
    candidates: Sequence[Candidate],
    arrivals: Arrivals,
    rate: float,
    machine: System | None,
    *,
    fewest: bool,
    most: int | None = None,
) -> SimulatedDeployment:
    """Find the cheapest deployment whose simulated requests meet the bounds, and their metrics.

    Args:
        candidates: deployments of the search by means, cheapest first.
        rate: requests per second of the whole deployment; 0 for users in a closed loop.
        machine: the machine that was given; None if the number of chips is free.
        fewest: whether engines that are not needed for the rate are removed.
        most: the most chips of a deployment; None for those of the machine.

    Raises:
        NoStrategy: no deployment meets the bounds; the message says which came nearest.
        BadInput: the longest request does not fit in any engine.
    """
    search = _TrafficSearch(arrivals, rate, machine, most)
    best, traffic = search.run(candidates)
    if fewest:
        best, traffic = search.with_fewer(best, traffic)
    return search.with_allowed_batch(best, traffic)


class _TrafficSearch:
    """A queue of deployments, in the order of their price.

    Attributes:
        queued: keys of all deployments that were ever queued or simulated.
        n_at_price: price level -> number of deployments simulated at it.
        too_few: kind of engine -> largest number of such engines that missed the bounds.
    """

    def __init__(
        self, arrivals: Arrivals, rate: float, machine: System | None, most: int | None
    ) -> None:
        self.arrivals = arrivals
        self.rate = rate
        self.machine = machine
        self.most = most
        self.n_chips = machine.n_chips if machine else None
        self.queue: list[_QueuedDeployment] = []
        self.queued: set[tuple[Any, ...]] = set()
        self.n_at_price: dict[int, int] = {}
        self.too_few: dict[EngineKind, int] = {}
        self.trials = Trials(arrivals, rate)

    def run(self, candidates: Sequence[Candidate]) -> SimulatedDeployment:
        for disaggregated in (False, True):
            starts = [c for c in candidates if (c.prefill_server is not None) == disaggregated]
            for candidate in starts[:N_STARTS]:
                self._enqueue(_QueuedDeployment(0, _used_bound(candidate), 0, candidate))
        trials = self.trials
        most = MAX_RECORDED_TRIES if self.arrivals.judges_whole_trace else MAX_TRIES
        while self.queue and trials.n_whole < most and len(trials.tried) < MAX_SCREENS:
            entry = heapq.heappop(self.queue)
            if self._grow_if_too_few(entry):
                continue
            self.n_at_price[entry.price_level] = self.n_at_price.get(entry.price_level, 0) + 1
            if self._has_enough_at(entry.price_level):
                self._enqueue_grown(entry, None)
                continue
            traffic = trials.simulate(entry.candidate)
            if traffic is None:
                continue
            if traffic.holds:
                return entry.candidate, traffic
            gained = entry.within is None or traffic.within > entry.within + MIN_GAIN
            if gained or _needs_more_engines(traffic):
                self._enqueue_grown(entry, traffic)
        if not trials.tried and trials.refusal:
            raise trials.refusal
        nearest = max(trials.tried, key=lambda deployment: deployment.within)
        raise NoStrategy(
            f"no deployment keeps the bounds for {_percent(self.arrivals.at)} of the requests: of "
            f"{len(trials.tried)} that were simulated, {nearest} comes nearest with "
            f"{_percent(nearest.within)}."
        )

    def _enqueue(self, entry: _QueuedDeployment) -> None:
        candidate = entry.candidate
        fits = candidate.chips <= (self.most or self.n_chips or MAX_CHIPS)
        if self.n_chips and not candidate.prefill_server:
            fits &= candidate.server.count <= candidate.server.layout.mesh.data
        if fits and self._is_new(candidate):
            entry.insertion = len(self.queued)
            entry.price_level = price_level(candidate.chips)
            heapq.heappush(self.queue, entry)

    def _has_enough_at(self, level: int) -> bool:
        """Whether enough were simulated at a price to go on to the next, which machines limit."""
        if self.n_chips and level >= price_level(self.n_chips):
            return False
        return self.n_at_price[level] > MAX_TRIES_PER_PRICE

    def _is_new(self, candidate: Candidate) -> bool:
        engines = tuple(
            (one_engine(server), server.count, server.system.name)
            for server in (candidate.server, candidate.prefill_server)
            if server
        )
        key = (engines, candidate.job.weights)
        if key in self.queued:
            return False
        self.queued.add(key)
        return True

    def _grow_if_too_few(self, entry: _QueuedDeployment) -> bool:
        """Whether so few engines of a kind missed the bounds before; then queue it with more."""
        candidate = entry.candidate
        counts = engine_counts(candidate)
        least_counts = []
        for server, count in zip((candidate.server, candidate.prefill_server), counts, strict=True):
            failed = self.too_few.get(engine_kind(server, candidate), -1) if server else -1
            least_counts.append(max(count, failed + 1))
        if tuple(least_counts) == counts:
            return False
        grown = resized(candidate, least_counts[0], least_counts[1], self.rate, self.machine)
        self._enqueue(replace(entry, candidate=grown))
        return True

    def _enqueue_grown(self, entry: _QueuedDeployment, traffic: TrafficEstimate | None) -> None:
        """Queue a deployment again with more engines of the kind that misses a bound.

        Args:
            traffic: its simulated metrics; None if it was not simulated.
        """
        candidate = entry.candidate
        n_decode, n_prefill = engine_counts(candidate)
        n_growths = entry.n_growths
        within = entry.within
        misses_ttft = misses_tpot = True
        if traffic:
            within = traffic.within
            misses_ttft = _misses(traffic.ttft_s, traffic.ttft_bound_s, traffic.at)
            misses_tpot = _misses(traffic.tpot_s, traffic.tpot_bound_s, traffic.at)
            far = RECORDED_FAR * (1 - traffic.at) if traffic.recorded else FAR_MARGIN
            n_growths += 3 if traffic.within < traffic.at - far else 1
            if candidate.prefill_server and misses_ttft != misses_tpot:
                server = candidate.prefill_server if misses_ttft else candidate.server
                kind = engine_kind(server, candidate)
                self.too_few[kind] = max(server.count, self.too_few.get(kind, 0))
        # A price at which enough were simulated is passed at once, not engine by engine.
        n_chips = 0 if traffic else chips_to_next_price(candidate.chips)
        counts = []
        if candidate.prefill_server and (misses_ttft or not misses_tpot):
            least = math.ceil(n_chips / candidate.prefill_server.n_chips)
            more = n_prefill + max(least, engines_to_add(n_prefill, n_growths))
            counts.append((n_decode, more))
        if not n_prefill or misses_tpot or not misses_ttft:
            least = math.ceil(n_chips / candidate.server.n_chips)
            more = n_decode + max(least, engines_to_add(n_decode, n_growths))
            if self.n_chips and not n_prefill:
                more = min(more, candidate.server.layout.mesh.data)  # all engines of the machine
            counts.append((more, n_prefill))
        for n_engines in counts:
            grown = resized(candidate, *n_engines, self.rate, self.machine)
            self._enqueue(_QueuedDeployment(0, entry.used_bound, 0, grown, n_growths, within))

    def with_fewer(self, candidate: Candidate, traffic: TrafficEstimate) -> SimulatedDeployment:
        """Remove engines while the bounds are met: several may have been added at once."""
        n_left = MAX_TRIES_WITH_FEWER
        for kind in (0, 1) if candidate.prefill_server else (0,):
            step = max(1, engine_counts(candidate)[kind] // 5)
            while step and n_left:
                counts = list(engine_counts(candidate))
                counts[kind] -= step
                smaller = None
                if counts[kind] > 0:
                    smaller = resized(candidate, counts[0], counts[1], self.rate, self.machine)
                if smaller and smaller.chips == candidate.chips:
                    smaller = None  # idle GPUs of a node save nothing
                smaller_traffic = None
                if smaller and self._is_new(smaller):
                    n_left -= 1
                    smaller_traffic = self.trials.simulate(smaller)
                if smaller and smaller_traffic and smaller_traffic.holds:
                    candidate = smaller
                    traffic = smaller_traffic
                else:
                    step //= 2
        return candidate, traffic

    def with_allowed_batch(
        self, candidate: Candidate, traffic: TrafficEstimate
    ) -> SimulatedDeployment:
        """Plan with the batch that the scheduler allows; the metrics list the other deployments."""
        engines = engines_of(candidate)
        rejected = [row for row in self.trials.tried if (row.decode, row.prefill) != engines]
        batch = _allowed_batch(candidate, traffic)
        if batch != candidate.batch:
            allowed = replace(candidate, batch=batch)
            allowed_traffic = estimate(allowed, self.arrivals, self.rate)
            if allowed_traffic.holds:
                candidate = allowed
                traffic = allowed_traffic
        return candidate, replace(traffic, tried=tuple(rejected))


def _allowed_batch(candidate: Candidate, traffic: TrafficEstimate) -> int:
    """The largest batch that the simulated scheduler allows, at most the candidate's."""
    unit = candidate.server.batch_unit
    return min(candidate.batch, max(unit, traffic.max_sequences // unit * unit))


def _used_bound(candidate: Candidate) -> float:
    """Closed-form mean latency over its bound, the larger of TTFT and TPOT; 0 without bounds.

    Separate prefill engines have to be clearly faster, as in the search by means.
    """
    job = candidate.job
    shares = [0.0]
    if job.tpot_s:
        shares.append(candidate.tpot_s / job.tpot_s)
    if job.ttft_s:
        shares.append(candidate.ttft_s / job.ttft_s)
    return max(shares) / (1 - CLEAR_GAIN if candidate.prefill_server else 1.0)


def _needs_more_engines(traffic: TrafficEstimate) -> bool:
    """Whether requests spend most of their TTFT in a queue, which more engines shorten."""
    return traffic.queue_s.p50 > traffic.ttft_s.p50 / 2


def _misses(spread: Spread, bound_s: float | None, at: float) -> bool:
    """Whether a latency exceeds its bound at the percentile nearest to the share `at`."""
    if bound_s is None:
        return False
    if at < 0.7:
        return spread.p50 > bound_s
    if at < 0.95:
        return spread.p90 > bound_s
    return spread.p99 > bound_s


def _percent(share: float) -> str:
    return f"{units.significant(100 * share, 4)} %"
