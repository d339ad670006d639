"""A deployment with other numbers of engines, and by how many its number grows."""

from __future__ import annotations

import math
from dataclasses import replace

from shardwise.estimate.serving.steady_state import colocated, decode_only, prefill_only
from shardwise.hardware import System
from shardwise.search.serving.candidate import Candidate, Server
from shardwise.search.serving.closed_loop import with_filled_batch
from shardwise.search.serving.deployments import MAX_LOAD
from shardwise.search.serving.legal import BATCH_GRID
from shardwise.search.serving.nodes import occupied

PRICE_STEP = 1.03  # prices within this factor count as equal
GROWTH_SHARE = 0.1  # engines to add first, as a share of those present; then twice as many, ...


def engine_counts(candidate: Candidate) -> tuple[int, int]:
    """(number of decode engines, number of separate prefill engines)."""
    return candidate.server.count, candidate.n_prefill


def engines_to_add(n_engines: int, n_growths: int) -> int:
    """Number of engines to add to `n_engines`, more after several growths; at least one."""
    return max(1, round(GROWTH_SHARE * n_growths * n_engines))


def price_level(chips: int) -> int:
    return math.floor(math.log(chips) / math.log(PRICE_STEP))


def chips_to_next_price(chips: int) -> int:
    """Number of chips to add to `chips` for the next price level."""
    return math.ceil(PRICE_STEP ** (price_level(chips) + 1)) - chips


def resized(
    candidate: Candidate, n_decode: int, n_prefill: int, rate: float, machine: System | None
) -> Candidate:
    """The deployment with other numbers of engines, and the smallest batch that serves the load.

    Args:
        rate: requests per second; of no use for users in a closed loop, who make their own.
        machine: the machine that was given; None if the number of chips is free.
    """
    server = replace(candidate.server, count=n_decode)
    users = candidate.job.users
    n_chips = n_decode * server.n_chips
    prefill_server = None
    busy = 0.0
    if candidate.prefill_server:
        prefill_server = replace(candidate.prefill_server, count=n_prefill)
        n_chips += n_prefill * prefill_server.n_chips
        prefill_rate, _ = prefill_only(prefill_server.engine, prefill_server.job, 1.0)
        if users:
            rate = candidate.requests_per_s
        busy = min(MAX_LOAD, rate / (n_prefill * float(prefill_rate)))
    if machine:
        n_chips = int(occupied(machine, n_chips, server.n_chips))
    batch = candidate.batch
    if not (candidate.job.batch or users):
        batch = _smallest_batch(server, rate, prefills=prefill_server is None)
    deployment = replace(
        candidate,
        server=server,
        prefill_server=prefill_server,
        chips=n_chips,
        prefill_busy=busy,
        batch=batch,
    )
    return with_filled_batch(deployment)


def _smallest_batch(server: Server, rate: float, *, prefills: bool) -> int:
    """The smallest batch that serves the rate; the largest that fits if none does."""
    import numpy as np

    unit = server.batch_unit
    batches = np.array(BATCH_GRID) * unit
    batches = batches[batches <= max(unit, server.max_batch)]
    steady_state = colocated if prefills else decode_only
    steady = steady_state(server.engine, server.job, batches)
    is_enough = steady.requests_per_s * server.count * MAX_LOAD >= rate
    if not is_enough.any():
        return int(batches[-1])
    return int(batches[is_enough.argmax()])
