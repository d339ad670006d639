"""The scheduler of an engine whose sequences are distributed to pools.

A pool is a group of chips with sequences and KV cache blocks of its own (data-parallel attention).
Pools share the experts, and so they run each pass together. An engine whose chips all have the same
sequences is one pool.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from shardwise.arrays import ceil_div
from shardwise.simulate.host_tier import Copies
from shardwise.simulate.limits import Limits
from shardwise.simulate.passes import Pass
from shardwise.simulate.request import Request, SequenceState
from shardwise.simulate.routing import least_loaded
from shardwise.simulate.scheduler import Scheduler

SHARE_CACHED = 0.5  # of a prompt, from which on a pool is chosen for its cache


class PooledScheduler:
    """A `Scheduler` for each pool; the passes of all pools are one pass of the engine.

    A request gets the pool that has most of its prompt in the cache, if this is half of the prompt
    and the pool has room; otherwise the one with the fewest requests.

    Args:
        limits: limits of the engine; each pool has an equal part.
        n_pools: number of pools.
        text_keys: see `Scheduler`.
    """

    def __init__(
        self,
        limits: Limits,
        n_pools: int = 1,
        text_keys: Callable[[SequenceState], Sequence[Hashable]] | None = None,
    ) -> None:
        self.limits = limits.of_pool(n_pools)
        self.pools = [Scheduler(self.limits, text_keys) for _ in range(n_pools)]

    @property
    def waiting(self) -> int:
        """Number of requests in the queues."""
        return sum(len(pool.waiting) for pool in self.pools)

    @property
    def running(self) -> int:
        """Number of sequences that have blocks, counted between passes."""
        return sum(pool.running for pool in self.pools)

    @property
    def has_work(self) -> bool:
        """Whether any request waits or runs, asked between passes."""
        return any(pool.has_work for pool in self.pools)

    @property
    def blocks_used(self) -> int:
        """Number of blocks that sequences use."""
        return sum(pool.blocks.used for pool in self.pools)

    @property
    def preemptions(self) -> int:
        """Number of preemptions since the start."""
        return sum(pool.preemptions for pool in self.pools)

    @property
    def preempted(self) -> list[SequenceState]:
        """Sequences that the last `schedule` preempted."""
        return [sequence for pool in self.pools for sequence in pool.preempted]

    def add(
        self, request: Request, block_keys: Sequence[Hashable], kv_ready: bool = False
    ) -> SequenceState:
        """Append a request to the queue of a pool; see `Scheduler.add`."""
        outstanding = [len(pool.waiting) + pool.running for pool in self.pools]
        cached = [self._cached_tokens(pool, request, block_keys) for pool in self.pools]
        index = least_loaded(outstanding, cached)
        sequence = self.pools[index].add(request, block_keys, kv_ready)
        sequence.pool = index
        return sequence

    def schedule(self) -> Pass:
        """Choose the next pass of all pools; see `Scheduler.schedule`."""
        passes = [pool.schedule() for pool in self.pools]
        return Pass(
            decode=[sequence for one in passes for sequence in one.decode],
            n_decode=sum(one.n_decode for one in passes),
            kv_tokens=sum(one.kv_tokens for one in passes),
            chunks=tuple(chunk for one in passes for chunk in one.chunks),
            prefill=sum(one.prefill for one in passes),
            pairs=sum(one.pairs for one in passes),
        )

    def advance(
        self, gained: Mapping[SequenceState, int], stopped: Iterable[SequenceState]
    ) -> None:
        """Account for the pass after it has run; see `Scheduler.advance`."""
        stopped = list(stopped)
        for index, pool in enumerate(self.pools):
            pool.advance(
                gained={one: n for one, n in gained.items() if one.pool == index},
                stopped=[one for one in stopped if one.pool == index],
            )

    def cancel(self, sequence: SequenceState) -> None:
        """Drop a waiting or running request; see `Scheduler.cancel`."""
        self.pools[sequence.pool].cancel(sequence)

    def context(self, sequence: SequenceState) -> int:
        """Tokens in the KV cache of a sequence that decodes."""
        return self.pools[sequence.pool].decoding.context(sequence)

    def block_table(self, sequence: SequenceState) -> list[int]:
        """Block ids of a sequence within its pool; see `Scheduler.block_table`."""
        return self.pools[sequence.pool].block_table(sequence)

    def take_copies(self) -> Copies:
        """Return the copies that precede the pass; see `BlockManager.take_copies`.

        Blocks are counted over all pools.
        """
        joined = Copies([], [])
        for index, pool in enumerate(self.pools):
            first = index * self.limits.n_blocks
            first_host = index * self.limits.n_host_blocks
            copies = pool.blocks.take_copies()
            joined.to_host.extend((first + a, first_host + b) for a, b in copies.to_host)
            joined.to_device.extend((first_host + a, first + b) for a, b in copies.to_device)
        return joined

    def _cached_tokens(self, pool: Scheduler, request: Request, keys: Sequence[Hashable]) -> int:
        """Tokens of a prompt in the cache of a pool; 0 if it is not to be chosen for them."""
        block_tokens = self.limits.block_tokens
        if len(self.pools) == 1 or len(pool.waiting) + pool.running >= self.limits.max_sequences:
            return 0
        queued = sum(ceil_div(one.prefill_target, block_tokens) for one in pool.waiting)
        if queued + ceil_div(request.prompt, block_tokens) > pool.blocks.available:
            return 0
        tokens = pool.blocks.match(keys, len(keys)) * block_tokens
        return tokens if tokens >= SHARE_CACHED * request.prompt else 0
