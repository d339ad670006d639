"""What arrives at a planned deployment: by chance, at equal distances, or as it was recorded."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.errors import BadInput, nearest
from shardwise.simulate import Traffic, read_trace
from shardwise.simulate.planned import BLOCK_TOKENS
from shardwise.simulate.traffic import constant, fixed, gamma
from shardwise.workload import Serve

if TYPE_CHECKING:
    import numpy as np

    from shardwise.simulate.traffic import Array

KINDS = ("poisson", "bursty", "constant")
# Deviation over mean of the distances of bursty arrivals where none is given. AlpaServe
# (arXiv 2302.11665) takes 1 to 8 and 4 as a rule; 2 is between it and Poisson.
BURSTY = 2.0
LARGEST_VARIATION = 20.0
AT = 0.99  # share of the requests that keep the bounds, as MLPerf Inference's server scenario asks
# Requests beyond the percentile, so that it is no accident, and bounds on the number of all.
BEYOND, FEWEST, MOST = 20, 500, 10_000
LONGEST_TRACE = 20_000  # requests of a recording that are simulated


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """What arrives, and how many of the requests must keep the bounds.

    Args:
        kind: one of `KINDS`, or "trace".
        variation: deviation over mean of the times between arrivals: 1 Poisson, 0 constant.
        trace: recorded requests, with their lengths and shared prefixes.
        name: the file that they come from.
        at: share of the requests.
        seed: of all chance.

    Raises:
        BadInput: for a share or a variation that cannot be.
    """

    kind: str = "poisson"
    variation: float = 1.0
    trace: Traffic | None = None
    name: str = ""
    at: float = AT
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.at < 1:
            raise BadInput(f"at {self.at:g} is not a share between 0 and 1.")
        if not 0 <= self.variation <= LARGEST_VARIATION:
            raise BadInput(
                f"variation {self.variation:g} is not between 0 and {LARGEST_VARIATION:g}."
            )

    @property
    def judged(self) -> int:
        """Requests that are drawn and judged."""
        return min(MOST, max(FEWEST, math.ceil(BEYOND / (1 - self.at))))

    @property
    def whole(self) -> bool:
        """Whether a recording is long enough to be judged as it is; a shorter one is repeated."""
        return self.trace is not None and len(self.trace) >= self.judged

    def asked_of(self, job: Serve) -> Serve:
        """The job with the means of the recording: lengths, what a prefix cache has, the rate."""
        if self.trace is None:
            return job
        trace = self.trace
        return replace(
            job,
            context=0,
            prompt=round(float(trace.prompt.mean())),
            output=round(float(trace.output.mean())),
            cached=shared_share(trace, again=not self.whole),
            rate=job.rate or trace.rate,
        )

    def requests(self, job: Serve, rate: float, n: int, part: float = 1.0) -> Traffic:
        """`n` requests, or all of a long recording, at `rate` a second in all.

        Args:
            part: share of them that reaches the engines which are simulated.
        """
        import numpy as np

        rng = np.random.default_rng(self.seed)
        if self.trace is not None:
            longer = _first(self.trace) if self.whole else _repeated(self.trace, n / part)
            return _some(longer.at_rate(rate), part, rng)
        prompt, output = job.prompt_tokens, job.output or 1
        shared = int(prompt * job.cached)
        # Bursts are drawn for all engines and thinned: one engine sees its part of them.
        bursty = self.variation > 1
        n, rate = (math.ceil(n / part), rate) if bursty else (n, rate * part)
        arrival_s = gamma(n, rate, self.variation, rng) if self.variation else constant(n, rate)
        every = Traffic(
            arrival_s=arrival_s,
            prompt=fixed(n, prompt),
            output=fixed(n, output),
            prefix=["all"] * n if shared else None,
            shared=fixed(n, shared) if shared else None,
        )
        return _some(every, part, rng) if bursty else every


def read_arrivals(text: str, at: float = AT) -> Arrivals:
    """`poisson`, `bursty`, `bursty:3`, `constant`, or the path of a recording.

    >>> read_arrivals("bursty:3").variation
    3.0

    Raises:
        BadInput: no such kind, or a variation that cannot be; BadFile: what is wrong in a file.
    """
    word, colon, value = text.strip().partition(":")
    if Path(text).suffix in (".csv", ".jsonl"):
        return Arrivals(kind="trace", trace=read_trace(text), name=Path(text).name, at=at)
    if word not in KINDS or (colon and word != "bursty"):
        raise BadInput(
            f'unknown traffic "{text}". {nearest(word, KINDS)} Or the path of a .csv or .jsonl.'
        )
    if word != "bursty":
        return Arrivals(kind=word, variation=1.0 if word == "poisson" else 0.0, at=at)
    try:
        variation = float(value) if colon else BURSTY
    except ValueError:
        variation = math.nan
    if not 1 < variation <= LARGEST_VARIATION:
        raise BadInput(
            f'"{text}": the deviation of bursty arrivals over their mean is above 1 (Poisson) and '
            f"at most {LARGEST_VARIATION:g}. Write bursty:{BURSTY:g}."
        )
    return Arrivals(kind=word, variation=variation, at=at)


def shared_share(trace: Traffic, *, again: bool = False) -> float:
    """Share of all prompt tokens that a prefix cache has, if nothing is ever evicted.

    Whole blocks of a prefix are found by every request but the first one that brings them.

    Args:
        again: the recording was served before.
    """
    import numpy as np

    if trace.prefix is None or trace.shared is None:
        return 0.0
    known: dict[object, int] = {}
    found = 0
    wholes = np.minimum(trace.shared, trace.prompt - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    for _ in range(2 if again else 1):
        found = 0
        for name, whole in zip(trace.prefix, wholes.tolist(), strict=True):
            if name is not None:
                found += min(whole, known.get(name, 0))
                known[name] = max(whole, known.get(name, 0))
    return found / float(trace.prompt.sum())


def _first(trace: Traffic) -> Traffic:
    import numpy as np

    return _take(trace, np.arange(LONGEST_TRACE)) if len(trace) > LONGEST_TRACE else trace


def _repeated(trace: Traffic, n: float) -> Traffic:
    """The recording again and again, a mean distance between its end and its start."""
    import numpy as np

    times = np.arange(max(1, math.ceil(n / len(trace))))
    period_s = len(trace) / trace.rate * len(trace) / max(1, len(trace) - 1)
    arrival_s = np.asarray(trace.arrival_s)
    rows = np.tile(np.arange(len(trace)), len(times))
    return _take(trace, rows, (times[:, None] * period_s + arrival_s).ravel())


def _some(traffic: Traffic, part: float, rng: np.random.Generator) -> Traffic:
    """Requests chosen by chance, one of `1 / part`; one at least."""
    if part >= 1:
        return traffic
    kept = rng.random(len(traffic)) < part
    kept[0] |= not kept.any()
    return _take(traffic, kept.nonzero()[0])


def _take(traffic: Traffic, rows: Array, arrival_s: Array | None = None) -> Traffic:
    """Some requests, or some of them several times, at their own times or at others."""
    prefix, shared, own = traffic.prefix, traffic.shared, traffic.arrival_s
    if arrival_s is None and own is not None:
        arrival_s = own[rows]
    return replace(
        traffic,
        prompt=traffic.prompt[rows],
        output=traffic.output[rows],
        arrival_s=arrival_s,
        prefix=None if prefix is None else [prefix[i] for i in rows],
        shared=None if shared is None else shared[rows],
    )
