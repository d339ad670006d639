"""How many engines of a deployment are simulated, with the same share of its requests."""

from __future__ import annotations

from collections.abc import Iterator

# Most decode engines, and prefill engines, to simulate: too few make latencies rather too long.
MAX_ENGINES = 8
MAX_LARGE_BATCH_ENGINES = 4  # the same if an engine's batch is above `LARGE_BATCH`
LARGE_BATCH = 128
MAX_SEQUENCES = 8192  # in the simulated engines, if several are simulated
# A share of 1 decode engine in 10 with 1 prefill engine in 50 would give the latter five times the
# load that they have. Above this ratio of both shares, more engines of one kind are simulated.
MAX_IMBALANCE = 1.1
MAX_UNEVEN_ENGINES = 64  # of that kind

Counts = tuple[int, int]


def engines_to_simulate(n_decode: int, n_prefill: int, batch: int = 1) -> tuple[int, int, float]:
    """(number of decode engines, number of prefill engines, share of the requests) to simulate.

    If the simulated shares of decode and prefill engines differ, the requests get the larger share,
    so no engine has less load than in the whole deployment.

    Args:
        batch: sequences that decode at once in an engine.

    >>> engines_to_simulate(3, 0), engines_to_simulate(26, 0)[0], engines_to_simulate(9, 17)[:2]
    ((3, 0, 1.0), 8, (4, 8))
    >>> engines_to_simulate(135, 3380)[:2]
    (2, 50)
    """
    most = MAX_LARGE_BATCH_ENGINES if batch > LARGE_BATCH else MAX_ENGINES
    most_by_batch = MAX_SEQUENCES // max(batch, 1) or 1
    most = min(most, most_by_batch)
    if not n_prefill:
        n = min(n_decode, most)
        return n, 0, n / n_decode
    if max(n_decode, n_prefill) <= most:
        return n_decode, n_prefill, 1.0
    whole = (n_decode, n_prefill)
    counts = _most_even(whole, (most, most))
    if _imbalance(whole, counts) > MAX_IMBALANCE:
        limits = (most, MAX_UNEVEN_ENGINES)
        if n_decode > n_prefill:
            limits = (max(most, min(MAX_UNEVEN_ENGINES, most_by_batch)), most)
        counts = _most_even(whole, limits)
    return *counts, max(_shares(whole, counts))


def _most_even(whole: Counts, limits: Counts) -> Counts:
    """The numbers of engines up to `limits` whose shares differ least; of these, the largest."""
    return min(
        _all_counts(whole, limits), key=lambda counts: (_imbalance(whole, counts), -counts[0])
    )


def _all_counts(whole: Counts, limits: Counts) -> Iterator[Counts]:
    for n_decode in range(1, min(whole[0], limits[0]) + 1):
        for n_prefill in range(1, min(whole[1], limits[1]) + 1):
            yield n_decode, n_prefill


def _imbalance(whole: Counts, counts: Counts) -> float:
    """The larger share of engines over the smaller one."""
    shares = _shares(whole, counts)
    return max(shares) / min(shares)


def _shares(whole: Counts, counts: Counts) -> tuple[float, float]:
    """Simulated share of the decode engines, and of the prefill engines."""
    return counts[0] / whole[0], counts[1] / whole[1]
