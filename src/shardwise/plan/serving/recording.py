"""A recording of requests: its busiest part, copies, samples, and its hits in a prefix cache."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING

from shardwise.simulate import Traffic
from shardwise.simulate.planned import BLOCK_TOKENS
from shardwise.simulate.request import PrefixBlocks
from shardwise.simulate.traffic import constant

if TYPE_CHECKING:
    import numpy as np

    from shardwise.simulate.traffic import Array

# Tokens of shared prefixes that take as long to simulate as the rest of a request, by their blocks.
SHARED_TOKENS = 1000


def busiest_part(trace: Traffic, most_work: float, n_least: int) -> tuple[int, int]:
    """(first, number after the last) of the consecutive requests with the most tokens per second.

    Args:
        trace: the requests in order of arrival.
        most_work: work of a simulation: 1 for a request, and 1 for each `SHARED_TOKENS`.
        n_least: number of requests, even if they are more work.
    """
    import numpy as np

    n = len(trace)
    shared = np.zeros(n) if trace.shared is None else trace.shared
    work = np.r_[0.0, (1 + shared / SHARED_TOKENS).cumsum()]
    firsts = np.arange(n)
    stops = np.searchsorted(work, work[firsts] + most_work, side="right") - 1
    stops = np.minimum(np.maximum(stops, firsts + max(2, n_least)), n)
    if stops[0] == n:
        return 0, n
    is_whole = firsts <= int((stops < n).sum())  # later ones are ends of the recording, and shorter
    tokens = np.r_[0, (trace.prompt + trace.output).cumsum()]
    arrival_s = np.asarray(trace.arrival_s)
    seconds = np.maximum(arrival_s[stops - 1] - arrival_s[firsts], 1e-9)
    first = int(np.where(is_whole, (tokens[stops] - tokens[firsts]) / seconds, 0.0).argmax())
    return first, int(stops[first])


def part_of(trace: Traffic, first: int, end: int) -> Traffic:
    """The requests from `first` to before `end`, the first of them at 0 s."""
    import numpy as np

    if (first, end) == (0, len(trace)):
        return trace
    arrival_s = np.asarray(trace.arrival_s)[first:end]
    return requests_at(trace, np.arange(first, end), arrival_s - arrival_s[0])


def prefix_hits(trace: Traffic, *, warm: bool = False) -> Array:
    """Prompt tokens of each request that hit a prefix cache which never evicts.

    A request reuses those whole blocks of its prefix that earlier requests have computed.

    Args:
        trace: the requests in order of arrival.
        warm: whether the cache has the texts with a name from the start, as in a repetition.
    """
    import numpy as np

    if trace.prefix is None or trace.shared is None:
        return np.zeros(len(trace), dtype=np.int64)
    block_tokens = np.minimum(trace.shared, trace.prompt - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    n_cached: dict[object, int] = {}
    if warm:
        for prefix, n_tokens in zip(trace.prefix, block_tokens.tolist(), strict=True):
            if not isinstance(prefix, PrefixBlocks):
                n_cached[prefix] = max(n_tokens, n_cached.get(prefix, 0))
    hits = []
    for prefix, n_tokens in zip(trace.prefix, block_tokens.tolist(), strict=True):
        n_reused = 0
        if isinstance(prefix, PrefixBlocks):
            n_reused = prefix.first_tokens_in(n_cached)
            n_cached.update(dict.fromkeys(prefix.ids, prefix.block_tokens))
        elif prefix is not None:
            n_reused = n_cached.get(prefix, 0)
            n_cached[prefix] = max(n_tokens, n_reused)
        hits.append(min(n_tokens, n_reused))
    return np.array(hits)


def prefix_hit_share(trace: Traffic, *, warm: bool = False) -> float:
    """Share of all prompt tokens that hit a prefix cache, see `prefix_hits`."""
    return float(prefix_hits(trace, warm=warm).sum() / trace.prompt.sum())


def one_by_one(trace: Traffic, n: int) -> Traffic:
    """At most `n` requests, evenly taken, at equal intervals, each with its fresh tokens alone."""
    rows = slice(None, None, math.ceil(len(trace) / n))
    fresh = (trace.prompt - prefix_hits(trace))[rows]
    return Traffic(arrival_s=constant(len(fresh), 1.0), prompt=fresh, output=trace.output[rows])


def repeat(trace: Traffic, n: float) -> Traffic:
    """Repeat a recording to `n` requests, with a mean inter-arrival time between two copies.

    Texts with a name, such as instructions to the model, stay; the blocks of each copy are its own:
    those of the copy before would all be found in the cache.
    """
    import numpy as np

    n_copies = max(1, math.ceil(n / len(trace)))
    period_s = len(trace) / trace.rate * len(trace) / max(1, len(trace) - 1)
    arrival_s = np.asarray(trace.arrival_s)
    rows = np.tile(np.arange(len(trace)), n_copies)
    starts_s = np.arange(n_copies)[:, None] * period_s
    repeated = requests_at(trace, rows, (starts_s + arrival_s).ravel())
    if trace.prefix is None:
        return repeated
    prefix = [_renamed(one, copy) for copy in range(n_copies) for one in trace.prefix]
    return replace(repeated, prefix=prefix)


def _renamed(prefix: Hashable, copy: int) -> Hashable:
    """The prefix in another copy of a recording."""
    if not isinstance(prefix, PrefixBlocks):
        return prefix
    return prefix._replace(ids=tuple((copy, block_id) for block_id in prefix.ids))


def sample(traffic: Traffic, simulated_share: float, rng: np.random.Generator) -> Traffic:
    """Draw a random share of the requests, at least one."""
    if simulated_share >= 1:
        return traffic
    mask = rng.random(len(traffic)) < simulated_share
    mask[0] |= not mask.any()
    return requests_at(traffic, mask.nonzero()[0])


def requests_at(traffic: Traffic, rows: Array, arrival_s: Array | None = None) -> Traffic:
    """The requests with the indices `rows`, which may repeat; `arrival_s` replaces their times."""
    if arrival_s is None and traffic.arrival_s is not None:
        arrival_s = traffic.arrival_s[rows]
    prefix = traffic.prefix
    shared = traffic.shared
    return replace(
        traffic,
        prompt=traffic.prompt[rows],
        output=traffic.output[rows],
        arrival_s=arrival_s,
        prefix=None if prefix is None else [prefix[row] for row in rows],
        shared=None if shared is None else shared[rows],
    )
