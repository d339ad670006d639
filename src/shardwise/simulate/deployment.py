"""Simulation of engines behind a router: one pool, or separate pools for prefill and decode."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

from shardwise.errors import BadInput, UnknownName
from shardwise.simulate.engine import ALL_TIME, SimulatedEngine
from shardwise.simulate.limits import Limits
from shardwise.simulate.metrics import RequestLog, SimulationResult
from shardwise.simulate.request import Request, SequenceState
from shardwise.simulate.routing import least_loaded
from shardwise.simulate.times import PassTimes
from shardwise.simulate.traffic import Traffic

ROUTERS = ("least_outstanding", "round_robin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Identical engines behind a router.

    Args:
        times: seconds of a pass of one engine.
        limits: size of a pass and of the KV cache of one engine.
        replicas: number of engines.
        router: how a request gets an engine. `least_outstanding`: the engine with the fewest
            requests that wait or run; `round_robin`: each engine in turn.

    Raises:
        BadInput: there is no engine.
        UnknownName: there is no such router.
    """

    times: PassTimes
    limits: Limits
    replicas: int = 1
    router: str = "least_outstanding"

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise BadInput(f"replicas must be at least 1, not {self.replicas}.")
        if self.router not in ROUTERS:
            raise UnknownName("router", self.router, ROUTERS)


def simulate(
    traffic: Traffic,
    pool: Pool,
    decode: Pool | None = None,
    transfer_s_per_token: float = 0.0,
    fast_forward: bool = True,
    counted_s: tuple[float, float] = ALL_TIME,
    counted_requests: tuple[int, int] | None = None,
) -> SimulationResult:
    """Simulate engines until they have served all requests of the traffic.

    Args:
        traffic: the requests and their arrivals.
        pool: the engines. If `decode` is given, they only compute prompts and first tokens.
        decode: engines that generate all further tokens; None if `pool` does everything.
        transfer_s_per_token: seconds per prompt token to transfer keys and values to the decode
            engine, starting at the first token. A prefill engine sends one cache after the other.
        fast_forward: whether to simulate identical passes as one event: see `SimulatedEngine`.
        counted_s: start and end of the time of which averages of the load are taken: without the
            start of the run, in which engines fill, and its end, in which they drain.
        counted_requests: instead of times, which are not known before the run of a closed loop:
            numbers of the requests with whose arrivals the counted time starts and ends.

    Raises:
        BadInput: a request is too long for the KV cache, or the transfer time is negative.
    """
    if transfer_s_per_token < 0:
        raise BadInput(f"transfer_s_per_token must not be negative: {transfer_s_per_token}.")
    events = _EventLoop(traffic, pool, decode, transfer_s_per_token, fast_forward, counted_s)
    if counted_requests:
        events.count_between(*counted_requests)
    return events.run()


class _RoutedPool:
    """The engines of one pool, and their router."""

    def __init__(self, pool: Pool, fast_forward: bool, counted_s: tuple[float, float]) -> None:
        self.engines: list[SimulatedEngine] = []
        for _ in range(pool.replicas):
            engine = SimulatedEngine(pool.times, pool.limits, fast_forward, counted_s)
            self.engines.append(engine)
        self._round_robin = pool.router == "round_robin"
        self._n_routed = 0

    def route(self, at_s: float) -> SimulatedEngine:
        """Choose the engine for a request that arrives at `at_s`."""
        if len(self.engines) == 1:
            return self.engines[0]
        if self._round_robin:
            engine = self.engines[self._n_routed % len(self.engines)]
            self._n_routed += 1
            return engine
        outstanding = [engine.outstanding(at_s) for engine in self.engines]
        return self.engines[least_loaded(outstanding)]


