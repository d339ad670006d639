"""Simulate the requests of a planned deployment."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace

from shardwise.errors import BadInput
from shardwise.estimate.serving.steady_state import max_pass_tokens, prefill_only, prompts_per_pass
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.schema.traffic import LargestRate, MeanField, TrafficEstimate
from shardwise.plan.serving.arrivals import DEFAULT_AT, Arrivals, read_arrivals
from shardwise.plan.serving.rebuild import rebuild
from shardwise.plan.serving.simulated_share import engines_to_simulate
from shardwise.search.serving.candidate import Candidate, Server
from shardwise.simulate import Pool, Slo, Spread, Summary, Traffic, capacity, simulate
from shardwise.simulate.metrics import SimulationResult
from shardwise.simulate.planned import (
    engine_limits,
    full_batch_tpot_s,
    max_sequences,
    mean_field_tpot_s,
    pass_times,
)

MAX_LATENCY_GROWTH = 0.05  # growth over the time that passes; above it, a queue is unstable
MAX_BACKLOG = 0.1  # share of requests served after the last arrival; above it, too
MIN_RUN_LENGTH = 10  # in service times of a request; shorter runs do not show a growing queue
CAPACITY_STEP = 0.02  # relative precision of the highest rate
MIN_REQUESTS = 3000  # of a run for the highest rate; in short runs an unstable queue stays short


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

    def run(self, arrivals: Arrivals, chosen: Candidate, rate: float, n: int) -> SimulatedRun:
        """Simulate `n` judged requests, and others before and after that fill and drain engines."""
        n_filling = self.n_in_flight(rate)
        traffic = arrivals.requests(chosen.job, rate, n + 2 * n_filling, self.simulated_share)
        result = simulate(traffic, self.pool, self.decode, self.transfer_s_per_token)
        arrival_s = traffic.arrival_s
        if arrivals.judges_whole_trace or arrival_s is None:
            return SimulatedRun(self, result, 0.0, math.inf)
        n_skipped = min(n_filling, (len(traffic) - 1) // 2)
        after_s = float(arrival_s[n_skipped])
        return SimulatedRun(self, result, after_s, float(arrival_s[-1 - n_skipped]))

    def n_in_flight(self, rate: float) -> int:
        """Mean number of requests in the simulated engines at the same time."""
        return math.ceil(rate * self.simulated_share * self.service_s)

    def engine_slo(self, slo: Slo) -> Slo:
        """The bounds that hold inside the engines: those of a request less its server overhead."""
        return replace(slo, ttft_s=max(slo.ttft_s - self.server_overhead_s, 1e-9))


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """A finished simulation; requests that arrive from `after_s` to `until_s` are judged."""

    pools: SimulatedPools
    result: SimulationResult
    after_s: float
    until_s: float

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


def slo_of(chosen: Candidate, arrivals: Arrivals) -> Slo:
    """The bounds of the job, and the share of the requests that must meet them."""
    job = chosen.job
    return Slo(ttft_s=job.ttft_s or math.inf, tpot_s=job.tpot_s or math.inf, share=arrivals.at)


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


def estimate(
    chosen: Candidate,
    arrivals: Arrivals,
    rate: float,
    options: SchedulerOptions = DEFAULT_SCHEDULER,
    n: int | None = None,
) -> TrafficEstimate:
    """Metrics of the simulated requests of a deployment.

    Args:
        rate: requests per second of the whole deployment.
        options: options of the scheduler.
        n: number of judged requests; None for as many as the percentile needs.

    Raises:
        BadInput: a request is too long for every engine.
    """
    pools = simulated_pools(chosen, arrivals, options)
    run = pools.run(arrivals, chosen, rate, n or arrivals.n_judged)
    summary = run.summary(slo_of(chosen, arrivals))
    metrics = {field.name: getattr(summary, field.name) for field in fields(Summary)}
    unstable = run.is_unstable()
    served_per_s = rate
    if unstable:
        served_per_s *= run.served_share()
    metrics |= {
        "running": summary.running / pools.simulated_share,
        "in_system": summary.in_system / pools.simulated_share,
        "requests_per_s": served_per_s,
        "output_tokens_per_s": served_per_s * summary.output_tokens_per_s / summary.requests_per_s,
        "goodput": rate * summary.within,
    }
    limits = pools.decode_pool.limits
    return TrafficEstimate(
        **metrics,
        kind=arrivals.kind,
        variation=arrivals.variation,
        source=arrivals.name,
        prompt=arrivals.prompt,
        output=arrivals.output,
        seed=arrivals.seed,
        rate=rate,
        at=arrivals.at,
        ttft_bound_s=chosen.job.ttft_s,
        tpot_bound_s=chosen.job.tpot_s,
        holds=summary.within >= arrivals.at and not unstable,
        simulated=pools.simulated_share,
        max_sequences=limits.max_sequences,
        max_tokens=limits.max_tokens,
        n_blocks=limits.n_blocks,
        chunked=limits.chunked,
        tokens_per_pass=limits.tokens_per_pass,
        mean_field=_mean_field(chosen, summary, pools, rate),
    )


def _mean_field(
    chosen: Candidate, summary: Summary, pools: SimulatedPools, rate: float
) -> MeanField:
    """The closed-form means of the deployment, and their errors against the simulated means."""
    pool = pools.decode_pool
    server = chosen.server
    tpot_at_rate_s = mean_field_tpot_s(
        server.engine,
        chosen.job,
        pool.times,
        rate / server.count,
        pool.limits.max_sequences,
        prefills=chosen.prefill_server is None,
    )
    return MeanField(
        ttft_s=chosen.ttft_s,
        tpot_s=chosen.tpot_s,
        tpot_at_rate_s=tpot_at_rate_s,
        ttft_off=chosen.ttft_s / summary.ttft_s.mean - 1,
        tpot_off=chosen.tpot_s / summary.tpot_s.mean - 1 if summary.tpot_s.mean else 0.0,
    )


def largest_rate(
    chosen: Candidate, arrivals: Arrivals, options: SchedulerOptions = DEFAULT_SCHEDULER
) -> tuple[LargestRate, TrafficEstimate]:
    """Find the highest request rate at which a deployment meets its bounds, and the metrics there.

    Raises:
        BadInput: the job has no bound on the time to the first token.
        NoPlan: the bounds are not met at any rate.
    """
    if chosen.job.ttft_s is None:
        raise BadInput(
            "the largest rate needs a bound on the first token: without one, requests may wait for "
            "ever. Write --ttft 500ms."
        )
    pools = simulated_pools(chosen, arrivals, options)
    slo = pools.engine_slo(slo_of(chosen, arrivals))
    start = chosen.job.rate or chosen.most_requests_per_s
    n = max(MIN_REQUESTS, arrivals.n_judged) + 2 * pools.n_in_flight(start)
    traffic = arrivals.requests(chosen.job, start, n, pools.simulated_share)
    highest = capacity(
        traffic, pools.pool, slo, pools.decode, pools.transfer_s_per_token, CAPACITY_STEP
    )
    rate = highest.rate / pools.simulated_share
    trials = tuple((trial / pools.simulated_share, within) for trial, within in highest.trials)
    limit = LargestRate(rate=rate, mean_field_rate=balanced_rate(chosen, pools), tried=trials)
    return limit, replace(estimate(chosen, arrivals, rate, options), capacity=limit)


def balanced_rate(chosen: Candidate, pools: SimulatedPools) -> float:
    """Requests per second of the whole deployment with full engines, by the closed form."""
    pool = pools.decode_pool
    server = chosen.server
    job = chosen.job
    n_sequences = pool.limits.max_sequences
    prefills = chosen.prefill_server is None
    token_s = full_batch_tpot_s(server.engine, job, pool.times, n_sequences, prefills=prefills)
    decode_rate = server.count * n_sequences / (token_s * (job.output or 1))
    if not chosen.prefill_server:
        return decode_rate
    prefill_rate, _ = prefill_only(chosen.prefill_server.engine, job, 1.0)
    return min(decode_rate, chosen.n_prefill * float(prefill_rate))


def _delayed(spread: Spread, seconds: float) -> Spread:
    """Add `seconds` to the mean and to each percentile."""
    return Spread(**{field.name: getattr(spread, field.name) + seconds for field in fields(Spread)})


def simulate_plan(
    plan: ServingPlan,
    traffic: str | Traffic | Arrivals = "poisson",
    rate: float | None = None,
    *,
    at: float = DEFAULT_AT,
    seed: int = 0,
    chunked: bool | None = None,
    paged: bool = True,
    prefix_cache: bool = True,
) -> TrafficEstimate:
    """Simulate requests to a serving plan: percentiles, queues, utilisation, goodput.

    Args:
        plan: from `sw.plan(..., sw.Serve(...))`, or loaded from a file.
        traffic: `poisson`, `constant`, `bursty`, `bursty:3`, the path of a recording, or requests
            as a `shardwise.simulate.Traffic`.
        rate: requests per second of the whole deployment; None for the rate of the recording or,
            without one, of the plan.
        at: share of the requests that must meet the plan's bounds.
        seed: seed of the random numbers; the same seed gives the same metrics.
        chunked, paged, prefix_cache: options of the engine's scheduler: see `SchedulerOptions`.

    Raises:
        BadInput: traffic or rate is out of range, or a request is too long for every engine.
        BadFile: the recording cannot be read.
    """
    if isinstance(traffic, str):
        arrivals = replace(read_arrivals(traffic, at), seed=seed)
    elif isinstance(traffic, Traffic):
        arrivals = Arrivals(kind="trace", trace=traffic, name="given requests", at=at, seed=seed)
    else:
        arrivals = replace(traffic, at=at, seed=seed)
    _, chosen = rebuild(plan)
    rate = rate or (arrivals.trace.rate if arrivals.trace else plan.workload.rate)
    if not rate or not 0 < rate < math.inf:
        raise BadInput("traffic needs a rate. Pass rate=, requests per second.")
    if arrivals.trace is None and plan.workload.output is None:
        raise BadInput("the plan has no length of requests: plan with prompt and output.")
    options = SchedulerOptions(chunked=chunked, paged=paged, prefix_cache=prefix_cache)
    return estimate(chosen, arrivals, rate, options)
