"""Block manager of a paged KV cache: counts blocks in use, cached blocks and free blocks.

A simulation needs only counts, so allocating a thousand blocks is one addition. Physical block ids
are assigned when an engine first reads the block table of a sequence. At all times used + cached +
free = n_blocks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from shardwise.errors import BadInput
from shardwise.simulate.host_tier import Copies, HostTier
from shardwise.simulate.request import CachedBlock, SequenceState


class BlockManager:
    """The blocks of a KV cache, with reference counts and a cache of shared prefixes.

    Args:
        block_tokens: tokens per block.
        n_host_blocks: blocks of host memory that keep the contents of evicted blocks.
    """

    def __init__(self, n_blocks: int, block_tokens: int, n_host_blocks: int = 0) -> None:
        self.n_blocks = n_blocks
        self.block_tokens = block_tokens
        self.used = 0  # blocks that sequences use; a shared block counts once
        self.evictions = 0
        self._by_key: dict[Hashable, CachedBlock] = {}
        self._unused: OrderedDict[Hashable, CachedBlock] = (
            OrderedDict()
        )  # least recently used first
        self._host: HostTier | None = None
        if n_host_blocks:
            self._host = HostTier(n_host_blocks)
        self._released_ids: list[int] = []
        self._next_id = 0  # smallest physical id that was never assigned

    @property
    def cached(self) -> int:
        """Number of blocks that no sequence uses, kept for reuse of their contents."""
        return len(self._unused)

    @property
    def free(self) -> int:
        """Number of blocks without contents."""
        return self.n_blocks - self.used - len(self._unused)

    @property
    def available(self) -> int:
        """Number of blocks that can be allocated: free blocks and cached blocks."""
        return self.n_blocks - self.used

    def match(self, keys: Sequence[Hashable], limit: int) -> int:
        """Return how many of the first `limit` keys, up to the first missing one, have contents."""
        by_key = self._by_key
        n_hits = 0
        for key in keys[:limit]:
            if key not in by_key and (self._host is None or key not in self._host):
                break
            n_hits += 1
        return n_hits

    def admit(self, sequence: SequenceState, n_blocks: int, n_hits: int, reserve: int) -> bool:
        """Allocate the first blocks of a sequence; return False if too few are available.

        Args:
            sequence: a sequence without blocks.
            n_blocks: number of blocks that it needs.
            n_hits: number of these that are in the cache, from `match`.
            reserve: number of blocks that must stay available.
        """
        keys = sequence.block_keys[:n_hits]
        resident = keys
        if self._host is not None:
            resident = [key for key in keys if key in self._by_key]
        hits = [self._by_key[key] for key in resident]
        n_unused = sum(1 for block in hits if block.ref_count == 0)
        if n_blocks - len(hits) + reserve > self.available - n_unused:
            return False
        for block in hits:
            self._reference(block)
        if self._host is not None:
            self._host.hold(keys)
        sequence.n_blocks = n_blocks
        self.allocate(n_blocks - len(hits))
        if len(hits) < n_hits:
            hits = [self._by_key.get(key) or self._restore(key) for key in keys]
        sequence.cached_blocks = hits
        return True

    def allocate(self, n_blocks: int) -> None:
        """Allocate blocks; evict the least recently used cached blocks if too few are free.

        Raises:
            BadInput: fewer blocks are available.
        """
        if n_blocks > self.available:
            raise BadInput(f"{n_blocks:,} blocks are needed and {self.available:,} are available.")
        self.used += n_blocks
        while self.used + len(self._unused) > self.n_blocks:
            key, block = self._unused.popitem(last=False)
            del self._by_key[key]
            self.evictions += 1
            if block.physical_id is not None:
                self._released_ids.append(block.physical_id)
                if self._host is not None:
                    self._host.keep(key, block.physical_id)

    def release(self, sequence: SequenceState) -> None:
        """Release all blocks of a sequence; blocks that may be shared stay in the cache."""
        self.used -= sequence.n_blocks - len(sequence.cached_blocks)
        for block in reversed(
            sequence.cached_blocks
        ):  # so that the end of a prefix is evicted first
            block.ref_count -= 1
            if block.ref_count == 0:
                self.used -= 1
                self._unused[block.key] = block
        self._released_ids += sequence.private_block_ids
        sequence.cached_blocks = []
        sequence.private_block_ids = []
        sequence.n_blocks = 0

    def shrink(self, sequence: SequenceState, before: int, after: int) -> None:
        """Release the last blocks of a sequence, so that `after` of `before` blocks remain."""
        self.used -= before - after
        while len(sequence.cached_blocks) + len(sequence.private_block_ids) > after:
            self._released_ids.append(sequence.private_block_ids.pop())

    def publish(self, sequence: SequenceState) -> None:
        """Put the full blocks that a sequence has computed into the cache, to be shared.

        If the cache already has a block of the same key, the sequence uses that block from now on,
        and its own copy is freed.
        """
        n_full = min(len(sequence.block_keys), sequence.past // self.block_tokens)
        while len(sequence.cached_blocks) < n_full:
            key = sequence.block_keys[len(sequence.cached_blocks)]
            copy_id: int | None = None
            if sequence.private_block_ids:
                copy_id = sequence.private_block_ids.pop(0)
            block = self._by_key.get(key)
            if block is None:
                block = self._by_key[key] = CachedBlock(key, 1, copy_id)
            else:
                self._reference(block)
                self.used -= 1
                if copy_id is not None:
                    self._released_ids.append(copy_id)
            sequence.cached_blocks.append(block)

    def block_table(self, sequence: SequenceState, n_blocks: int) -> list[int]:
        """Return the physical ids of the first `n_blocks` blocks of a sequence, in token order."""
        table: list[int] = []
        for block in sequence.cached_blocks:
            if block.physical_id is None:
                block.physical_id = self._assign_id()
            table.append(block.physical_id)
        while len(table) + len(sequence.private_block_ids) < n_blocks:
            sequence.private_block_ids.append(self._assign_id())
        return (table + sequence.private_block_ids)[:n_blocks]

    def take_copies(self) -> Copies:
        """Return the copies from and to host memory that have to run before the next pass."""
        if self._host is None:
            return Copies([], [])
        return self._host.take_copies()

    def _restore(self, key: Hashable) -> CachedBlock:
        """Copy contents from host memory into an allocated block."""
        physical_id = self._assign_id()
        if self._host is not None:
            self._host.restore(key, physical_id)
        block = self._by_key[key] = CachedBlock(key, 1, physical_id)
        return block

    def _reference(self, block: CachedBlock) -> None:
        """Count one more sequence that uses a block."""
        if block.ref_count == 0:
            del self._unused[block.key]
            self.used += 1
        block.ref_count += 1

    def _assign_id(self) -> int:
        if self._released_ids:
            return self._released_ids.pop()
        self._next_id += 1
        return self._next_id - 1
