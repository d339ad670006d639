"""The blocks of a paged KV cache: how many are used, kept for reuse, and free.

The counts are what scheduling needs, so they are the truth, and growing by a thousand blocks is one
addition. Physical numbers of blocks follow: an engine asks `table` for those of a sequence, and
only then they are drawn. At all times used + cached + free = n_blocks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from shardwise.errors import BadInput
from shardwise.simulate.request import Cached, Live


class Blocks:
    """Block manager with reference counts and a cache of shared prefixes.

    Args:
        n_blocks: blocks of the cache.
        block: tokens of one block.
    """

    def __init__(self, n_blocks: int, block: int) -> None:
        self.n_blocks = n_blocks
        self.block = block
        self.used = 0  # held by sequences; a shared one counts once
        self.evictions = 0
        self._known: dict[Hashable, Cached] = {}
        self._idle: OrderedDict[Hashable, Cached] = OrderedDict()  # least recently used first
        self._spare: list[int] = []  # physical blocks given back
        self._fresh = 0  # the first physical block that was never given out

    @property
    def cached(self) -> int:
        """Blocks that nobody holds, kept for their contents."""
        return len(self._idle)

    @property
    def free(self) -> int:
        """Blocks without contents of use."""
        return self.n_blocks - self.used - len(self._idle)

    @property
    def available(self) -> int:
        """Blocks that can be taken: free ones and cached ones."""
        return self.n_blocks - self.used

    def match(self, keys: Sequence[Hashable], most: int) -> int:
        """How many leading blocks, up to `most`, are in the cache."""
        known, n = self._known, 0
        for key in keys[:most]:
            if key not in known:
                break
            n += 1
        return n

    def admit(self, live: Live, n_blocks: int, hit: int, keep: int) -> bool:
        """Give a sequence its first `n_blocks`, `hit` of them from the cache, if there is room.

        Args:
            live: the sequence, which holds none.
            n_blocks: blocks that it needs.
            hit: leading ones that `match` found.
            keep: blocks that must stay available.
        """
        found = [self._known[key] for key in live.keys[:hit]]
        idle = sum(1 for entry in found if entry.refs == 0)
        if n_blocks - hit + keep > self.available - idle:
            return False
        for entry in found:
            self._hold(entry)
        live.held = found
        live.n_blocks = n_blocks
        self.take(n_blocks - hit)
        return True

    def take(self, n: int) -> None:
        """Take `n` blocks, those least recently used where no free ones are left.

        Raises:
            BadInput: there are not so many.
        """
        if n > self.available:
            raise BadInput(f"{n:,} blocks are needed and {self.available:,} are available.")
        self.used += n
        while self.used + len(self._idle) > self.n_blocks:
            key, entry = self._idle.popitem(last=False)
            del self._known[key]
            self.evictions += 1
            if entry.id is not None:
                self._spare.append(entry.id)

    def release(self, live: Live) -> None:
        """Take back all blocks of a sequence; what others may read stays cached."""
        self.used -= live.n_blocks - len(live.held)
        for entry in reversed(live.held):  # the end of a prefix is evicted before its start
            entry.refs -= 1
            if entry.refs == 0:
                self.used -= 1
                self._idle[entry.key] = entry
        self._spare += live.ids
        live.held, live.ids, live.n_blocks = [], [], 0

    def shrink(self, live: Live, before: int, after: int) -> None:
        """Take back the blocks from number `after` on of a sequence that holds `before`."""
        self.used -= before - after
        while len(live.held) + len(live.ids) > after:
            self._spare.append(live.ids.pop())

    def publish(self, live: Live) -> None:
        """Let others read the full blocks that `live` has computed.

        Where another sequence has published the same block before, that one is read from now on
        and the copy is free: the values are the same.
        """
        n_full = min(len(live.keys), live.past // self.block)
        while len(live.held) < n_full:
            key = live.keys[len(live.held)]
            own = live.ids.pop(0) if live.ids else None
            entry = self._known.get(key)
            if entry is None:
                entry = self._known[key] = Cached(key, 1, own)
            else:
                self._hold(entry)
                self.used -= 1
                if own is not None:
                    self._spare.append(own)
            live.held.append(entry)

    def table(self, live: Live, n: int) -> list[int]:
        """Physical numbers of the first `n` blocks of a sequence."""
        for entry in live.held:
            if entry.id is None:
                entry.id = self._draw()
        while len(live.held) + len(live.ids) < n:
            live.ids.append(self._draw())
        return ([entry.id for entry in live.held if entry.id is not None] + live.ids)[:n]

    def _hold(self, entry: Cached) -> None:
        if entry.refs == 0:
            del self._idle[entry.key]
            self.used += 1
        entry.refs += 1

    def _draw(self) -> int:
        if self._spare:
            return self._spare.pop()
        self._fresh += 1
        return self._fresh - 1
