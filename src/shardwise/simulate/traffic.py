"""Synthetic traffic: arrivals, lengths, and requests made of both.

Random functions take a seeded `numpy.random.Generator`: the same seed gives the same traffic.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shardwise.errors import BadInput, raise_all
from shardwise.simulate.request import Request

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
    """Requests in the order of their arrival.

    Args:
        prompt, output: tokens of each request.
        arrival_s: seconds from the start, in ascending order; None for a closed loop.
        users: of a closed loop: number of requests at the start; each end starts the next one.
        think_s: of a closed loop: seconds between an end and the next request.
        prefix, shared: name of the text that each prompt shares with others, and its tokens.

    Raises:
        BadInput: columns of different lengths, or values out of range.
    """

    prompt: Array
    output: Array
    arrival_s: Array | None = None
    users: int = 0
    think_s: float = 0.0
    prefix: Sequence[Hashable] | None = None
    shared: Array | None = None

    def __post_init__(self) -> None:
        problems = []
        for name in ("output", "arrival_s", "prefix", "shared"):
            column = getattr(self, name)
            if column is not None and len(column) != len(self):
                problems.append(f"{name} has {len(column):,} values, prompt {len(self):,}.")
        if (self.arrival_s is None) == (self.users < 1):
            problems.append("traffic needs either arrival_s or at least 1 user of a closed loop.")
        if self.think_s < 0:
            problems.append(f"think_s must not be negative: {self.think_s}.")
        raise_all(BadInput, problems)
        raise_all(BadInput, problems)
        for name, minimum in (("prompt", 1), ("output", 1), ("arrival_s", 0), ("shared", 0)):
            problem = self._column_problem(name, minimum)
            if problem:
                problems.append(problem)
        raise_all(BadInput, problems)

    def _column_problem(self, name: str, minimum: int) -> str:
        """The first problem of a column, or an empty string."""
        import numpy as np

        column = getattr(self, name)
        if column is None:
            return ""
        invalid = np.flatnonzero(~((column >= minimum) & np.isfinite(column)))
        if len(invalid):
            row = invalid[0]
            return f"{name} of request {row} is {column[row]}; it must be at least {minimum}."
        if name == "arrival_s":
            descending = np.flatnonzero(np.diff(column) < 0)
            if len(descending):
                row = descending[0] + 1
                return f"arrival_s of request {row} is before that of request {row - 1}."
        elif not np.issubdtype(column.dtype, np.integer):
            return f"{name} must have an integer dtype, not {column.dtype}."
        if name == "shared":
            too_long = np.flatnonzero(column > self.prompt)
            if len(too_long):
                row = too_long[0]
                return f"shared of request {row} is {column[row]}, its prompt {self.prompt[row]}."
        return ""

    def __len__(self) -> int:
        return len(self.prompt)

    def __iter__(self) -> Iterator[Request]:
        n = len(self)
        arrivals: Sequence[float] = [0.0] * n
        if self.arrival_s is not None:
            arrivals = self.arrival_s.tolist()
        prefixes: Sequence[Hashable] = [None] * n
        if self.prefix is not None:
            prefixes = self.prefix
        shared: Sequence[int] = [0] * n
        if self.shared is not None:
            shared = self.shared.tolist()
        prompts = self.prompt.tolist()
        return map(Request, range(n), arrivals, prompts, self.output.tolist(), prefixes, shared)

    @property
    def rate(self) -> float:
        """Requests per second, from the start to the last arrival.

        Raises:
            BadInput: a closed loop, whose rate is a result; or all requests arrive at once.
        """
        if self.arrival_s is None or not len(self) or self.arrival_s[-1] <= 0:
            raise BadInput("only traffic with arrivals at different times has a rate.")
        return len(self) / float(self.arrival_s[-1])

    def at_rate(self, rate: float) -> Traffic:
        """Scale the times between arrivals so that `rate` requests arrive per second.

        Raises:
            BadInput: a rate out of range, or traffic without one.
        """
        factor = self.rate / _positive("rate", rate)
        arrival_s: Any = self.arrival_s  # not None, or it has no rate
        return replace(self, arrival_s=arrival_s * factor)


def constant(n: int, rate: float) -> Array:
    """Arrivals at equal intervals, in seconds; `rate` per second."""
    import numpy as np

    return np.arange(1, n + 1) / _positive("rate", rate)


def poisson(n: int, rate: float, rng: np.random.Generator) -> Array:
    """Arrivals of a Poisson process, in seconds."""
    return gamma(n, rate, 1.0, rng)


def gamma(n: int, rate: float, variation: float, rng: np.random.Generator) -> Array:
    """Arrivals with gamma-distributed intervals, in seconds.

    Args:
        n: number of arrivals.
        rate: mean arrivals per second.
        variation: standard deviation over mean of the intervals: 1 Poisson, above 1 bursts.
        rng: random generator.
    """
    shape = 1 / _positive("variation", variation) ** 2
    return rng.gamma(shape, 1 / (shape * _positive("rate", rate)), n).cumsum()


def on_off(n: int, rate: float, on_s: float, off_s: float, rng: np.random.Generator) -> Array:
    """Poisson arrivals in windows of `on_s` seconds, with gaps of `off_s` seconds between them.

    `rate` is the mean over windows and gaps, so that it is higher inside the windows.
    """
    import numpy as np

    _positive("on_s", on_s)
    window_s = poisson(n, rate * (on_s + max(0.0, off_s)) / on_s, rng)
    return window_s + np.floor(window_s / on_s) * off_s


def fixed(n: int, tokens: int) -> Array:
    """Equal lengths, in tokens."""
    import numpy as np

    return np.full(n, tokens)


def uniform(n: int, low: int, high: int, rng: np.random.Generator) -> Array:
    """Uniformly distributed integer lengths from `low` to `high`, both included."""
    if not 1 <= low <= high:
        raise BadInput(f"lengths from {low} to {high}: write 1 <= low <= high.")
    return rng.integers(low, high + 1, n)


def lognormal(
    n: int, mean: float, variation: float, rng: np.random.Generator, maximum: int = 2**31 - 1
) -> Array:
    """Log-normally distributed lengths, rounded and clipped to [1, `maximum`].

    Args:
        n: number of lengths.
        mean: tokens, before clipping.
        variation: standard deviation over mean.
        rng: random generator.
        maximum: longest length, in tokens.
    """
    import numpy as np

    variance = np.log1p(_positive("variation", variation) ** 2)
    lengths = rng.lognormal(np.log(_positive("mean", mean)) - variance / 2, np.sqrt(variance), n)
    return np.clip(np.rint(lengths), 1, maximum).astype(np.int64)


def resample(n: int, recorded: Traffic, rng: np.random.Generator) -> tuple[Array, Array]:
    """Pairs of prompt and output lengths, sampled with replacement from recorded ones."""
    rows = rng.integers(0, len(recorded), n)
    return recorded.prompt[rows], recorded.output[rows]


def _positive(name: str, value: float) -> float:
    if not 0 < value < float("inf"):
        raise BadInput(f"{name} must be above 0 and finite, not {value!r}.")
    return value
