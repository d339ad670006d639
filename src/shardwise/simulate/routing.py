"""Which of several equal engines, or of an engine's pools, serves a request."""

from __future__ import annotations

from collections.abc import Sequence


def least_loaded(outstanding: Sequence[int], cached: Sequence[int] | None = None) -> int:
    """Index of the one with most of the request's prompt in its cache, then the fewest requests.

    Args:
        outstanding: number of requests that wait or run in each.
        cached: tokens of the prompt in the cache of each that is to be preferred for them; None
            if no caches are compared.

    >>> least_loaded([3, 1, 1])
    1
    >>> least_loaded([3, 1, 1], [64, 0, 0])
    0
    """
    hits = cached or [0] * len(outstanding)
    return min(range(len(outstanding)), key=lambda i: (-hits[i], outstanding[i]))
