"""The batch that the users of a closed loop fill: a fixed point of latency and throughput."""

from __future__ import annotations

from dataclasses import replace

from shardwise.search.serving.candidate import Candidate


def with_filled_batch(candidate: Candidate) -> Candidate:
    """The deployment with the smallest batch that has room for the decoding requests of its users.

    By Little's law, N users make N / (TTFT + (output - 1) x TPOT) requests per second. Those that
    decode are the rate times the time that they decode; the larger the batch, the longer that is.
    If no batch that fits in memory has room for all, it is the largest that fits. A batch that the
    job states is kept.
    """
    server = candidate.server
    job = candidate.job
    if job.batch or not job.users:
        return candidate

    def filled(units: int) -> Candidate:
        return replace(candidate, batch=units * server.batch_unit)

    low = 0
    high = max(1, server.max_batch // server.batch_unit)
    while high - low > 1:
        middle = (low + high) // 2
        if _decoding(filled(middle)) <= middle * server.batch_unit:
            high = middle
        else:
            low = middle
    return filled(high)


def _decoding(candidate: Candidate) -> float:
    """Mean number of requests that decode in one engine at the same time."""
    output = candidate.job.output or 1
    return candidate.requests_per_s / candidate.server.count * output * candidate.tpot_s
