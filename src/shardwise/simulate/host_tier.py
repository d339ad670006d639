"""Host memory as the second level of the prefix cache: it keeps what the KV cache evicts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import NamedTuple


class Copies(NamedTuple):
    """Copies of blocks that precede a pass: first all `to_host`, then all `to_device`.

    No block is the target of two copies, so the copies of either list may run at once.

    Args:
        to_host: (block of the KV cache, host block) of each copy to host memory.
        to_device: (host block, block of the KV cache) of each copy from host memory.
    """

    to_host: list[tuple[int, int]]
    to_device: list[tuple[int, int]]


class HostTier:
    """Contents of evicted blocks by key; the least recently used make room for new ones.

    A block that is copied back also stays here, so that it can be evicted again without a copy.

    Args:
        n_blocks: number of host blocks.
    """

    def __init__(self, n_blocks: int) -> None:
        self._free = list(range(n_blocks - 1, -1, -1))
        self._host_blocks: OrderedDict[Hashable, int] = OrderedDict()  # least recently used first
        self._copies = Copies([], [])
        self._in_copies: set[int] = set()  # host blocks that must not change before the copies run

    def __contains__(self, key: Hashable) -> bool:
        return key in self._host_blocks

    def __len__(self) -> int:
        return len(self._host_blocks)

    def hold(self, keys: Iterable[Hashable]) -> None:
        """Mark blocks as used, so that they stay here until the next copies have run."""
        for key in keys:
            host_block = self._host_blocks.get(key)
            if host_block is not None:
                self._host_blocks.move_to_end(key)
                self._in_copies.add(host_block)

    def keep(self, key: Hashable, device_block: int) -> None:
        """Keep the contents of an evicted block, unless all room is taken by the next copies."""
        if key not in self._host_blocks:
            host_block = self._make_room()
            if host_block is None:
                return
            self._host_blocks[key] = host_block
            self._in_copies.add(host_block)
            self._copies.to_host.append((device_block, host_block))
        self._host_blocks.move_to_end(key)

    def restore(self, key: Hashable, device_block: int) -> None:
        """Copy contents that are kept, and on `hold`, into a block of the KV cache."""
        self._copies.to_device.append((self._host_blocks[key], device_block))

    def take_copies(self) -> Copies:
        """Return the copies that have to run now, and forget them."""
        copies = self._copies
        self._copies = Copies([], [])
        self._in_copies.clear()
        return copies

    def _make_room(self) -> int | None:
        """Return a host block to write to; None if the least recently used is in a copy."""
        if self._free:
            return self._free.pop()
        key, host_block = next(iter(self._host_blocks.items()))
        if host_block in self._in_copies:
            return None
        del self._host_blocks[key]
        return host_block
