"""Point-to-point transfers, gathers on one chip, and collective matmuls. Book §2, §10.

Letters: V bytes of the array, W1 bytes/s in one direction of one link, T_min seconds of a hop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.arrays import Num, maximum
from shardwise.errors import BadShape
from shardwise.hardware import Torus


def torus_hops(torus: Torus, start: Sequence[int], end: Sequence[int]) -> int:
    """Hops of the shortest path between two chips of a torus. Book §2.

    Two chips at distance d along an axis of n chips are min(d, n - d) hops apart if the axis wraps
    around, and d hops if it does not.

    Raises:
        BadShape: A coordinate is outside the torus.

    >>> torus_hops(Torus(shape=(4, 4), wrapped=(False, False)), (0, 0), (3, 3))
    6
    """
    for chip in (start, end):
        inside = len(chip) == torus.n_axes
        if not (inside and all(0 <= x < n for x, n in zip(chip, torus.shape, strict=True))):
            raise BadShape(f"{tuple(chip)} is not a chip of a torus of {torus}.")
    hops = 0
    for x, y, n, wrapped in zip(start, end, torus.shape, torus.wrapped, strict=True):
        distance = abs(x - y)
        if wrapped:
            distance = min(distance, n - distance)
        hops += distance
    return hops


def point_to_point_s(
    n_bytes: Num, hops: Num, *, link_bytes_per_s_one_way: Num, hop_s: Num, ports: Num = 1
) -> Num:
    """Seconds to send an array from one chip to another: V / (ports W1) + hops T_min. Book §2 Q5.

    The first byte arrives after hops T_min.

    Args:
        n_bytes: V.
        hops: Hops of the longest path in use.
        link_bytes_per_s_one_way: W1.
        hop_s: T_min.
        ports: Links of the chip that share the bytes.
    """
    return n_bytes / (ports * link_bytes_per_s_one_way) + hops * hop_s


def gather_to_one_s(
    n_bytes: Num, n_chips: Num, *, links: Num, link_bytes_per_s_one_way: Num
) -> Num:
    """Seconds to gather n shards of V bytes in all on one of n chips. Book §2, question 6.

    V (n-1)/n / (links W1): the links of the receiving chip are the bottleneck.
    """
    return n_bytes * (n_chips - 1) / n_chips / (links * link_bytes_per_s_one_way)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveMatmul:
    """A matmul on a ring that sends the next shard of its input while it multiplies the last one.

    Args:
        n_permutes: Sends of a shard to the neighbour.
        n_matmuls: Partial matmuls, one per shard.
        chunk: Size of the sharded dim in each partial matmul.
        permute_s, matmul_s: Seconds of one send and of one partial matmul.
    """

    n_permutes: int
    n_matmuls: int
    chunk: float
    permute_s: Num = 0.0
    matmul_s: Num = 0.0

    @property
    def overlapped_s(self) -> Num:
        """Seconds if sends overlap with matmuls; the first matmul has a local shard: no send."""
        return self.matmul_s + self.n_permutes * maximum(self.matmul_s, self.permute_s)


def collective_matmul(
    n: int, dim: int, *, math_s: Num = 0.0, n_bytes: Num = 0.0, bytes_per_s: Num = float("inf")
) -> CollectiveMatmul:
    """Cost of a matmul on a ring of n chips that pass shards on instead of gathering. Book §10.

    Args:
        n: Chips of the ring.
        dim: Size of the dim that is sharded over the ring.
        math_s: Seconds of all partial matmuls of a chip.
        n_bytes: V, bytes of the sharded input on all chips together.
        bytes_per_s: Bandwidth of one direction of a link.
    """
    return CollectiveMatmul(
        n_permutes=n - 1,
        n_matmuls=n,
        chunk=dim / n,
        permute_s=n_bytes / n / bytes_per_s,
        matmul_s=math_s / n,
    )
