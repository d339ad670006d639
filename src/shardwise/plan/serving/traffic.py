"""Simulate the requests of a planned deployment."""

from __future__ import annotations

import math
from dataclasses import fields, replace

from shardwise.errors import BadInput
from shardwise.estimate.serving.steady_state import prefill_only
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.schema.traffic import LargestRate, MeanField, TrafficEstimate
from shardwise.plan.serving.arrivals import (
    CLOSED,
    DEFAULT_AT,
    Arrivals,
    closed_loop,
    read_arrivals,
)
from shardwise.plan.serving.rebuild import rebuild
from shardwise.plan.serving.simulated_pools import (
    DEFAULT_SCHEDULER,
    SchedulerOptions,
    SimulatedPools,
    simulated_pools,
)
from shardwise.search.serving.candidate import Candidate
from shardwise.simulate import Slo, Summary, Traffic
from shardwise.simulate.capacity import highest_rate
from shardwise.simulate.planned import full_batch_tpot_s, mean_field_tpot_s

CAPACITY_STEP = 0.02  # relative precision of the highest rate
# Length of the run that confirms it: in short ones, a queue that grows slowly keeps the bounds.
LONG_RUN = 4


def slo_of(chosen: Candidate, arrivals: Arrivals) -> Slo:
    """The bounds of the job, and the share of the requests that must meet them."""
    job = chosen.job
    return Slo(ttft_s=job.ttft_s or math.inf, tpot_s=job.tpot_s or math.inf, share=arrivals.at)


def estimate(
    chosen: Candidate,
    arrivals: Arrivals,
    rate: float,
    options: SchedulerOptions = DEFAULT_SCHEDULER,
    n: int | None = None,
) -> TrafficEstimate:
    """Metrics of the simulated requests of a deployment.

    Args:
        rate: requests per second of the whole deployment; of no use for users in a closed loop,
            who make their own.
        options: options of the scheduler.
        n: number of judged requests; None for as many as the percentile needs.

    Raises:
        BadInput: a request is too long for every engine.
    """
    pools = simulated_pools(chosen, arrivals, options)
    slo = slo_of(chosen, arrivals)
    run = pools.run(arrivals, chosen, rate, n or arrivals.n_judged, slo)
    summary = run.summary(slo)
    metrics = {field.name: getattr(summary, field.name) for field in fields(Summary)}
    if run.n_users:
        rate = summary.requests_per_s * (chosen.job.users or 0) / run.n_users
    unstable = run.is_unstable()
    served_per_s = rate
    if unstable:
        served_per_s *= run.served_share()
    in_system = summary.in_system / pools.simulated_share
    if not unstable:
        in_system = rate * summary.latency_s.mean  # Little's law, for the very requests judged
    metrics |= {
        "running": summary.running / pools.simulated_share,
        "in_system": in_system,
        "requests_per_s": served_per_s,
        "output_tokens_per_s": served_per_s * float(run.result.columns["output"].mean()),
        "goodput": rate * summary.within,
    }
    limits = pools.decode_pool.limits
    return TrafficEstimate(
        **metrics,
        kind=arrivals.kind,
        variation=arrivals.variation,
        source=arrivals.name,
        recorded=len(arrivals.trace) if arrivals.trace else 0,
        part=(part[0] + 1, part[1]) if (part := arrivals.part) else None,
        prompt=arrivals.prompt,
        output=arrivals.output,
        seed=arrivals.seed,
        users=chosen.job.users or 0 if arrivals.is_closed_loop else 0,
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
    slo = slo_of(chosen, arrivals)
    shares: dict[float, float] = {}

    def meets(rate: float, length: int = 1) -> bool:
        run = pools.run(arrivals, chosen, rate, length * arrivals.n_judged, slo)
        shares[rate] = run.within(slo)
        return run.holds(slo)

    rate = highest_rate(meets, chosen.job.rate or chosen.most_requests_per_s, CAPACITY_STEP)
    while arrivals.trace is None and not meets(rate, LONG_RUN):
        rate /= 1 + CAPACITY_STEP
    limit = LargestRate(
        rate=rate,
        mean_field_rate=balanced_rate(chosen, pools),
        tried=tuple(sorted(shares.items())),
    )
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


def simulate_plan(
    plan: ServingPlan,
    traffic: str | Traffic | Arrivals | None = None,
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
        traffic: `poisson`, `constant`, `bursty`, `bursty:3`, `closed` for the users of the plan in
            a closed loop, the path of a recording, or requests as a `shardwise.simulate.Traffic`;
            None for `closed` if the plan has users and no rate is passed, else for `poisson`.
        rate: requests per second of the whole deployment; None for the rate of the recording or,
            without one, of the plan. Users in a closed loop make their own.
        at: share of the requests that must meet the plan's bounds.
        seed: seed of the random numbers; the same seed gives the same metrics.
        chunked, paged, prefix_cache: options of the engine's scheduler: see `SchedulerOptions`.

    Raises:
        BadInput: traffic or rate is out of range, or a request is too long for every engine.
        BadFile: the recording cannot be read.
    """
    _, chosen = rebuild(plan)
    if traffic is None and not rate and plan.workload.users:
        traffic = CLOSED
    arrivals = _arrivals_at(plan, traffic or "poisson", at, seed)
    options = SchedulerOptions(chunked=chunked, paged=paged, prefix_cache=prefix_cache)
    if arrivals.is_closed_loop:
        return estimate(chosen, arrivals, 0.0, options)
    rate = rate or (arrivals.simulated.rate if arrivals.simulated else plan.workload.rate)
    if not rate or not 0 < rate < math.inf:
        raise BadInput("traffic needs a rate. Pass rate=, requests per second.")
    if arrivals.trace is None and plan.workload.output is None:
        raise BadInput("the plan has no length of requests: plan with prompt and output.")
    return estimate(chosen, arrivals, rate, options)


def _arrivals_at(
    plan: ServingPlan, traffic: str | Traffic | Arrivals, at: float, seed: int
) -> Arrivals:
    """The requests of `simulate_plan`; users draw the lengths that the plan drew."""
    if isinstance(traffic, Traffic):
        return Arrivals(kind="trace", trace=traffic, name="given requests", at=at, seed=seed)
    if isinstance(traffic, Arrivals):
        return replace(traffic, at=at, seed=seed)
    if traffic == CLOSED:
        users = closed_loop(plan.workload.users, at)
        drawn = plan.estimate.traffic
        if drawn:
            users = replace(users, prompt=drawn.prompt, output=drawn.output)
        return replace(users, seed=seed)
    return replace(read_arrivals(traffic, at), seed=seed)
