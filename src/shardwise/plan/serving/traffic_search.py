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
from shardwise.errors import BadInput, NoStrategy
from shardwise.hardware import System
from shardwise.hardware.shape import MAX_CHIPS
from shardwise.plan.schema.traffic import Engines, TrafficEstimate, TriedDeployment
from shardwise.plan.serving.arrivals import Arrivals
from shardwise.plan.serving.resize import (
    chips_to_next_price,
    engine_counts,
    engines_to_add,
    price_level,
    resized,
)
from shardwise.plan.serving.traffic import estimate, largest_rate
from shardwise.search.serving.candidate import Candidate, Server
from shardwise.search.serving.choose import CLEAR_GAIN
from shardwise.search.serving.rank import Ranking, Request
from shardwise.simulate import Spread
from shardwise.strategy.serving_layout import ServeLayout

EngineKind = tuple[bool, ServeLayout, int, str]

N_CANDIDATES = 200  # deployments that the search by means keeps
N_STARTS = 8  # of them queued at first, with separate prefill engines, and as many without
MAX_TRIES = 24  # simulated deployments
MAX_TRIES_PER_PRICE = 3
MAX_TRIES_WITH_FEWER = 6  # simulations with fewer engines, after one that meets the bounds
SCREEN_REQUESTS = 400  # requests of a first, short simulation
SCREEN_MARGIN = 0.05  # if it shows the share within the bounds this much too small, it is the last
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
    request: Request, ranking: Ranking, arrivals: Arrivals, *, largest: bool
) -> tuple[Ranking, TrafficEstimate]:
    """The ranking, led by the deployment that meets the bounds in simulation, and its metrics.

    Args:
        request: the request of the search by means.
        ranking: the result of the search by means.
        largest: also find the highest rate that meets the bounds. A job without a rate has it.

    Raises:
        NoPlan: no deployment meets the bounds; the message says which came nearest.
    """
    best = ranking.candidates[0]
    rate = request.job.rate
    if rate:
        machine = request.hardware if isinstance(request.hardware, System) else None
        best, traffic = cheapest(ranking.candidates, arrivals, rate, machine)
        if largest:
            traffic = replace(traffic, capacity=largest_rate(best, arrivals)[0])
    else:
        highest, traffic = largest_rate(best, arrivals)
        best = best.at_rate(highest.rate)  # throughput and prices, too
    others = [c for c in ranking.candidates if c.server.layout != best.server.layout]
    rule = replace(ranking.rule, percentile=arrivals.at)
    return replace(ranking, candidates=[best, *others], rule=rule), traffic


def cheapest(
    candidates: Sequence[Candidate], arrivals: Arrivals, rate: float, machine: System | None
) -> SimulatedDeployment:
    """Find the cheapest deployment whose simulated requests meet the bounds, and their metrics.

    Args:
        candidates: deployments of the search by means, cheapest first.
        rate: requests per second of the whole deployment.
        machine: the machine that was given; None if the number of chips is free.

    Raises:
        NoStrategy: no deployment meets the bounds; the message says which came nearest.
        BadInput: the longest request does not fit in any engine.
    """
    return _TrafficSearch(arrivals, rate, machine).run(candidates)


