"""Arrivals of requests at a deployment: random, at constant intervals, or from a recording."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.errors import BadInput, nearest
from shardwise.plan.serving.recording import (
    busiest_part,
    one_by_one,
    part_of,
    prefix_hit_share,
    repeat,
    sample,
)
from shardwise.simulate import Traffic, read_trace
from shardwise.simulate.traffic import constant, fixed, gamma, uniform
from shardwise.workload import Serve

if TYPE_CHECKING:
    import numpy as np

    from shardwise.simulate.traffic import Array

KINDS = ("poisson", "bursty", "constant")
CLOSED = "closed"  # kind of the requests of users who each wait for the answer
# Default coefficient of variation of bursty inter-arrival times. It lies between 1, that of Poisson
# arrivals, and 4, which AlpaServe (arXiv 2302.11665) uses most often.
BURSTY_VARIATION = 2.0
MAX_VARIATION = 20.0
DEFAULT_AT = 0.99  # share of requests within the bounds, as in MLPerf Inference's server scenario
N_BEYOND = 20  # judged requests above the percentile, so that it is no random outlier
MIN_JUDGED = 500
MAX_JUDGED = 10_000
# Work of simulating a recording, see `recording.busiest_part`; of a longer one, its busiest part.
MAX_TRACE_WORK = 20_000.0
MIN_BUSIEST = 400  # requests of `Arrivals.busiest`
MAX_IDLE = 1000  # of `Arrivals.idle`
# Share by which equal answers to users in a closed loop are varied up and down: that of InferenceX,
# whose lengths are 0.8 to 1 of a nominal one.
OUTPUT_VARIATION = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """How requests arrive, and the share of them that must meet the bounds.

    Args:
        kind: one of `KINDS`; `CLOSED` for the users of the job; or "trace" for a recording.
        variation: coefficient of variation of inter-arrival times: 1 for Poisson, 0 for constant
            and for users.
        prompt, output: shortest and longest prompts and outputs, between which lengths are drawn
            uniformly; None for lengths that are all those of the job.
        trace: the recorded requests, with their lengths and shared prefixes.
        name: file name of the recording.
        once: whether a recording that is too short for the percentile is not repeated.
        at: share of the requests that must meet the bounds.
        seed: seed of the random numbers.

    Raises:
        BadInput: `at` or `variation` is out of range.
    """

    kind: str = "poisson"
    variation: float = 1.0
    prompt: tuple[int, int] | None = None
    output: tuple[int, int] | None = None
    trace: Traffic | None = None
    name: str = ""
    once: bool = False
    at: float = DEFAULT_AT
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.at < 1:
            raise BadInput(f"at {self.at:g} is not a share between 0 and 1.")
        if not 0 <= self.variation <= MAX_VARIATION:
            raise BadInput(f"variation {self.variation:g} is not between 0 and {MAX_VARIATION:g}.")

    @property
    def is_closed_loop(self) -> bool:
        """Whether users send the next request when the previous one has ended."""
        return self.kind == CLOSED

    @property
    def n_judged(self) -> int:
        """Number of requests whose latencies are judged; others only fill and drain the engines."""
        return min(MAX_JUDGED, max(MIN_JUDGED, math.ceil(N_BEYOND / (1 - self.at))))

    @property
    def judges_whole_trace(self) -> bool:
        """Whether the recording is long enough to be simulated once; a shorter one is repeated."""
        return self.trace is not None and (self.once or len(self.trace) >= self.n_judged)

    @property
    def part(self) -> tuple[int, int] | None:
        """The simulated part of a long recording: its first request and the one after its last.

        None if all requests are simulated.
        """
        if self.trace is None:
            return None
        first, end = busiest_part(self.trace, MAX_TRACE_WORK, self.n_judged)
        return (first, end) if end - first < len(self.trace) else None

    @property
    def simulated(self) -> Traffic | None:
        """The recorded requests that are simulated."""
        if self.trace is None or self.part is None:
            return self.trace
        return part_of(self.trace, *self.part)

    def busiest(self) -> Arrivals:
        """The busiest part of a recording, in which most requests miss their bounds."""
        trace = self.simulated
        if trace is None:
            return self
        first, end = busiest_part(trace, MAX_TRACE_WORK / 20, MIN_BUSIEST)
        return replace(self, trace=part_of(trace, first, end), once=True)

    def idle(self) -> Arrivals:
        """Some of the recorded requests, one by one, so that none waits for another."""
        trace = self.simulated
        if trace is None:
            return self
        return replace(self, trace=one_by_one(trace, MAX_IDLE), once=True)

    def max_context(self, job: Serve) -> int:
        """Tokens of the longest request, prompt and output."""
        trace = self.simulated
        if trace is not None:
            return int((trace.prompt + trace.output).max())
        if self.is_closed_loop:
            return max(self.prompt or (job.prompt_tokens,)) + max(self.output_of_users(job))
        if self.prompt or self.output:
            longest_prompt = max(self.prompt or (job.prompt_tokens,))
            return longest_prompt + max(self.output or (job.output or 1,))
        return job.context

    def mean_job(self, job: Serve) -> Serve:
        """The job with the recording's mean lengths, share of prefix-cache hits, and rate."""
        trace = self.simulated
        if trace is None:
            return job
        return replace(
            job,
            context=0,
            prompt=round(float(trace.prompt.mean())),
            output=round(float(trace.output.mean())),
            cached=prefix_hit_share(trace, warm=not self.judges_whole_trace),
            rate=job.rate or trace.rate,
        )

    def requests(self, job: Serve, rate: float, n: int, simulated_share: float = 1.0) -> Traffic:
        """Make `n` requests for the simulated engines; of a long recording, all of them.

        Args:
            job: lengths of the requests, if there is no recording.
            rate: requests per second of the whole deployment.
            simulated_share: share of the deployment's engines that is simulated; they get this
                share of the requests.
        """
        import numpy as np

        rng = np.random.default_rng(self.seed)
        trace = self.simulated
        if trace is not None:
            if not self.judges_whole_trace:
                trace = repeat(trace, n / simulated_share)
            return sample(trace.at_rate(rate), simulated_share, rng)
        # Bursts are drawn for all engines, then sampled: each engine gets its part of every burst.
        is_bursty = self.variation > 1
        if is_bursty:
            n = math.ceil(n / simulated_share)
        else:
            rate *= simulated_share
        arrival_s = gamma(n, rate, self.variation, rng) if self.variation else constant(n, rate)
        prompt = _lengths(n, self.prompt, job.prompt_tokens, rng)
        output = _lengths(n, self.output, job.output or 1, rng)
        prefix, shared = _shared_prefix(job, prompt)
        traffic = Traffic(
            arrival_s=arrival_s, prompt=prompt, output=output, prefix=prefix, shared=shared
        )
        return sample(traffic, simulated_share, rng) if is_bursty else traffic

    def output_of_users(self, job: Serve) -> tuple[int, int]:
        """Shortest and longest answer to users in a closed loop."""
        tokens = job.output or 1
        variation = round(OUTPUT_VARIATION * tokens)
        return self.output or (tokens - variation, tokens + variation)

    def requests_of_users(self, job: Serve, n_users: int, n: int, overhead_s: float) -> Traffic:
        """Make `n` requests of users in a closed loop.

        Of their first answers, users wait for a part, and equal answers are varied: users that ask
        at the same time would otherwise do so for ever.

        Args:
            job: lengths of the requests.
            overhead_s: seconds that a request spends in the server before it reaches the engine.
        """
        import numpy as np

        rng = np.random.default_rng(self.seed)
        prompt = _lengths(n, self.prompt, job.prompt_tokens, rng)
        output = uniform(n, *self.output_of_users(job), rng)
        output[:n_users] = rng.integers(1, output[:n_users] + 1)
        prefix, shared = _shared_prefix(job, prompt)
        return Traffic(
            prompt=prompt,
            output=output,
            users=n_users,
            think_s=overhead_s,
            prefix=prefix,
            shared=shared,
        )