class _EventLoop:
    """Simulation loop. An event is an arrival, or a step of the engine with the earliest clock."""

    def __init__(
        self,
        traffic: Traffic,
        pool: Pool,
        decode: Pool | None,
        transfer_s_per_token: float,
        fast_forward: bool,
        counted_s: tuple[float, float],
    ) -> None:
        self.counted_s = counted_s
        self.counted_requests = (-1, -1)
        self.entry_pool = _RoutedPool(pool, fast_forward, counted_s)
        self.decode_pool: _RoutedPool | None = None
        self.engines = list(self.entry_pool.engines)
        self.n_blocks = [pool.limits.n_blocks] * pool.replicas
        if decode is not None:
            self.decode_pool = _RoutedPool(decode, fast_forward, counted_s)
            self.engines += self.decode_pool.engines
            self.n_blocks += [decode.limits.n_blocks] * decode.replicas
        self.engine_index = {engine: index for index, engine in enumerate(self.engines)}
        self.transfer_s_per_token = transfer_s_per_token
        self.link_free_s = [0.0] * pool.replicas  # when a prefill engine has sent all its caches
        self.think_s = traffic.think_s
        self.request_log = RequestLog()
        # Heap of arrivals that the end of a sequence causes: (time, index of its engine, running
        # number, request). The request arrives at the decode pool; None stands for the next request
        # of a user in a closed loop.
        self.caused_arrivals: list[tuple[float, int, int, Request | None]] = []
        self.n_caused = 0
        # With two pools, by request id: requests in the system, and sequences of finished prompts.
        self.in_system: dict[int, Request] = {}
        self.prefilled: dict[int, SequenceState] = {}
        self.end_s = 0.0
        self.requests: Iterator[Request] = iter(traffic)
        self.closed_loop = traffic.users > 0
        self.arrival_sources = self._arrival_sources()
        self.next_request: Request | None = None
        if not self.closed_loop:
            self.next_request = next(self.requests, None)
        for _ in range(traffic.users):
            self._schedule_arrival(0.0, -1, None)

    def _arrival_sources(self) -> dict[SimulatedEngine, list[SimulatedEngine]]:
        """For each engine, the engines whose finished sequences may cause an arrival at it.

        An engine must not run ahead of the clocks of these engines.
        """
        sources: dict[SimulatedEngine, list[SimulatedEngine]] = {}
        for engine in self.engines:
            if self.closed_loop:
                sources[engine] = [source for source in self.engines if source is not engine]
            elif engine in self.entry_pool.engines:
                sources[engine] = []
            else:
                sources[engine] = self.entry_pool.engines
        return sources

    def count_between(self, first: int, last: int) -> None:
        """Count the load from the arrival of request `first` to that of request `last`."""
        self.counted_requests = (first, last)
        self._count((math.inf, math.inf))

    def _count(self, counted_s: tuple[float, float]) -> None:
        self.counted_s = counted_s
        for engine in self.engines:
            engine.counted_s = counted_s

    def run(self) -> SimulationResult:
        """Process all events and return the result."""
        while self._process_event():
            pass
        tallies = tuple(engine.tally for engine in self.engines)
        n_prefill = len(self.entry_pool.engines) if self.decode_pool else 0
        return SimulationResult.of(
            self.request_log, tallies, tuple(self.n_blocks), self.end_s, n_prefill, self.counted_s
        )

    def _process_event(self) -> bool:
        """Process one arrival or one step of an engine; return False if there is no event left."""
        engine = self._earliest_engine()
        request_s = math.inf
        if self.next_request is not None:
            request_s = self.next_request.arrival_s
        arrival_s = request_s
        if self.caused_arrivals:
            arrival_s = min(request_s, self.caused_arrivals[0][0])
        if engine is None or arrival_s <= engine.clock:
            if arrival_s == math.inf:
                return False
            if self.next_request is not None and request_s == arrival_s:
                self._submit(self.next_request)
                self.next_request = next(self.requests, None)
            else:
                self._process_caused_arrival()
            return True
        for source in self.arrival_sources[engine]:
            if source.has_work:
                arrival_s = min(arrival_s, source.clock)
        for sequence in engine.step(arrival_s):
            self._finish(engine, sequence)
        return True

    def _process_caused_arrival(self) -> None:
        arrival_s, _, _, request = heapq.heappop(self.caused_arrivals)
        if request is not None and self.decode_pool is not None:
            self.decode_pool.route(arrival_s).submit(request, kv_ready=True)
            return
        request = next(self.requests, None)
        if request is not None:
            self._submit(request._replace(arrival_s=arrival_s))

    def _earliest_engine(self) -> SimulatedEngine | None:
        """Return the engine whose next pass starts first, None if all are idle."""
        earliest = None
        for engine in self.engines:
            if engine.has_work and (earliest is None or engine.clock < earliest.clock):
                earliest = engine
        return earliest

    def _submit(self, request: Request) -> None:
        first, last = self.counted_requests
        if request.id == first:
            self._count((request.arrival_s, math.inf))
        elif request.id == last:
            self._count((self.counted_s[0], request.arrival_s))
        engine = self.entry_pool.route(request.arrival_s)
        if self.decode_pool is not None:
            self.in_system[request.id] = request
            request = request._replace(output=1)
        engine.submit(request)

    def _finish(self, engine: SimulatedEngine, sequence: SequenceState) -> None:
        """Log the request of a sequence that ended, or send it to the decode pool."""
        index = self.engine_index[engine]
        request = sequence.request
        prefill_sequence = sequence
        if self.decode_pool is not None:
            request = self.in_system[request.id]
            if index < len(self.entry_pool.engines):
                if request.output > 1:
                    self.prefilled[request.id] = sequence
                    arrival_s = self._sent_s(
                        max(engine.clock, sequence.first_token_s), index, request
                    )
                    request = request._replace(arrival_s=arrival_s)
                    self._schedule_arrival(arrival_s, index, request)
                    return
            else:
                prefill_sequence = self.prefilled.pop(request.id)
            del self.in_system[request.id]
        end_s = max(engine.clock, sequence.first_token_s)
        self.request_log.add(request, prefill_sequence, sequence, end_s, index)
        self.end_s = max(self.end_s, end_s)
        if self.closed_loop:
            self._schedule_arrival(end_s + self.think_s, index, None)

    def _sent_s(self, prefilled_s: float, engine_index: int, request: Request) -> float:
        """When the cache of a prompt is at the decode pool: an engine sends one after the other."""
        start_s = max(prefilled_s, self.link_free_s[engine_index])
        self.link_free_s[engine_index] = start_s + self.transfer_s_per_token * request.prompt
        return self.link_free_s[engine_index]

    def _schedule_arrival(self, at_s: float, engine_index: int, request: Request | None) -> None:
        self.n_caused += 1
        heapq.heappush(self.caused_arrivals, (at_s, engine_index, self.n_caused, request))
