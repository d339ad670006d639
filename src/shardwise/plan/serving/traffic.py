"""A planned deployment under traffic: its engines in simulated time."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from shardwise.errors import BadInput
from shardwise.estimate.serving.steady_state import max_pass_tokens, prefill_only, prompts_per_pass
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.schema.traffic import LargestRate, MeanField, TrafficEstimate
from shardwise.plan.serving.arrivals import AT, Arrivals, read_arrivals
from shardwise.search.serving.candidate import Candidate, Server
from shardwise.simulate import (
    Pool,
    SimulationResult,
    Slo,
    Spread,
    Summary,
    Traffic,
    capacity,
    simulate,
)
from shardwise.simulate.planned import (
    engine_limits,
    full_batch_tpot_s,
    max_sequences,
    mean_field_tpot_s,
    pass_times,
)

# Engines of a kind that are simulated; of more, a part with its part of the requests. Fewer engines
# even out less, so that what is told is rather too long than too short. Of large ones fewer do.
ENGINES, LARGE_ENGINES, LARGE = 8, 4, 128
GROWING = 0.05  # latency that grows by more than this share of the time: a queue without end
LEFT = 0.1  # of all requests that are served after the last has come: the same
LONG = 10  # runs that are shorter than so many requests take tell nothing of that
CAPACITY_STEP = 0.02  # the largest rate is found to this share
FEWEST = 3000  # requests of its runs: of few, a queue that grows for ever stays short


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What of an engine the plan does not say.

    Args:
        chunked: prompts are cut and share passes with decoding; None for the software's habit.
        paged: blocks are taken as contexts grow; otherwise reserved at once, and nothing shared.
        prefix_cache: shared prefixes are kept.
    """

    chunked: bool | None = None
    paged: bool = True
    prefix_cache: bool = True


