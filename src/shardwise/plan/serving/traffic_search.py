"""The cheapest deployment that meets its bounds under traffic, by simulation.

The search by means ranks engines by cost. Deployments are simulated in the order of their price;
one that misses the bounds gets another engine and is queued again at its new price.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardwise import units
from shardwise.errors import BadInput, NoStrategy
from shardwise.estimate.serving.steady_state import colocated, decode_only, prefill_only
from shardwise.hardware import System
from shardwise.plan.schema.traffic import Engines, TrafficEstimate, TriedDeployment
from shardwise.plan.serving.arrivals import Arrivals
from shardwise.plan.serving.traffic import estimate, largest_rate
from shardwise.search.serving.candidate import Candidate, Server
from shardwise.search.serving.deployments import MAX_LOAD
from shardwise.search.serving.evaluate import BATCH_GRID, batch_unit
from shardwise.search.serving.rank import Ranking, Request
from shardwise.simulate import Spread
from shardwise.strategy.serving_layout import ServeLayout

EngineKind = tuple[bool, ServeLayout, int, str]

N_CANDIDATES = 200  # deployments of the search by means
N_STARTS = 8  # of them, with and without separate prefill engines each, that are queued first
MAX_TRIES = 24  # simulated deployments
MAX_TRIES_PER_PRICE = 3
MAX_TRIES_WITH_FEWER = 6  # simulations with fewer engines after one that holds
PRICE_STEP = 1.03  # prices within this factor are equal; the most promising deployment comes first
SCREEN_REQUESTS = 400  # of a first, short simulation
SCREEN_MARGIN = 0.05  # one that misses the share by more is not simulated at full length
FAR = 0.2  # one that misses the share by more gets several engines at once
GROWTH = 0.1  # engines added at first, as a share of those present; twice as many next, ...
MIN_GAIN = 0.005  # share of the requests that additional engines must gain

Choice = tuple[Candidate, TrafficEstimate]


@dataclass(order=True, slots=True)
class _Entry:
    """A queued deployment: cheap ones first, then promising ones.

    Args:
        level: price in steps of `PRICE_STEP`.
        slack: share of its bounds that the means take.
        number: order of insertion.
        n_growths: how often engines were added.
        within: share of requests within the bounds before the last addition.
    """

    level: int
    slack: float
    number: int
    candidate: Candidate = field(compare=False)
    n_growths: int = field(compare=False, default=0)
    within: float | None = field(compare=False, default=None)


def under_traffic(
    request: Request, ranking: Ranking, arrivals: Arrivals, *, largest: bool
) -> tuple[Ranking, TrafficEstimate]:
    """The ranking with the deployment first that meets the bounds under traffic, and its metrics.

    Args:
        request: the search by means.
        ranking: its result.
        arrivals: the requests.
        largest: also find the highest rate; without a rate, only that is found.

    Raises:
        NoPlan: no deployment meets the bounds, or none does at any rate; says which came nearest.
    """
    best = ranking.candidates[0]
    rate = request.job.rate
    if rate:
        n_chips = request.where.n_chips if isinstance(request.where, System) else None
        best, traffic = cheapest(ranking.candidates, arrivals, rate, n_chips)
        if largest:
            traffic = replace(traffic, capacity=largest_rate(best, arrivals)[0])
    else:
        _, traffic = largest_rate(best, arrivals)
    others = [c for c in ranking.candidates if c.server.layout != best.server.layout]
    rule = replace(ranking.rule, percentile=arrivals.at)
    return replace(ranking, candidates=[best, *others], rule=rule), traffic


def cheapest(
    candidates: Sequence[Candidate], arrivals: Arrivals, rate: float, n_chips: int | None
) -> Choice:
    """The cheapest deployment whose requests meet the bounds, and their metrics.

    Args:
        candidates: deployments by means, cheapest first.
        arrivals: the requests.
        rate: requests per second.
        n_chips: chips of the machine; None for any number.

    Raises:
        NoStrategy: no deployment meets the bounds; says which came nearest.
        BadInput: the longest request does not fit into any engine.
    """
    return _Search(arrivals, rate, n_chips).run(candidates)


class _Search:
    """A queue of deployments by price.

    Attributes:
        too_few: for each kind of engine, the largest number that was too small.
        tried: the simulated deployments.
        n_at_level: deployments simulated at each price.
        queued: engines of every deployment that was queued or simulated.
    """

    def __init__(self, arrivals: Arrivals, rate: float, n_chips: int | None) -> None:
        self.arrivals = arrivals
        self.rate = rate
        self.n_chips = n_chips
        self.queue: list[_Entry] = []
        self.queued: set[tuple[Any, ...]] = set()
        self.n_at_level: dict[int, int] = {}
        self.too_few: dict[EngineKind, int] = {}
        self.tried: list[TriedDeployment] = []
        self.refusal: BadInput | None = None

    def run(self, candidates: Sequence[Candidate]) -> Choice:
        for disaggregated in (False, True):
            starts = [c for c in candidates if (c.reader is not None) == disaggregated]
            for candidate in starts[:N_STARTS]:
                self._put(_Entry(0, _slack(candidate), 0, candidate))
        while self.queue and len(self.tried) < MAX_TRIES:
            entry = heapq.heappop(self.queue)
            if self._grow_if_too_few(entry):
                continue
            self.n_at_level[entry.level] = self.n_at_level.get(entry.level, 0) + 1
            if self.n_at_level[entry.level] > MAX_TRIES_PER_PRICE:
                self._put_grown(entry, None)
                continue
            traffic = self._simulate(entry.candidate)
            if traffic is None:
                continue
            if traffic.holds:
                return self._with_fewer(entry.candidate, traffic)
            gained = entry.within is None or traffic.within > entry.within + MIN_GAIN
            if gained or _waits_for_room(traffic):
                self._put_grown(entry, traffic)
        if not self.tried and self.refusal:
            raise self.refusal
        nearest = max(self.tried, key=lambda deployment: deployment.within)
        raise NoStrategy(
            f"no deployment keeps the bounds for {_percent(self.arrivals.at)} of the requests: of "
            f"{len(self.tried)} that were simulated, {nearest} comes nearest with "
            f"{_percent(nearest.within)}."
        )

    def _put(self, entry: _Entry) -> None:
        candidate = entry.candidate
        fits = candidate.chips <= (self.n_chips or math.inf)
        if self.n_chips and not candidate.reader:
            fits = candidate.server.count <= candidate.server.layout.mesh.data
        if fits and self._is_new(candidate):
            entry.number = len(self.queued)
            entry.level = math.floor(math.log(candidate.chips) / math.log(PRICE_STEP))
            heapq.heappush(self.queue, entry)

    def _is_new(self, candidate: Candidate) -> bool:
        engines = tuple(
            (_one_engine(server), server.count, server.system.name)
            for server in (candidate.server, candidate.reader)
            if server
        )
        key = (engines, candidate.job.weights)
        if key in self.queued:
            return False
        self.queued.add(key)
        return True

    def _grow_if_too_few(self, entry: _Entry) -> bool:
        """Queue the deployment with more engines where as few of a kind have failed before."""
        candidate = entry.candidate
        counts = _counts(candidate)
        minimum = []
        for server, count in zip((candidate.server, candidate.reader), counts, strict=True):
            failed = self.too_few.get(_kind(server, candidate), -1) if server else -1
            minimum.append(max(count, failed + 1))
        if tuple(minimum) == counts:
            return False
        self._put(replace(entry, candidate=resized(candidate, minimum[0], minimum[1], self.rate)))
        return True

    def _simulate(self, candidate: Candidate) -> TrafficEstimate | None:
        """Simulate few requests, and many where the result is near the bounds."""
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

    def _put_grown(self, entry: _Entry, traffic: TrafficEstimate | None) -> None:
        """Queue a deployment with more engines of the kind that breaks a bound.

        Args:
            traffic: its simulation; None for one that was not simulated.
        """
        candidate = entry.candidate
        n_decode, n_prefill = _counts(candidate)
        n_growths = entry.n_growths
        within = entry.within
        misses_ttft = True
        misses_tpot = True
        if traffic:
            within = traffic.within
            misses_ttft = _misses(traffic.ttft_s, traffic.ttft_bound_s, traffic.at)
            misses_tpot = _misses(traffic.tpot_s, traffic.tpot_bound_s, traffic.at)
            n_growths += 3 if traffic.within < traffic.at - FAR else 1
            if candidate.reader and misses_ttft != misses_tpot:
                server = candidate.reader if misses_ttft else candidate.server
                kind = _kind(server, candidate)
                self.too_few[kind] = max(server.count, self.too_few.get(kind, 0))
        counts = []
        if n_prefill and (misses_ttft or not misses_tpot):
            counts.append((n_decode, n_prefill + _step(n_prefill, n_growths)))
        if not n_prefill or misses_tpot or not misses_ttft:
            counts.append((n_decode + _step(n_decode, n_growths), n_prefill))
        for n_engines in counts:
            grown = resized(candidate, *n_engines, self.rate)
            self._put(_Entry(0, entry.slack, 0, grown, n_growths, within))

    def _with_fewer(self, candidate: Candidate, traffic: TrafficEstimate) -> Choice:
        """The fewest engines that hold: the means may ask for too many, or several were added."""
        n_left = MAX_TRIES_WITH_FEWER
        for kind in (0, 1) if candidate.reader else (0,):
            step = _step(_counts(candidate)[kind], 1)
            while step and n_left:
                counts = list(_counts(candidate))
                counts[kind] -= step
                smaller = None
                if counts[kind] > 0:
                    smaller = resized(candidate, counts[0], counts[1], self.rate)
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


def _counts(candidate: Candidate) -> tuple[int, int]:
    """(decode engines, separate prefill engines)."""
    return candidate.server.count, candidate.reader.count if candidate.reader else 0


def _step(n_engines: int, n_growths: int) -> int:
    """Number of engines to add to `n_engines`."""
    return max(1, round(GROWTH * n_growths * n_engines))


def _batch_unit(server: Server) -> int:
    """Batches of an engine are multiples of this one."""
    return int(batch_unit(server.config, server.layout, server.layout.sizes))


def _allowed_batch(candidate: Candidate, traffic: TrafficEstimate) -> int:
    """The largest batch up to the candidate's that the simulated engine may run."""
    unit = _batch_unit(candidate.server)
    return min(candidate.batch, max(unit, traffic.max_sequences // unit * unit))


def resized(candidate: Candidate, n_decode: int, n_prefill: int, rate: float) -> Candidate:
    """The same engines in other numbers, with the smallest batch that serves the rate."""
    server = replace(candidate.server, count=n_decode)
    n_chips = n_decode * server.n_chips
    prefill_server = None
    busy = 0.0
    if candidate.reader:
        prefill_server = replace(candidate.reader, count=n_prefill)
        n_chips += n_prefill * prefill_server.n_chips
        prefill_rate, _ = prefill_only(prefill_server.engine, prefill_server.job, 1.0)
        busy = min(MAX_LOAD, rate / (n_prefill * float(prefill_rate)))
    batch = candidate.batch
    if not candidate.job.batch:
        batch = _smallest_batch(server, rate, reads=prefill_server is None)
    return replace(
        candidate, server=server, reader=prefill_server, chips=n_chips, busy=busy, batch=batch
    )


def _smallest_batch(server: Server, rate: float, *, reads: bool) -> int:
    """The smallest batch that serves the rate; the largest that fits where none does."""
    import numpy as np

    unit = _batch_unit(server)
    batches = np.array(BATCH_GRID) * unit
    batches = batches[batches <= max(unit, server.max_batch)]
    steady_state = colocated if reads else decode_only
    steady = steady_state(server.engine, server.job, batches)
    is_enough = steady.requests_per_s * server.count * MAX_LOAD >= rate
    if not is_enough.any():
        return int(batches[-1])
    return int(batches[is_enough.argmax()])


def _slack(candidate: Candidate) -> float:
    """Share of its bounds that the means take: the less, the more likely it holds."""
    job = candidate.job
    shares = [0.0]
    if job.tpot_s:
        shares.append(candidate.tpot_s / job.tpot_s)
    if job.ttft_s:
        shares.append(candidate.ttft_s / job.ttft_s)
    return max(shares)


def _waits_for_room(traffic: TrafficEstimate) -> bool:
    """Whether requests wait for room, which more engines give."""
    return traffic.queue_s.p50 > traffic.ttft_s.p50 / 2


def _misses(spread: Spread, bound_s: float | None, at: float) -> bool:
    """Whether a time exceeds its bound at the nearest percentile."""
    if bound_s is None:
        return False
    if at < 0.7:
        return spread.p50 > bound_s
    if at < 0.95:
        return spread.p90 > bound_s
    return spread.p99 > bound_s


def _kind(server: Server, candidate: Candidate) -> EngineKind:
    """Layout and machine of an engine, and whether it only prefills."""
    return (server is candidate.reader, _one_engine(server), server.n_chips, server.job.weights)


def _one_engine(server: Server) -> ServeLayout:
    """The layout of one engine, whatever their number."""
    return replace(server.layout, mesh=replace(server.layout.mesh, data=1))


def _engines(candidate: Candidate) -> tuple[Engines, Engines | None]:
    """The record of decode engines, and of separate prefill engines."""
    prefill = _record(candidate.reader) if candidate.reader else None
    return _record(candidate.server), prefill


def _record(server: Server) -> Engines:
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
