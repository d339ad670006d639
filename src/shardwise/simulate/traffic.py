"""Traffic: request arrivals, prompt and output lengths, and generators for both.

Random functions take a `numpy.random.Generator`; equal seeds give equal traffic.
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
    """Requests in the order of their arrival, one array element each.

    Requests arrive at given times, or in a closed loop: a fixed number of users each send their
    next request when the previous one has ended.

    Args:
        prompt, output: tokens of each prompt and of each answer.
        arrival_s: seconds from the start of the run, ascending; None for a closed loop.
        users: number of users in a closed loop; 0 with arrival times.
        think_s: seconds that a user of a closed loop waits before the next request.
        prefix: name of the text that a prompt starts with, equal for prompts that share it, or its
            `PrefixBlocks`; None for no shared text.
        shared: length of that text in tokens.

    Raises:
        BadInput: arrays have different lengths, or values are out of range.
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
        for name, minimum in (("prompt", 1), ("output", 1), ("arrival_s", 0), ("shared", 0)):
            problem = self._column_problem(name, minimum)
            if problem:
                problems.append(problem)
        raise_all(BadInput, problems)

    def _column_problem(self, name: str, minimum: int) -> str:
        """Return a message about the first invalid value of a column, "" if all are valid."""
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
        """Mean arrivals per second, from the start of the run to the last arrival.

        Raises:
            BadInput: the traffic is a closed loop, or all requests arrive at the start.
        """
        if self.arrival_s is None or not len(self) or self.arrival_s[-1] <= 0:
            raise BadInput("only traffic with arrivals at different times has a rate.")
        return len(self) / float(self.arrival_s[-1])

    def at_rate(self, rate: float) -> Traffic:
        """Scale the times between arrivals so that `rate` requests arrive per second.

        Raises:
            BadInput: `rate` is not above 0 and finite, or the traffic has no rate.
        """
        factor = self.rate / _positive("rate", rate)
        arrival_s: Any = self.arrival_s  # not None: `self.rate` has checked that
        return replace(self, arrival_s=arrival_s * factor)


def constant(n: int, rate: float) -> Array:
    """Return n arrival times in seconds, at equal intervals of 1 / `rate`."""
    import numpy as np

    return np.arange(1, n + 1) / _positive("rate", rate)


def poisson(n: int, rate: float, rng: np.random.Generator) -> Array:
    """Return n arrival times of a Poisson process in seconds, with `rate` arrivals per second."""
    return gamma(n, rate, 1.0, rng)


def gamma(n: int, rate: float, variation: float, rng: np.random.Generator) -> Array:
    """Return arrival times in seconds whose intervals are gamma-distributed.

    Args:
        rate: mean arrivals per second.
        variation: standard deviation of the intervals divided by their mean. 1 gives a Poisson
            process, values above 1 bursts.
        rng: random generator.
    """
    shape = 1 / _positive("variation", variation) ** 2
    return rng.gamma(shape, 1 / (shape * _positive("rate", rate)), n).cumsum()


def fixed(n: int, tokens: int) -> Array:
    """Return n equal lengths, in tokens."""
    import numpy as np

    return np.full(n, tokens)


def uniform(n: int, low: int, high: int, rng: np.random.Generator) -> Array:
    """Return n uniformly distributed lengths from `low` to `high` tokens, both included."""
    if not 1 <= low <= high:
        raise BadInput(f"lengths from {low} to {high}: write 1 <= low <= high.")
    return rng.integers(low, high + 1, n)


def lognormal(
    n: int, mean: float, variation: float, rng: np.random.Generator, maximum: int = 2**31 - 1
) -> Array:
    """Return log-normally distributed lengths, rounded and clipped to [1, `maximum`].

    Args:
        mean: mean tokens, before clipping.
        variation: standard deviation divided by the mean.
        rng: random generator.
        maximum: longest length, in tokens.
    """
    import numpy as np

    variance = np.log1p(_positive("variation", variation) ** 2)
    lengths = rng.lognormal(np.log(_positive("mean", mean)) - variance / 2, np.sqrt(variance), n)
    return np.clip(np.rint(lengths), 1, maximum).astype(np.int64)


def _positive(name: str, value: float) -> float:
    if not 0 < value < float("inf"):
        raise BadInput(f"{name} must be above 0 and finite, not {value!r}.")
    return value