USUAL = Habits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """The pools of a deployment, or a part of it.

    Args:
        part: share of the engines, and so of the requests.
        service_s: mean seconds of a request, by the closed form.
        ahead_s: seconds of a request in the server before and after the engine.
    """

    pool: Pool
    decode: Pool | None
    transfer_s_per_token: float
    part: float
    service_s: float
    ahead_s: float

    def run(self, arrivals: Arrivals, chosen: Candidate, rate: float, n: int) -> Run:
        """The run of `n` judged requests, between others that fill and empty the engines."""
        traffic = arrivals.requests(chosen.job, rate, n + 2 * self.around(rate), self.part)
        result = simulate(traffic, self.pool, self.decode, self.transfer_s_per_token)
        arrival_s = traffic.arrival_s
        if arrivals.whole or arrival_s is None:
            return Run(self, result, 0.0, math.inf)
        skip = min(self.around(rate), (len(traffic) - 1) // 2)
        return Run(self, result, float(arrival_s[skip]), float(arrival_s[-1 - skip]))

    def around(self, rate: float) -> int:
        """Requests that are in the engines in the mean: so many come before those judged."""
        return math.ceil(rate * self.part * self.service_s)


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run, and which of its requests are judged."""

    rig: Rig
    result: SimulationResult
    after_s: float
    until_s: float

    def summary(self, slo: Slo) -> Summary:
        """The figures as its users see them."""
        ahead_s = self.rig.ahead_s
        inside = replace(slo, ttft_s=max(slo.ttft_s - ahead_s, 1e-9))
        found = self.result.summary(inside, self.after_s, self.until_s)
        return replace(
            found,
            requests=int(self.result.judged(self.after_s, self.until_s).sum()),
            ttft_s=_later(found.ttft_s, ahead_s),
            latency_s=_later(found.latency_s, ahead_s),
        )

    def served(self) -> float:
        """Requests that end for each one that arrives; below 1 the rest is served afterwards."""
        columns = self.result.columns
        last_s = float(columns["arrival_s"][-1])
        longest_s = float((columns["end_s"] - columns["start_s"]).max())
        return last_s / max(last_s, self.result.duration_s - longest_s)

    def grows(self) -> bool:
        """Whether a queue grows for ever: requests are left, or later ones take ever longer."""
        if self.served() < 1 - LEFT:
            return True
        latency = self.result.times(self.after_s, self.until_s)["latency"]
        arrival = self.result.columns["arrival_s"]
        end_s = min(self.until_s, float(arrival[-1]))
        took_s, quarter = end_s - self.after_s, len(latency) // 4
        if took_s < LONG * self.rig.service_s or not quarter:
            return False
        grown_s = float(latency[-quarter:].mean() - latency[:quarter].mean())
        return grown_s > GROWING * took_s


def slo_of(chosen: Candidate, arrivals: Arrivals) -> Slo:
    """The bounds of the work, at the share of the traffic."""
    job, none = chosen.job, math.inf
    return Slo(ttft_s=job.ttft_s or none, tpot_s=job.tpot_s or none, share=arrivals.at)


def rig_of(chosen: Candidate, arrivals: Arrivals, habits: Habits = USUAL) -> Rig:
    """The engines of a deployment as they are simulated."""
    job, trace = chosen.job, arrivals.trace
    longest = job.context if trace is None else int((trace.prompt + trace.output).max())
    servers, reader = chosen.server.count, chosen.reader
    readers = reader.count if reader else 0
    most = LARGE_ENGINES if chosen.batch > LARGE else ENGINES
    n, m, part = scaled(servers, readers, most)
    generates = _pool(chosen.server, n, longest, habits, job.batch and chosen.batch, reader)
    first = _reading(reader, m, longest, habits) if reader else None
    output = job.output or 1
    return Rig(
        pool=first or generates,
        decode=generates if first else None,
        transfer_s_per_token=chosen.transfer_s / job.prompt_tokens,
        part=part,
        service_s=chosen.ttft_s + output * chosen.tpot_s,
        ahead_s=chosen.server.rates.overhead.request_s,
    )


def scaled(servers: int, readers: int, most: int = ENGINES) -> tuple[int, int, float]:
    """(engines that generate, engines that read, their share of all) to be simulated.

    `most` of a kind at most. The share is that of the kind of which more is left, so that no engine
    has less to do.

    >>> scaled(3, 0), scaled(26, 0)[0], scaled(9, 17)[:2]
    ((3, 0, 1.0), 8, (4, 8))
    """
    if not readers:
        n = min(servers, most)
        return n, 0, n / servers
    if max(servers, readers) <= most:
        return servers, readers, 1.0
    every = [
        (n / servers, m / readers, n, m)
        for n in range(1, min(servers, most) + 1)
        for m in range(1, min(readers, most) + 1)
    ]
    a, b, n, m = min(every, key=lambda one: (max(one[:2]) / min(one[:2]), -one[2]))
    return n, m, max(a, b)


def _pool(
    server: Server, n: int, longest: int, habits: Habits, batch: int | None, reader: Server | None
) -> Pool:
    engine, job = server.engine, server.job
    times = pass_times(engine, job, longest, int(max_pass_tokens(engine)))
    most = batch or max_sequences(engine, job, times, job.tpot_s, prefills=reader is None)
    limits = engine_limits(
        engine,
        job,
        most,
        chunked=habits.chunked,
        paged=habits.paged,
        prefix_cache=habits.prefix_cache,
    )
    return Pool(times=times, limits=limits, replicas=n)


def _reading(reader: Server, n: int, longest: int, habits: Habits) -> Pool:
    engine, job = reader.engine, replace(reader.job, drafted=0)
    rows = int(max_pass_tokens(engine))
    limits = engine_limits(
        engine,
        job,
        max(1, min(rows, rows // max(1, job.prompt_tokens) + int(prompts_per_pass(engine)))),
        chunked=habits.chunked,
        paged=habits.paged,
        prefix_cache=habits.prefix_cache,
    )
    return Pool(times=pass_times(engine, job, longest, 1), limits=limits, replicas=n)


def estimate(
    chosen: Candidate,
    arrivals: Arrivals,
    rate: float,
    habits: Habits = USUAL,
    n: int | None = None,
) -> TrafficEstimate:
    """What the requests of a deployment see.

    Args:
        rate: requests per second of the whole deployment.
        n: requests that are judged; None for as many as the percentile needs.

    Raises:
        BadInput: a request that no engine has room for.
    """
    rig = rig_of(chosen, arrivals, habits)
    run = rig.run(arrivals, chosen, rate, n or arrivals.judged)
    slo = slo_of(chosen, arrivals)
    return _told(chosen, arrivals, rate, rig, run, run.summary(slo))


def _told(
    chosen: Candidate, arrivals: Arrivals, rate: float, rig: Rig, run: Run, found: Summary
) -> TrafficEstimate:
    limits, job = (rig.decode or rig.pool).limits, chosen.job
    whole = {name: getattr(found, name) / rig.part for name in ("running", "in_system")}
    told = {f.name: getattr(found, f.name) for f in fields(Summary)} | whole
    grows = run.grows()
    served = rate * run.served() if grows else rate
    told |= {
        "requests_per_s": served,
        "output_tokens_per_s": served * found.output_tokens_per_s / found.requests_per_s,
        "goodput": rate * found.within,
    }
    return TrafficEstimate(
        **told,
        kind=arrivals.kind,
        variation=arrivals.variation,
        source=arrivals.name,
        seed=arrivals.seed,
        rate=rate,
        at=arrivals.at,
        ttft_bound_s=job.ttft_s,
        tpot_bound_s=job.tpot_s,
        holds=found.within >= arrivals.at and not grows,
        simulated=rig.part,
        max_sequences=limits.max_sequences,
        max_tokens=limits.max_tokens,
        n_blocks=limits.n_blocks,
        chunked=limits.chunked,
        tokens_per_pass=limits.tokens_per_pass,
        mean_field=_mean_field(chosen, found, rig, rate),
    )


def _mean_field(chosen: Candidate, found: Summary, rig: Rig, rate: float) -> MeanField:
    """What means say of a deployment that was simulated."""
    pool, server = rig.decode or rig.pool, chosen.server
    return MeanField(
        ttft_s=chosen.ttft_s,
        tpot_s=chosen.tpot_s,
        tpot_at_rate_s=mean_field_tpot_s(
            server.engine,
            chosen.job,
            pool.times,
            rate / server.count,
            pool.limits.max_sequences,
            prefills=chosen.reader is None,
        ),
        ttft_off=chosen.ttft_s / found.ttft_s.mean - 1,
        tpot_off=chosen.tpot_s / found.tpot_s.mean - 1 if found.tpot_s.mean else 0.0,
    )


def largest_rate(
    chosen: Candidate, arrivals: Arrivals, habits: Habits = USUAL
) -> tuple[LargestRate, TrafficEstimate]:
    """The largest rate of a deployment that keeps its bounds, and what requests see at it.

    Raises:
        BadInput: no bound on the first token. NoPlan: no rate keeps them.
    """
    if chosen.job.ttft_s is None:
        raise BadInput(
            "the largest rate needs a bound on the first token: without one, requests may wait for "
            "ever. Write --ttft 500ms."
        )
    rig, slo = rig_of(chosen, arrivals, habits), slo_of(chosen, arrivals)
    start = chosen.job.rate or chosen.most_requests_per_s
    n = max(FEWEST, arrivals.judged) + 2 * rig.around(start)
    traffic = arrivals.requests(chosen.job, start, n, rig.part)
    inside = replace(slo, ttft_s=max(slo.ttft_s - rig.ahead_s, 1e-9))
    found = capacity(traffic, rig.pool, inside, rig.decode, rig.transfer_s_per_token, CAPACITY_STEP)
    rate = found.rate / rig.part
    told = LargestRate(
        rate=rate,
        mean_field_rate=balanced_rate(chosen, rig),
        tried=tuple((r / rig.part, share) for r, share in found.trials),
    )
    return told, replace(estimate(chosen, arrivals, rate, habits), capacity=told)


def balanced_rate(chosen: Candidate, rig: Rig) -> float:
    """Requests per second of full engines: balance alone, without queues."""
    generates, job = rig.decode or rig.pool, chosen.job
    n, prefills = generates.limits.max_sequences, chosen.reader is None
    each = full_batch_tpot_s(chosen.server.engine, job, generates.times, n, prefills=prefills) * (
        job.output or 1
    )
    ends = chosen.server.count * n / each
    if not chosen.reader:
        return ends
    full, _ = prefill_only(chosen.reader.engine, job, 1.0)
    return min(ends, chosen.reader.count * float(full))


def _later(spread: Spread, seconds: float) -> Spread:
    return Spread(**{f.name: getattr(spread, f.name) + seconds for f in fields(Spread)})


def simulate_plan(
    plan: ServingPlan,
    traffic: str | Traffic | Arrivals = "poisson",
    rate: float | None = None,
    *,
    at: float = AT,
    seed: int = 0,
    chunked: bool | None = None,
    paged: bool = True,
    prefix_cache: bool = True,
) -> TrafficEstimate:
    """What requests of a serving plan see: percentiles, waiting, utilisation, goodput.

    Args:
        plan: of `sw.plan(..., sw.Serve(...))`, or loaded.
        traffic: `poisson`, `constant`, `bursty`, `bursty:3`, the path of a recording, or requests
            as a `shardwise.simulate.Traffic`.
        rate: requests per second of the whole deployment; None for the plan's, or the recording's.
        at: share of the requests that must keep the plan's bounds.
        seed: of all chance: the same one gives the same figures.
        chunked: prompts are cut and share passes with decoding; False: passes of whole prompts come
            first; None: as the software does.
        paged, prefix_cache: see `shardwise.simulate.Limits`.

    Raises:
        BadInput: traffic or a rate that cannot be, or a request that no engine has room for;
            BadFile: what is wrong in a recording.
    """
    from shardwise.plan.serving.rebuild import rebuild

    if isinstance(traffic, str):
        arrivals = replace(read_arrivals(traffic, at), seed=seed)
    elif isinstance(traffic, Traffic):
        arrivals = Arrivals(kind="trace", trace=traffic, name="given requests", at=at, seed=seed)
    else:
        arrivals = replace(traffic, at=at, seed=seed)
    _, chosen = rebuild(plan)
    per_s = rate or (arrivals.trace.rate if arrivals.trace else plan.workload.rate)
    if not per_s or not 0 < per_s < math.inf:
        raise BadInput("how many requests arrive is not said. Give rate=, requests per second.")
    if arrivals.trace is None and plan.workload.output is None:
        raise BadInput("the plan has no length of requests: plan with prompt and output.")
    habits = Habits(chunked=chunked, paged=paged, prefix_cache=prefix_cache)
    return estimate(chosen, arrivals, per_s, habits)
