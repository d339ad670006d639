"""Engines behind a router, in one kind or split into those that prefill and those that decode."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

from shardwise.errors import BadInput, UnknownName
from shardwise.simulate.engine import Engine
from shardwise.simulate.limits import Limits
from shardwise.simulate.metrics import Record, Result
from shardwise.simulate.request import Live, Request
from shardwise.simulate.times import Times
from shardwise.simulate.traffic import Traffic

ROUTERS = ("least_outstanding", "round_robin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Engines that are alike.

    Args:
        times: seconds of a pass of one of them.
        limits: what a pass may hold, and the KV cache of one.
        replicas: how many there are.
        router: `least_outstanding` sends a request to the engine with the fewest that wait or run,
            `round_robin` to each in turn.

    Raises:
        BadInput: no engine; UnknownName for a router.
    """

    times: Times
    limits: Limits
    replicas: int = 1
    router: str = "least_outstanding"

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise BadInput(f"a pool has at least one engine, not {self.replicas}.")
        if self.router not in ROUTERS:
            raise UnknownName("router", self.router, ROUTERS)


def simulate(
    traffic: Traffic,
    pool: Pool,
    decode: Pool | None = None,
    transfer_s_per_token: float = 0.0,
    fast_forward: bool = True,
) -> Result:
    """Serve all of the traffic.

    Args:
        traffic: what arrives when.
        pool: the engines; where `decode` is given, those that compute prompts and first tokens.
        decode: engines that generate all further tokens.
        transfer_s_per_token: seconds after the first token until keys and values are at the
            engine that decodes, for each token of the prompt. Transfers do not wait for each other.
        fast_forward: run alike passes at once; the result is the same (see `Engine`).

    Raises:
        BadInput: a request that can never be served; keys and values that arrive before they leave.
    """
    if transfer_s_per_token < 0:
        raise BadInput(f"transfer_s_per_token {transfer_s_per_token} is below 0.")
    return _Run(traffic, pool, decode, transfer_s_per_token, fast_forward).result()


class _Side:
    """The engines of one pool, and their router."""

    def __init__(self, pool: Pool, fast_forward: bool) -> None:
        self.engines = [Engine(pool.times, pool.limits, fast_forward) for _ in range(pool.replicas)]
        self._in_turn = pool.router == "round_robin"
        self._next = 0

    def choose(self, at_s: float) -> Engine:
        """The engine for a request that arrives now."""
        if len(self.engines) == 1:
            return self.engines[0]
        if self._in_turn:
            self._next += 1
            return self.engines[(self._next - 1) % len(self.engines)]
        return min(self.engines, key=lambda engine: engine.outstanding(at_s))


class _Run:
    """The loop over events: the earliest arrival, or the pass of the engine that is behind."""

    def __init__(
        self, traffic: Traffic, pool: Pool, decode: Pool | None, transfer_s: float, fast: bool
    ) -> None:
        self.first = _Side(pool, fast)
        self.second = None if decode is None else _Side(decode, fast)
        self.pools = [pool] * pool.replicas
        self.pools += [] if decode is None else [decode] * decode.replicas
        self.engines = [*self.first.engines, *(self.second.engines if self.second else ())]
        self.index = {engine: i for i, engine in enumerate(self.engines)}
        self.transfer_s = transfer_s
        self.think_s = traffic.think_s
        self.record = Record()
        # Arrivals that ends have caused: when, at which engine, a running number, and who goes on
        # to the second pool, or None for the next request of a user.
        self.later: list[tuple[float, int, int, Request | None]] = []
        self.made = 0
        self.asked: dict[int, Request] = {}  # with two pools: what is not served to the end
        self.prefilled: dict[int, Live] = {}  # and how it got its first token
        self.end_s = 0.0
        self.requests: Iterator[Request] = iter(traffic)
        self.closed = traffic.users > 0
        # Who may cause an arrival at an engine: passes of a stretch must not run past them.
        self.sources: dict[Engine, list[Engine]] = {}
        for engine in self.engines:
            others = [other for other in self.engines if other is not engine]
            if not self.closed:
                others = [] if engine in self.first.engines else self.first.engines
            self.sources[engine] = others
        self.waiting_outside = None if self.closed else next(self.requests, None)
        for _ in range(traffic.users):
            self._put(0.0, -1, None)

    def result(self) -> Result:
        """Run to the end."""
        while self._event():
            pass
        tallies = tuple(engine.tally for engine in self.engines)
        n_blocks = tuple(pool.limits.n_blocks for pool in self.pools)
        return Result.of(self.record, tallies, n_blocks, self.end_s)

    def _event(self) -> bool:
        """One arrival or one step of an engine; False when nothing is left."""
        engine = self._behind()
        outside, later = self.waiting_outside, self.later
        outside_s = math.inf if outside is None else outside.arrival_s
        next_s = min(outside_s, later[0][0]) if later else outside_s
        if engine is None or next_s <= engine.clock:
            if next_s == math.inf:
                return False
            if outside is not None and outside_s == next_s:
                self._submit(outside)
                self.waiting_outside = next(self.requests, None)
                return True
            _, _, _, request = heapq.heappop(later)
            if request is not None and self.second is not None:
                self.second.choose(next_s).submit(request, ready=True)
            elif (request := next(self.requests, None)) is not None:
                self._submit(request._replace(arrival_s=next_s))
            return True
        for source in self.sources[engine]:
            if source.has_work:
                next_s = min(next_s, source.clock)
        for live in engine.step(next_s):
            self._ended(engine, live)
        return True

    def _behind(self) -> Engine | None:
        """The engine whose next pass starts first."""
        found = None
        for engine in self.engines:
            if engine.has_work and (found is None or engine.clock < found.clock):
                found = engine
        return found

    def _submit(self, request: Request) -> None:
        engine = self.first.choose(request.arrival_s)
        if self.second is not None:
            self.asked[request.id] = request
            request = request._replace(output=1)
        engine.submit(request)

    def _ended(self, engine: Engine, live: Live) -> None:
        now, index = engine.clock, self.index[engine]
        request, first = live.request, live
        if self.second is not None:
            request = self.asked[request.id]
            if index < len(self.first.engines):
                if request.output > 1:
                    self.prefilled[request.id] = live
                    there_s = now + self.transfer_s * request.prompt
                    self._put(there_s, index, request._replace(arrival_s=there_s))
                    return
            else:
                first = self.prefilled.pop(request.id)
            del self.asked[request.id]
        self.record.add(request, first, live, now, index)
        self.end_s = max(self.end_s, now)
        if self.closed:
            self._put(now + self.think_s, index, None)

    def _put(self, at_s: float, cause: int, request: Request | None) -> None:
        self.made += 1
        heapq.heappush(self.later, (at_s, cause, self.made, request))
