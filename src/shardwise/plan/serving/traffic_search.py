"""The cheapest deployment that keeps the bounds under traffic, by simulation.

The search by means gives engines in the order of what they cost. Each is simulated; one that does
not hold gets another engine and waits for its turn at the new price.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardwise import units
from shardwise.errors import BadInput, NoStrategy
from shardwise.estimate.serving.steady_state import aggregated, decoding_only, reading_only
from shardwise.hardware import System
from shardwise.plan.schema.traffic import Engines, TrafficEstimate, TriedDeployment
from shardwise.plan.serving.arrivals import Arrivals
from shardwise.plan.serving.traffic import estimate, largest_rate
from shardwise.search.serving.candidate import Candidate, Server
from shardwise.search.serving.deployments import FULL
from shardwise.search.serving.evaluate import GRID, whole
from shardwise.search.serving.rank import Ranking, Request
from shardwise.simulate import Spread
from shardwise.strategy.serving_layout import ServeLayout

_Side = tuple[bool, ServeLayout, int, str]

STARTS = 200  # engines that are asked of the search; of each kind so many are begun with
STARTS_OF_KIND = 8
TRIES = 24  # deployments that are simulated, and of one price; then with fewer engines
TRIES_OF_PRICE, TRIES_WITH_FEWER = 3, 6
LEVEL = 1.03  # prices that differ by less are one: the most promising comes first
SCREEN = 400  # requests of a first, short run; one that misses the share by more is not repeated
MISSED = 0.05
FAR = 0.2  # what misses it by more gets several engines at once
STEP = 0.1  # engines that are added at first, of those that are there; twice as many then, ...
HELPED = 0.005  # an engine more that gains less of the requests than this will never do

Choice = tuple[Candidate, TrafficEstimate]


@dataclass(order=True, slots=True)
class _Turn:
    """A deployment that waits to be simulated: cheap ones first, then promising ones."""

    level: int
    slack: float
    number: int
    one: Candidate = field(compare=False)
    added: int = field(compare=False, default=0)  # times that engines were added
    before: float | None = field(compare=False, default=None)  # share within, before the last


def under_traffic(
    asked: Request, found: Ranking, arrivals: Arrivals, *, largest: bool
) -> tuple[Ranking, TrafficEstimate]:
    """The ranking with the deployment first that holds under traffic, and what it gives there.

    Args:
        largest: also find the largest rate that keeps the bounds; without a rate only that.

    Raises:
        NoPlan: none does, or no rate; says which came nearest.
    """
    first, rate = found.candidates[0], asked.job.rate
    if rate:
        n_chips = asked.where.n_chips if isinstance(asked.where, System) else None
        first, told = cheapest(found.candidates, arrivals, rate, n_chips)
        if largest:
            told = replace(told, capacity=largest_rate(first, arrivals)[0])
    else:
        _, told = largest_rate(first, arrivals)
    others = [c for c in found.candidates if c.server.layout != first.server.layout]
    rule = replace(found.rule, percentile=arrivals.at)
    return replace(found, candidates=[first, *others], rule=rule), told


def cheapest(
    candidates: Sequence[Candidate], arrivals: Arrivals, rate: float, n_chips: int | None
) -> Choice:
    """The first deployment, from the cheapest on, whose requests keep the bounds; what they see.

    Args:
        candidates: by means, cheapest first.
        n_chips: of the machine; None where there may be any number.

    Raises:
        NoStrategy: none does; says which came nearest.
        BadInput: no engine has room for the longest request.
    """
    return _Search(arrivals, rate, n_chips).found(candidates)


class _Search:
    """A queue of deployments by price."""

    def __init__(self, arrivals: Arrivals, rate: float, n_chips: int | None) -> None:
        self.arrivals, self.rate, self.n_chips = arrivals, rate, n_chips
        self.queue: list[_Turn] = []
        self.known: set[tuple[Any, ...]] = set()
        self.levels: dict[int, int] = {}
        self.fails: dict[_Side, int] = {}  # engines of a kind, and the most that were too few
        self.tried: list[TriedDeployment] = []
        self.refused: BadInput | None = None
        self.number = 0

    def found(self, candidates: Sequence[Candidate]) -> Choice:
        for kind in (False, True):
            some = [c for c in candidates if (c.reader is not None) == kind]
            for one in some[:STARTS_OF_KIND]:
                self._put(_Turn(0, _slack(one), 0, one))
        while self.queue and len(self.tried) < TRIES:
            turn = heapq.heappop(self.queue)
            if self._too_few(turn):
                continue
            self.levels[turn.level] = self.levels.get(turn.level, 0) + 1
            if self.levels[turn.level] > TRIES_OF_PRICE:
                self._more(turn, None)
                continue
            told = self._run(turn.one)
            if told is None:
                continue
            if told.holds:
                return self._smaller(turn.one, told)
            hopeless = not _waits(told) and turn.before is not None
            if hopeless and told.within <= (turn.before or 0.0) + HELPED:
                continue
            self._more(turn, told)
        raise self._refusal()

    def _put(self, turn: _Turn) -> None:
        one, room = turn.one, self.n_chips or math.inf
        fits = one.chips <= room
        if self.n_chips and not one.reader:
            fits = one.server.count <= one.server.layout.mesh.data
        if fits and self._is_new(one):
            self.number += 1
            turn.number = self.number
            turn.level = math.floor(math.log(one.chips) / math.log(LEVEL))
            heapq.heappush(self.queue, turn)

    def _is_new(self, one: Candidate) -> bool:
        servers = [server for server in (one.server, one.reader) if server]
        counts = tuple((_one_engine(s), s.count, s.system.name) for s in servers)
        if (counts, one.job.weights) in self.known:
            return False
        self.known.add((counts, one.job.weights))
        return True

    def _too_few(self, turn: _Turn) -> bool:
        """Whether as many engines of one of its kinds have failed before; then it gets more."""
        one, counts = turn.one, []
        for server in (one.server, one.reader):
            if server:
                counts.append(max(server.count, self.fails.get(_side(server, one), -1) + 1))
        servers, readers = counts[0], counts[1] if one.reader else 0
        if (servers, readers) == (one.server.count, one.reader.count if one.reader else 0):
            return False
        more = resized(one, servers, readers, self.rate)
        self._put(replace(turn, one=more))
        return True

    def _run(self, one: Candidate) -> TrafficEstimate | None:
        """A short run, and a long one where that is not far off."""
        try:
            told = estimate(one, self.arrivals, self.rate, n=SCREEN)
            near = told.holds or told.within >= self.arrivals.at - MISSED
            if near and not self.arrivals.whole:
                told = estimate(one, self.arrivals, self.rate)
        except BadInput as error:
            self.refused = error
            return None
        self.tried.append(
            TriedDeployment(
                decode=_engines(one.server),
                prefill=_engines(one.reader) if one.reader else None,
                n_chips=one.chips,
                within=told.within,
                holds=told.holds,
            )
        )
        return told

    def _more(self, turn: _Turn, told: TrafficEstimate | None) -> None:
        """Queue it with more engines of the kind that breaks a bound."""
        one, times = turn.one, turn.added + (told is not None)
        servers, readers = one.server.count, one.reader.count if one.reader else 0
        late = told is None or _beyond(told.ttft_s, told.ttft_bound_s, told.at)
        slow = told is None or _beyond(told.tpot_s, told.tpot_bound_s, told.at)
        if told and one.reader and late != slow:
            side = one.reader if late else one.server
            self.fails[_side(side, one)] = max(side.count, self.fails.get(_side(side, one), 0))
        far = told is not None and told.within < told.at - FAR
        times += 2 * far
        counts = []
        if readers and (late or not slow):
            counts.append((servers, _added(readers, times)))
        if not readers or slow or not late:
            counts.append((_added(servers, times), readers))
        for n, m in counts:
            more = resized(one, n, m, self.rate)
            before = told.within if told else turn.before
            self._put(_Turn(0, turn.slack, 0, more, times, before))

    def _smaller(self, one: Candidate, told: TrafficEstimate) -> Choice:
        """With as few engines as hold: means may ask for too many, and several came at once."""
        left = TRIES_WITH_FEWER
        for reads in (False, True) if one.reader else (False,):
            by = _added(one.reader.count if reads and one.reader else one.server.count, 1)
            by -= one.reader.count if reads and one.reader else one.server.count
            while by and left:
                servers, readers = one.server.count, one.reader.count if one.reader else 0
                n, m = (servers, readers - by) if reads else (servers - by, readers)
                less = resized(one, n, m, self.rate) if n > 0 and (m > 0 or not readers) else None
                found = None
                if less and self._is_new(less):
                    left -= 1
                    found = self._run(less)
                if less and found and found.holds:
                    one, told = less, found
                else:
                    by //= 2
        chosen = _engines(one.server), _engines(one.reader) if one.reader else None
        kept = tuple(t for t in self.tried if (t.decode, t.prefill) != chosen)
        if (fuller := replace(one, batch=_no_fuller(one, told))) != one:
            found = estimate(fuller, self.arrivals, self.rate)
            one, told = (fuller, found) if found.holds else (one, told)
        return one, replace(told, tried=kept)

    def _refusal(self) -> NoStrategy | BadInput:
        if not self.tried and self.refused:
            return self.refused
        best = max(self.tried, key=lambda t: t.within)
        return NoStrategy(
            f"no deployment keeps the bounds for {_percent(self.arrivals.at)} of the requests: of "
            f"{len(self.tried)} that were simulated, {best} comes nearest with "
            f"{_percent(best.within)}."
        )


def _added(n: int, times: int) -> int:
    return n + max(1, round(STEP * times * n))


def _no_fuller(one: Candidate, told: TrafficEstimate) -> int:
    """A batch that the engine is allowed to run."""
    server = one.server
    unit = int(whole(server.config, server.layout, server.layout.sizes))
    return min(one.batch, max(unit, told.max_sequences // unit * unit))


def resized(one: Candidate, servers: int, readers: int, rate: float) -> Candidate:
    """The same engines in other numbers, with the smallest batch that serves the rate."""
    server = replace(one.server, count=servers)
    reader = replace(one.reader, count=readers) if one.reader else None
    chips = servers * server.n_chips + (readers * reader.n_chips if reader else 0)
    busy = 0.0
    if reader:
        full, _ = reading_only(reader.engine, reader.job, 1.0)
        busy = min(FULL, rate / (readers * float(full)))
    batch = one.batch if one.job.batch else _batch(server, rate, reads=reader is None)
    return replace(one, server=server, reader=reader, chips=chips, busy=busy, batch=batch)


def _batch(server: Server, rate: float, *, reads: bool) -> int:
    import numpy as np

    unit = int(whole(server.config, server.layout, server.layout.sizes))
    every = np.array(GRID) * unit
    fits = every[every <= max(unit, server.max_batch)]
    find = aggregated if reads else decoding_only
    serves = find(server.engine, server.job, fits).requests_per_s * server.count * FULL >= rate
    return int(fits[serves.argmax()] if serves.any() else fits[-1])


def _slack(one: Candidate) -> float:
    """Share of its bounds that the means take: what takes less holds rather."""
    job = one.job
    taken = [one.tpot_s / job.tpot_s] if job.tpot_s else []
    taken += [one.ttft_s / job.ttft_s] if job.ttft_s else []
    return max(taken, default=0.0)


def _waits(told: TrafficEstimate) -> bool:
    """Whether requests wait for room, which more engines give."""
    return told.queue_s.p50 > told.ttft_s.p50 / 2


def _beyond(spread: Spread, bound_s: float | None, at: float) -> bool:
    """Whether a time breaks its bound at the percentile that is nearest."""
    near = spread.p50 if at < 0.7 else spread.p90 if at < 0.95 else spread.p99
    return bound_s is not None and near > bound_s


def _side(server: Server, one: Candidate) -> _Side:
    """The engines of one kind, and whether they read prompts alone."""
    return server is one.reader, _one_engine(server), server.n_chips, server.job.weights


def _one_engine(server: Server) -> ServeLayout:
    """Its layout, however many there are."""
    return replace(server.layout, mesh=replace(server.layout.mesh, data=1))


def _engines(server: Server) -> Engines:
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
