"""What arrives when: arrivals, lengths, and both together.

Every function of chance takes a seeded `numpy.random.Generator`: the same seed, the same traffic.
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
        arrival_s: seconds from the start, never falling; None for a closed loop.
        users: of a closed loop: so many requests at the start, the next whenever one ends.
        think_s: of a closed loop: seconds between an end and the next request.
        prefix, shared: what each prompt has in common with others, and how many tokens of it.

    Raises:
        BadInput: columns of different lengths, or values that cannot be.
    """

    prompt: Array
    output: Array
    arrival_s: Array | None = None
    users: int = 0
    think_s: float = 0.0
    prefix: Sequence[Hashable] | None = None
    shared: Array | None = None

    def __post_init__(self) -> None:
        n, problems = len(self.prompt), []
        for name in ("output", "arrival_s", "prefix", "shared"):
            column = getattr(self, name)
            if column is not None and len(column) != n:
                problems.append(f"{name} has {len(column):,} values, prompt {n:,}.")
        if (self.arrival_s is None) == (self.users < 1):
            problems.append("traffic has either arrival_s or users of a closed loop (at least 1).")
        if self.think_s < 0:
            problems.append(f"think_s {self.think_s} is below 0.")
        raise_all(BadInput, problems)
        low = {"prompt": 1, "output": 1, "arrival_s": 0, "shared": 0}
        raise_all(BadInput, [line for name in low for line in self._low(name, low[name])])

    def _low(self, name: str, low: int) -> list[str]:
        import numpy as np

        column = getattr(self, name)
        if column is None:
            return []
        wrong = np.flatnonzero(~((column >= low) & np.isfinite(column)))
        if len(wrong):
            at = wrong[0]
            return [f"{name} of request {at} is {column[at]}; it must be at least {low}."]
        if name != "arrival_s" and not np.issubdtype(column.dtype, np.integer):
            return [f"{name} holds numbers that are not whole ({column.dtype})."]
        if name == "arrival_s" and (falling := np.flatnonzero(np.diff(column) < 0)).size:
            at = falling[0] + 1
            return [f"arrival_s of request {at} is before that of the one before it."]
        if name == "shared" and (longer := np.flatnonzero(column > self.prompt)).size:
            at = longer[0]
            return [f"shared of request {at} is {column[at]}, its prompt {self.prompt[at]}."]
        return []

    def __len__(self) -> int:
        return len(self.prompt)

    def __iter__(self) -> Iterator[Request]:
        n = len(self)
        arrivals = [0.0] * n if self.arrival_s is None else self.arrival_s.tolist()
        prefixes = [None] * n if self.prefix is None else self.prefix
        shared = [0] * n if self.shared is None else self.shared.tolist()
        columns = (arrivals, self.prompt.tolist(), self.output.tolist(), prefixes, shared)
        return map(Request, range(n), *columns)

    @property
    def rate(self) -> float:
        """Requests a second, from the start to the last arrival.

        Raises:
            BadInput: a closed loop, whose rate is an answer; or all arrive at once.
        """
        if self.arrival_s is None or not len(self) or self.arrival_s[-1] <= 0:
            raise BadInput("only traffic with arrivals at different times has a rate.")
        return len(self) / float(self.arrival_s[-1])

    def at_rate(self, rate: float) -> Traffic:
        """The same requests, `rate` a second on the whole: all times between arrivals scaled.

        Raises:
            BadInput: a rate that cannot be, or traffic without one.
        """
        factor = self.rate / _positive("rate", rate)
        return replace(self, arrival_s=None if self.arrival_s is None else self.arrival_s * factor)


def constant(n: int, rate: float) -> Array:
    """Arrivals at equal distances, in seconds; `rate` a second."""
    import numpy as np

    return np.arange(1, n + 1) / _positive("rate", rate)


def poisson(n: int, rate: float, rng: np.random.Generator) -> Array:
    """Arrivals that know nothing of each other, in seconds."""
    return gamma(n, rate, 1.0, rng)


def gamma(n: int, rate: float, variation: float, rng: np.random.Generator) -> Array:
    """Arrivals whose distances are gamma-distributed, in seconds.

    Args:
        n: how many.
        rate: mean number a second.
        variation: standard deviation over mean of the distances: 1 Poisson, above 1 bursts.
        rng: source of chance.
    """
    shape = 1 / _positive("variation", variation) ** 2
    return rng.gamma(shape, 1 / (shape * _positive("rate", rate)), n).cumsum()


def on_off(n: int, rate: float, on_s: float, off_s: float, rng: np.random.Generator) -> Array:
    """Poisson arrivals in windows of `on_s` seconds, nothing for `off_s` between them.

    `rate` is the mean of the whole, so that inside windows it is higher.
    """
    import numpy as np

    _positive("on_s", on_s)
    inside = poisson(n, rate * (on_s + max(0.0, off_s)) / on_s, rng)
    return inside + np.floor(inside / on_s) * off_s


def fixed(n: int, tokens: int) -> Array:
    """Equal lengths, in tokens."""
    import numpy as np

    return np.full(n, tokens)


def uniform(n: int, low: int, high: int, rng: np.random.Generator) -> Array:
    """Whole lengths from `low` to `high`, both included."""
    if not 1 <= low <= high:
        raise BadInput(f"lengths from {low} to {high}: write 1 <= low <= high.")
    return rng.integers(low, high + 1, n)


def lognormal(
    n: int, mean: float, variation: float, rng: np.random.Generator, most: int = 2**31 - 1
) -> Array:
    """Lengths with a long tail, rounded, from 1 to `most`.

    Args:
        n: how many.
        mean: tokens, before the cut at `most`.
        variation: standard deviation over mean.
        rng: source of chance.
        most: longer ones are cut.
    """
    import numpy as np

    square = np.log1p(_positive("variation", variation) ** 2)
    drawn = rng.lognormal(np.log(_positive("mean", mean)) - square / 2, np.sqrt(square), n)
    return np.clip(np.rint(drawn), 1, most).astype(np.int64)


def drawn(n: int, recorded: Traffic, rng: np.random.Generator) -> tuple[Array, Array]:
    """Pairs of prompt and output lengths, drawn with replacement from recorded ones."""
    at = rng.integers(0, len(recorded), n)
    return recorded.prompt[at], recorded.output[at]


def _positive(name: str, value: float) -> float:
    if not 0 < value < float("inf"):
        raise BadInput(f"{name} {value!r} is not a number above 0.")
    return value