class _TrafficSearch:
    """A queue of deployments, in the order of their price.

    Attributes:
        queued: keys of all deployments that were ever queued or simulated.
        n_at_price: price level -> number of deployments simulated at it.
        too_few: kind of engine -> largest number of such engines that missed the bounds.
        refusal: the last error of a deployment that could not be simulated.
    """

    def __init__(self, arrivals: Arrivals, rate: float, machine: System | None) -> None:
        self.arrivals = arrivals
        self.rate = rate
        self.machine = machine
        self.n_chips = machine.n_chips if machine else None
        self.queue: list[_QueuedDeployment] = []
        self.queued: set[tuple[Any, ...]] = set()
        self.n_at_price: dict[int, int] = {}
        self.too_few: dict[EngineKind, int] = {}
        self.tried: list[TriedDeployment] = []
        self.refusal: BadInput | None = None

    def run(self, candidates: Sequence[Candidate]) -> SimulatedDeployment:
        for disaggregated in (False, True):
            starts = [c for c in candidates if (c.prefill_server is not None) == disaggregated]
            for candidate in starts[:N_STARTS]:
                self._enqueue(_QueuedDeployment(0, _used_bound(candidate), 0, candidate))
        while self.queue and len(self.tried) < MAX_TRIES:
            entry = heapq.heappop(self.queue)
            if self._grow_if_too_few(entry):
                continue
            self.n_at_price[entry.price_level] = self.n_at_price.get(entry.price_level, 0) + 1
            if self.n_at_price[entry.price_level] > MAX_TRIES_PER_PRICE:
                self._enqueue_grown(entry, None)
                continue
            traffic = self._simulate(entry.candidate)
            if traffic is None:
                continue
            if traffic.holds:
                return self._with_fewer(entry.candidate, traffic)
            gained = entry.within is None or traffic.within > entry.within + MIN_GAIN
            if gained or _needs_more_engines(traffic):
                self._enqueue_grown(entry, traffic)
        if not self.tried and self.refusal:
            raise self.refusal
        nearest = max(self.tried, key=lambda deployment: deployment.within)
        raise NoStrategy(
            f"no deployment keeps the bounds for {_percent(self.arrivals.at)} of the requests: of "
            f"{len(self.tried)} that were simulated, {nearest} comes nearest with "
            f"{_percent(nearest.within)}."
        )

    def _enqueue(self, entry: _QueuedDeployment) -> None:
        candidate = entry.candidate
        fits = candidate.chips <= (self.n_chips or MAX_CHIPS)
        if self.n_chips and not candidate.prefill_server:
            fits = candidate.server.count <= candidate.server.layout.mesh.data
        if fits and self._is_new(candidate):
            entry.insertion = len(self.queued)
            entry.price_level = price_level(candidate.chips)
            heapq.heappush(self.queue, entry)

    def _is_new(self, candidate: Candidate) -> bool:
        engines = tuple(
            (_one_engine(server), server.count, server.system.name)
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
            failed = self.too_few.get(_engine_kind(server, candidate), -1) if server else -1
            least_counts.append(max(count, failed + 1))
        if tuple(least_counts) == counts:
            return False
        grown = resized(candidate, least_counts[0], least_counts[1], self.rate, self.machine)
        self._enqueue(replace(entry, candidate=grown))
        return True

    def _simulate(self, candidate: Candidate) -> TrafficEstimate | None:
        """Simulate few requests, then many if the share is nearly met; None if not possible."""
        try:
            traffic = estimate(candidate, self.arrivals, self.rate, n=SCREEN_REQUESTS)
            is_near = traffic.holds or traffic.within >= self.arrivals.at - SCREEN_MARGIN
            if is_near and not self.arrivals.judges_whole_trace:
                traffic = estimate(candidate, self.arrivals, self.rate)
        except BadInput as error:
            self.refusal = error
            return None
        decode, prefill = _engines(candidate)
        self.tried.append(
            TriedDeployment(
                decode=decode,
                prefill=prefill,
                n_chips=candidate.chips,
                within=traffic.within,
                holds=traffic.holds,
            )
        )
        return traffic

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
            n_growths += 3 if traffic.within < traffic.at - FAR_MARGIN else 1
            if candidate.prefill_server and misses_ttft != misses_tpot:
                server = candidate.prefill_server if misses_ttft else candidate.server
                kind = _engine_kind(server, candidate)
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

    def _with_fewer(self, candidate: Candidate, traffic: TrafficEstimate) -> SimulatedDeployment:
        """Remove engines while the bounds are met: several may have been added at once."""
        n_left = MAX_TRIES_WITH_FEWER
        for kind in (0, 1) if candidate.prefill_server else (0,):
            step = engines_to_add(engine_counts(candidate)[kind], 1)
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
                    smaller_traffic = self._simulate(smaller)
                if smaller and smaller_traffic and smaller_traffic.holds:
                    candidate = smaller
                    traffic = smaller_traffic
                else:
                    step //= 2
        engines = _engines(candidate)
        tried = [other for other in self.tried if (other.decode, other.prefill) != engines]
        batch = _allowed_batch(candidate, traffic)
        if batch != candidate.batch:
            allowed = replace(candidate, batch=batch)
            allowed_traffic = estimate(allowed, self.arrivals, self.rate)
            if allowed_traffic.holds:
                candidate = allowed
                traffic = allowed_traffic
        return candidate, replace(traffic, tried=tuple(tried))


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


def _engine_kind(server: Server, candidate: Candidate) -> EngineKind:
    """What makes engines equal: whether they only prefill, layout, chips and weight dtype."""
    return (
        server is candidate.prefill_server,
        _one_engine(server),
        server.n_chips,
        server.job.weights,
    )


def _one_engine(server: Server) -> ServeLayout:
    """The layout of one engine, without the number of engines."""
    return replace(server.layout, mesh=replace(server.layout.mesh, data=1))


def _engines(candidate: Candidate) -> tuple[Engines, Engines | None]:
    """The entries of the decode engines, and of separate prefill engines, in a plan."""
    prefill = _engines_entry(candidate.prefill_server) if candidate.prefill_server else None
    return _engines_entry(candidate.server), prefill


def _engines_entry(server: Server) -> Engines:
    layout = server.layout
    return Engines(
        count=server.count,
        mesh={**layout.sizes, "data": 1},
        weights=layout.weights,
        kv=layout.kv,
        expert_tensor=layout.expert_tensor,
        hardware=server.system.name,
    )


def _percent(share: float) -> str:
    return f"{units.significant(100 * share, 4)} %"
