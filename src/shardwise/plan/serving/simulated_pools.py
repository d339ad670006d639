"""The simulated engines of a deployment, and runs of requests through them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace

from shardwise.estimate.serving.steady_state import max_pass_tokens, prompts_per_pass
from shardwise.plan.serving.arrivals import Arrivals
from shardwise.plan.serving.simulated_share import engines_to_simulate
from shardwise.search.serving.candidate import Candidate, Server
from shardwise.simulate import Pool, Slo, Spread, Summary, simulate
from shardwise.simulate.engine import ALL_TIME
from shardwise.simulate.metrics import SimulationResult
from shardwise.simulate.planned import engine_limits, max_sequences, pass_times
from shardwise.workload import Serve

MAX_LATENCY_GROWTH = 0.05  # growth over the time that passes; above it, a queue is unstable
MAX_BACKLOG = 0.1  # share of requests served after the last arrival; above it, too
MIN_RUN_LENGTH = 10  # in service times of a request; shorter runs do not show a growing queue
# Mean latency over the time of a run's start, up to which the start was long enough; and the time
# of a longer start in such latencies: the load approaches its mean by a factor in each of them.
MAX_OVER_START = 1.1
SETTLING = 3.0
FILL_TURNS = 2  # requests of each user in a closed loop before those that are judged


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """Options of an engine's scheduler that are not part of a plan.

    Args:
        chunked: True for chunked prefill, which mixes prompts and decoding in a pass; False for
            separate passes, prompts first; None for the engine's default.
        paged: allocate cache blocks as contexts grow; otherwise a request reserves all its blocks
            at the start, and no blocks are shared.
        prefix_cache: keep the blocks of shared prefixes for later requests.
    """

    chunked: bool | None = None
    paged: bool = True
    prefix_cache: bool = True


DEFAULT_SCHEDULER = SchedulerOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPools:
    """The engines of a deployment that are simulated: all of them, or a share.

    Args:
        pool: the engines that prefill: the separate prefill engines, or engines that do both.
        decode: the decode engines if prefill engines are separate; otherwise None.
        transfer_s_per_token: seconds to send the KV cache of one prompt token to a decode engine.
        simulated_share: share of the engines that is simulated. They get this share of the
            requests.
        service_s: mean seconds of a request in an engine, by the closed form.
        server_overhead_s: seconds that a request spends in the server before it reaches the engine.
    """

    pool: Pool
    decode: Pool | None
    transfer_s_per_token: float
    simulated_share: float
    service_s: float
    server_overhead_s: float

    @property
    def decode_pool(self) -> Pool:
        """The engines that decode, whether or not they also prefill."""
        return self.decode or self.pool

    def run(
        self, arrivals: Arrivals, chosen: Candidate, rate: float, n: int, slo: Slo
    ) -> SimulatedRun:
        """Simulate `n` judged requests, and others before and after that fill and drain engines.

        Engines that run more sequences than the closed form assumes, and thus slower, are still
        filling when its time is over: a run that meets the bounds is repeated with a longer start
        until its requests take no longer than this start. Users in a closed loop have no `rate`.
        """
        if arrivals.is_closed_loop:
            return self._run_users(arrivals, chosen.job, n)
        start_s = self.service_s
        while True:
            run = self._run(arrivals, chosen, rate, n, start_s)
            latency_s = run.mean_latency_s()
            if run.judges_all or latency_s <= MAX_OVER_START * start_s or not run.holds(slo):
                return run
            start_s = SETTLING * latency_s

    def _run(
        self, arrivals: Arrivals, chosen: Candidate, rate: float, n: int, start_s: float
    ) -> SimulatedRun:
        """Simulate `n` judged requests after those of the first `start_s` seconds."""
        n_before = math.ceil(rate * self.simulated_share * start_s)
        n_after = self.n_in_flight(rate)
        traffic = arrivals.requests(chosen.job, rate, n + n_before + n_after, self.simulated_share)
        arrival_s = traffic.arrival_s
        after_s = 0.0
        until_s = math.inf
        counted_s = ALL_TIME
        if arrival_s is not None:
            counted_s = (0.0, float(arrival_s[-1]))
            if not arrivals.judges_whole_trace:
                n_after = min(n_after, (len(traffic) - 1) // 2)
                n_before = min(n_before, len(traffic) - 1 - n_after)
                after_s = float(arrival_s[n_before])
                until_s = float(arrival_s[-1 - n_after])
                counted_s = (after_s, until_s)
            if counted_s[0] >= counted_s[1]:
                counted_s = ALL_TIME
        result = simulate(
            traffic, self.pool, self.decode, self.transfer_s_per_token, counted_s=counted_s
        )
        return SimulatedRun(self, result, after_s, until_s)

    def _run_users(self, arrivals: Arrivals, job: Serve, n: int) -> SimulatedRun:
        """Simulate at least `n` judged requests of the job's users in a closed loop.

        The first requests, which all start at once, are not judged, nor are the last ones, in whose
        time users have left.
        """
        # Rounded, as a share of 1/75 of 525 users is 7.000000000000001.
        n_users = math.ceil(round((job.users or 1) * self.simulated_share, 6))
        n_filling = FILL_TURNS * n_users
        n_judged = max(n, n_users)
        traffic = arrivals.requests_of_users(
            job, n_users, n_filling + n_judged + n_users, self.server_overhead_s
        )
        result = simulate(
            traffic,
            self.pool,
            self.decode,
            self.transfer_s_per_token,
            counted_requests=(n_filling, len(traffic) - 1),
        )
        arrival_s = result.columns["arrival_s"]
        after_s = float(arrival_s[n_filling])
        until_s = float(arrival_s[n_filling + n_judged - 1])
        return SimulatedRun(self, result, after_s, until_s, n_users)

    def n_in_flight(self, rate: float) -> int:
        """Mean number of requests in the simulated engines at the same time."""
        return math.ceil(rate * self.simulated_share * self.service_s)

    def engine_slo(self, slo: Slo) -> Slo:
        """The bounds that hold inside the engines: those of a request less its server overhead."""
        return replace(slo, ttft_s=max(slo.ttft_s - self.server_overhead_s, 1e-9))


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """A finished simulation; requests that arrive from `after_s` to `until_s` are judged.

    `n_users` is the number of simulated users in a closed loop; 0 without one.
    """

    pools: SimulatedPools
    result: SimulationResult
    after_s: float
    until_s: float
    n_users: int = 0

    @property
    def judges_all(self) -> bool:
        """Whether all requests of the run are judged."""
        return self.until_s == math.inf

    def mean_latency_s(self) -> float:
        """Mean time of the judged requests from their arrival to their last token."""
        latency_s = self.result.times(self.after_s, self.until_s)["latency"]
        return float(latency_s.mean()) if len(latency_s) else 0.0

    def within(self, slo: Slo) -> float:
        """Share of the judged requests that meet the bounds."""
        return self.result.within(self.pools.engine_slo(slo), self.after_s, self.until_s)

    def holds(self, slo: Slo) -> bool:
        """Whether enough of the judged requests meet the bounds, and no queue keeps growing."""
        return self.within(slo) >= slo.share and not self.is_unstable()

    def summary(self, slo: Slo) -> Summary:
        """Metrics of the judged requests, including their time in the server before the engine."""
        server_overhead_s = self.pools.server_overhead_s
        summary = self.result.summary(self.pools.engine_slo(slo), self.after_s, self.until_s)
        return replace(
            summary,
            requests=int(self.result.arrival_mask(self.after_s, self.until_s).sum()),
            ttft_s=_delayed(summary.ttft_s, server_overhead_s),
            latency_s=_delayed(summary.latency_s, server_overhead_s),
        )

    def served_share(self) -> float:
        """Completed requests per arriving request; below 1 if a backlog remains at the end."""
        columns = self.result.columns
        last_s = float(columns["arrival_s"][-1])
        longest_s = float((columns["end_s"] - columns["start_s"]).max())
        return last_s / max(last_s, self.result.duration_s - longest_s)

    def is_unstable(self) -> bool:
        """Whether a queue grows without end: a backlog remains, or latency keeps growing."""
        if self.n_users:
            return False  # at most all users wait
        if self.served_share() < 1 - MAX_BACKLOG:
            return True
        latency_s = self.result.times(self.after_s, self.until_s)["latency"]
        end_s = min(self.until_s, float(self.result.columns["arrival_s"][-1]))
        judged_s = end_s - self.after_s
        quarter = len(latency_s) // 4
        if judged_s < MIN_RUN_LENGTH * self.pools.service_s or not quarter:
            return False
        growth_s = float(latency_s[-quarter:].mean() - latency_s[:quarter].mean())
        return growth_s > MAX_LATENCY_GROWTH * judged_s


def simulated_pools(
    chosen: Candidate, arrivals: Arrivals, options: SchedulerOptions = DEFAULT_SCHEDULER
) -> SimulatedPools:
    """Choose the engines of a deployment to simulate."""
    job = chosen.job
    max_context = arrivals.max_context(job)
    prefill_server = chosen.prefill_server
    n_decode, n_prefill, share = engines_to_simulate(
        chosen.server.count, chosen.n_prefill, chosen.batch
    )
    if arrivals.is_closed_loop and not prefill_server:
        n_decode = 1  # as a request goes to the engine whose last one ended, all have equal loads
        share = 1 / chosen.server.count
    pool = _decode_pool(chosen, n_decode, max_context, options)
    decode = None
    if prefill_server:
        decode = pool
        pool = _prefill_pool(prefill_server, n_prefill, max_context, options)
    return SimulatedPools(
        pool=pool,
        decode=decode,
        transfer_s_per_token=chosen.transfer_s / job.prompt_tokens,
        simulated_share=share,
        service_s=chosen.ttft_s + (job.output or 1) * chosen.tpot_s,
        server_overhead_s=chosen.first_token_delay_s,
    )


def _decode_pool(
    chosen: Candidate, n_engines: int, max_context: int, options: SchedulerOptions
) -> Pool:
    engine = chosen.server.engine
    job = chosen.server.job
    is_ours = chosen.server.rates.measured  # an engine that is started with the plan's batch
    most = chosen.batch if is_ours else int(max_pass_tokens(engine))
    times = pass_times(engine, job, max_context, most)
    n_sequences = chosen.batch
    if not (n_sequences and (job.batch or is_ours)):
        prefills = chosen.prefill_server is None
        n_sequences = max_sequences(engine, job, times, job.tpot_s, prefills=prefills)
    limits = engine_limits(engine, job, n_sequences, **asdict(options))
    return Pool(times=times, limits=limits, replicas=n_engines)


def _prefill_pool(
    server: Server, n_engines: int, max_context: int, options: SchedulerOptions
) -> Pool:
    engine = server.engine
    job = replace(server.job, drafted=0)
    rows = int(max_pass_tokens(engine))
    n_prompts = rows // max(1, job.prompt_tokens) + int(prompts_per_pass(engine))
    limits = engine_limits(engine, job, max(1, min(rows, n_prompts)), **asdict(options))
    times = pass_times(engine, job, max_context, 1)
    return Pool(times=times, limits=limits, replicas=n_engines)


def _delayed(spread: Spread, seconds: float) -> Spread:
    """Add `seconds` to the mean and to each percentile."""
    return Spread(**{field.name: getattr(spread, field.name) + seconds for field in fields(Spread)})