def _shared_prefix(job: Serve, prompt: Array) -> tuple[list[str] | None, Array | None]:
    """Name and length of the text that all prompts share, by the job's share of cached tokens."""
    import numpy as np

    shared = int(job.prompt_tokens * job.cached)
    if not shared:
        return None, None
    return ["all"] * len(prompt), np.minimum(prompt, shared)


def _lengths(
    n: int, limits: tuple[int, int] | None, tokens: int, rng: np.random.Generator
) -> Array:
    """Lengths between the limits, or all of `tokens` tokens."""
    return uniform(n, *limits, rng) if limits else fixed(n, tokens)


CLOSED_LOOP = Arrivals(kind=CLOSED, variation=0.0)


def closed_loop(users: int | None, at: float = DEFAULT_AT) -> Arrivals:
    """The requests of users who each wait for the answer before they ask again.

    Raises:
        BadInput: there are no users.
    """
    if not users:
        raise BadInput("a closed loop needs users: sw.Serve(..., users=64).")
    return replace(CLOSED_LOOP, at=at)


def is_recording(text: str) -> bool:
    """Whether a kind of traffic is the path of recorded requests."""
    return Path(text).suffix in (".csv", ".jsonl")


def read_arrivals(text: str, at: float = DEFAULT_AT) -> Arrivals:
    """Read `poisson`, `bursty`, `bursty:3`, `constant`, or the path of a recording.

    >>> read_arrivals("bursty:3").variation
    3.0

    Raises:
        BadInput: an unknown kind, or a variation out of range.
        BadFile: the recording cannot be read.
    """
    kind, colon, number = text.strip().partition(":")
    if is_recording(text):
        return Arrivals(kind="trace", trace=read_trace(text), name=Path(text).name, at=at)
    if kind not in KINDS or (colon and kind != "bursty"):
        raise BadInput(
            f'unknown traffic "{text}". {nearest(kind, KINDS)} Or the path of a .csv or .jsonl.'
        )
    if kind != "bursty":
        return Arrivals(kind=kind, variation=float(kind == "poisson"), at=at)
    variation = BURSTY_VARIATION
    if colon:
        try:
            variation = float(number)
        except ValueError:
            variation = math.nan
    if not 1 < variation <= MAX_VARIATION:
        raise BadInput(
            f'"{text}": the coefficient of variation of bursty arrivals is above 1 (Poisson) and '
            f"at most {MAX_VARIATION:g}. Write bursty:{BURSTY_VARIATION:g}."
        )
    return Arrivals(kind=kind, variation=variation, at=at)
