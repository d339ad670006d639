"""Block manager of a paged KV cache: blocks in use, cached for reuse, and free.

Scheduling needs only counts, so allocating a thousand blocks is one addition. Physical block ids
are assigned lazily, when an engine reads the block table of a sequence. At all times used + cached
+ free = n_blocks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from shardwise.errors import BadInput
from shardwise.simulate.request import CachedBlock, SequenceState


class BlockManager:
    """Blocks of one KV cache, with reference counts and a cache of shared prefixes.

    Args:
        n_blocks: blocks of the cache.
        block_tokens: tokens of one block.
    """

    def __init__(self, n_blocks: int, block_tokens: int) -> None:
        self.n_blocks = n_blocks
        self.block_tokens = block_tokens
        self.used = 0  # blocks of sequences; a shared one counts once
        self.evictions = 0
        self._by_key: dict[Hashable, CachedBlock] = {}
        self._unused: OrderedDict[Hashable, CachedBlock] = OrderedDict()  # least recent first
        self._released_ids: list[int] = []
        self._next_id = 0  # the first physical block that was never assigned

    @property
    def cached(self) -> int:
        """Blocks that no sequence uses, cached for their contents."""
        return len(self._unused)

    @property
    def free(self) -> int:
        """Blocks without contents."""
        return self.n_blocks - self.used - len(self._unused)

    @property
    def available(self) -> int:
        """Blocks that can be allocated: free and cached ones."""
        return self.n_blocks - self.used

    def match(self, keys: Sequence[Hashable], limit: int) -> int:
        """Count the leading blocks, up to `limit`, that are in the cache."""
        by_key = self._by_key
        n_hits = 0
        for key in keys[:limit]:
            if key not in by_key:
                break
            n_hits += 1
        return n_hits

    def admit(self, sequence: SequenceState, n_blocks: int, n_hits: int, reserve: int) -> bool:
        """Allocate the first `n_blocks` of a sequence; False where there is no room.

        Args:
            sequence: has no blocks yet.
            n_blocks: blocks that it needs.
            n_hits: leading blocks that `match` found in the cache.
            reserve: blocks that must stay available.
        """
        hits = [self._by_key[key] for key in sequence.block_keys[:n_hits]]
        n_unused = sum(1 for block in hits if block.ref_count == 0)
        if n_blocks - n_hits + reserve > self.available - n_unused:
            return False
        for block in hits:
            self._reference(block)
        sequence.cached_blocks = hits
        sequence.n_blocks = n_blocks
        self.allocate(n_blocks - n_hits)
        return True

    def allocate(self, n_blocks: int) -> None:
        """Allocate blocks; once none are free, evict the least recently used cached ones.

        Raises:
            BadInput: more blocks than are available.
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

    def release(self, sequence: SequenceState) -> None:
        """Release all blocks of a sequence; those that others may read stay cached."""
        self.used -= sequence.n_blocks - len(sequence.cached_blocks)
        for block in reversed(sequence.cached_blocks):  # evict the end of a prefix first
            block.ref_count -= 1
            if block.ref_count == 0:
                self.used -= 1
                self._unused[block.key] = block
        self._released_ids += sequence.private_block_ids
        sequence.cached_blocks = []
        sequence.private_block_ids = []
        sequence.n_blocks = 0

    def shrink(self, sequence: SequenceState, before: int, after: int) -> None:
        """Release the last blocks of a sequence, from `before` blocks down to `after`."""
        self.used -= before - after
        while len(sequence.cached_blocks) + len(sequence.private_block_ids) > after:
            self._released_ids.append(sequence.private_block_ids.pop())

    def publish(self, sequence: SequenceState) -> None:
        """Share the full blocks that `sequence` has computed.

        If another sequence has published the same block before, this one uses that block from now
        on and its copy is freed: the values are the same.
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
        """Physical ids of the first `n_blocks` of a sequence, in the order of its tokens."""
        table: list[int] = []
        for block in sequence.cached_blocks:
            if block.physical_id is None:
                block.physical_id = self._assign_id()
            table.append(block.physical_id)
        while len(table) + len(sequence.private_block_ids) < n_blocks:
            sequence.private_block_ids.append(self._assign_id())
        return (table + sequence.private_block_ids)[:n_blocks]

    def _reference(self, block: CachedBlock) -> None:
        if block.ref_count == 0:
            del self._unused[block.key]
            self.used += 1
        block.ref_count += 1

    def _assign_id(self) -> int:
        if self._released_ids:
            return self._released_ids.pop()
        self._next_id += 1
        return self._next_id - 1
