"""Simulations of the deployments of a search: short ones first, which rule most of them out."""

from __future__ import annotations

from shardwise.errors import BadInput
from shardwise.plan.schema.traffic import TrafficEstimate, TriedDeployment
from shardwise.plan.serving.arrivals import Arrivals
from shardwise.plan.serving.engine_kinds import EngineKind, engine_kind, engines_of
from shardwise.plan.serving.traffic import LONG_RUN, estimate
from shardwise.search.serving.candidate import Candidate

SCREEN_REQUESTS = 400  # requests of a first, short simulation
SCREEN_MARGIN = 0.05  # if it shows the share within the bounds this much too small, it is the last
IDLE_MARGIN = 0.01  # of the share within the bounds, by few requests that do not wait
IDLE_RATE = 1e-4  # requests per second that engines serve one by one


class Trials:
    """The simulated deployments of a search.

    Attributes:
        tried: all of them.
        n_whole: number of those of which more than a screen was simulated.
        refusal: the last error of a deployment that could not be simulated.
    """

    def __init__(self, arrivals: Arrivals, rate: float) -> None:
        self.arrivals = arrivals
        self.rate = rate
        self.tried: list[TriedDeployment] = []
        self.n_whole = 0
        self.refusal: BadInput | None = None
        # Kinds of engines -> whether they may meet the bounds of a recording, however many they are
        self._idle: dict[tuple[EngineKind, ...], bool] = {}
        self._one_by_one = arrivals.idle()
        self._busiest = arrivals.busiest()
        self._busiest_rate = 1.0  # over the rate of the whole recording
        if self._busiest.trace and arrivals.simulated:
            self._busiest_rate = self._busiest.trace.rate / arrivals.simulated.rate

    def simulate(self, candidate: Candidate) -> TrafficEstimate | None:
        """Simulate few requests, then many if the share may be met; None if not possible."""
        try:
            if not self._holds_idle(candidate):
                return None
            traffic = self._screen(candidate)
            if self._may_hold(traffic):
                self.n_whole += 1
                traffic = self._whole(candidate)
        except BadInput as error:
            self.refusal = error
            return None
        self._record(candidate, traffic)
        return traffic

    def _whole(self, candidate: Candidate) -> TrafficEstimate:
        """Metrics of all requests; of a longer run if they meet the bounds, and its do not.

        Queues of recordings and of users in a closed loop do not grow without end.
        """
        traffic = estimate(candidate, self.arrivals, self.rate)
        if not traffic.holds or self.arrivals.trace or self.arrivals.is_closed_loop:
            return traffic
        n = LONG_RUN * self.arrivals.n_judged
        longer = estimate(candidate, self.arrivals, self.rate, n=n)
        return traffic if longer.holds else longer

    def _record(self, candidate: Candidate, traffic: TrafficEstimate) -> None:
        decode, prefill = engines_of(candidate)
        self.tried.append(
            TriedDeployment(
                decode=decode,
                prefill=prefill,
                n_chips=candidate.chips,
                within=traffic.within,
                holds=traffic.holds,
            )
        )

    def _holds_idle(self, candidate: Candidate) -> bool:
        """Whether recorded requests may meet the bounds one by one; more engines help no others."""
        if not self.arrivals.judges_whole_trace:
            return True
        servers = (candidate.server, candidate.prefill_server)
        kinds = tuple(engine_kind(server, candidate) for server in servers if server)
        if kinds not in self._idle:
            traffic = estimate(candidate, self._one_by_one, IDLE_RATE)
            self._idle[kinds] = traffic.within >= self.arrivals.at - IDLE_MARGIN
            if not self._idle[kinds]:
                self._record(candidate, traffic)
        return self._idle[kinds]

    def _screen(self, candidate: Candidate) -> TrafficEstimate:
        """Metrics of few requests; of a recording, of its busiest part."""
        if not self.arrivals.judges_whole_trace:
            return estimate(candidate, self.arrivals, self.rate, n=SCREEN_REQUESTS)
        return estimate(candidate, self._busiest, self.rate * self._busiest_rate)

    def _may_hold(self, screened: TrafficEstimate) -> bool:
        """Whether all requests may meet the bounds, by those of a screen."""
        if not self.arrivals.judges_whole_trace:
            return screened.holds or screened.within >= self.arrivals.at - SCREEN_MARGIN
        # Requests that miss the bounds in the busiest part miss them in all of the recording.
        missed = (1 - screened.within) * len(self._busiest.trace or ())
        return missed <= (1 - self.arrivals.at) * len(self.arrivals.simulated or ())
