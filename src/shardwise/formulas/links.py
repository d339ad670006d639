"""Point-to-point transfers, gathers on one chip, and collective matmuls. Book §2, §10.

Letters: V bytes of the array, W1 one direction of one link, T_min seconds of a hop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.arrays import Num, maximum
from shardwise.errors import BadShape
from shardwise.hardware import Torus


def torus_hops(torus: Torus, start: Sequence[int], end: Sequence[int]) -> int:
    """Hops of the shortest path between two chips: on a ring min(d, n - d), on a line d. Book §2.

    Raises:
        BadShape: Coordinates outside the torus.

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
    """V / (ports W1) + hops T_min: seconds from one chip to another. Book §2, question 5.

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
    """V (n-1)/n / (links W1): all n shards to one chip, bound by its links. Book §2, question 6."""
    return n_bytes * (n_chips - 1) / n_chips / (links * link_bytes_per_s_one_way)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveMatmul:
    """A gather in steps, each overlapped with the product of the shard that has arrived.

    Args:
        n_permutes: Sends of a shard to the neighbour.
        n_matmuls: Partial products.
        chunk: Size of the summed dim in each.
        permute_s, matmul_s: Seconds of one permute and of one product.
    """

    n_permutes: int
    n_matmuls: int
    chunk: float
    permute_s: Num = 0.0
    matmul_s: Num = 0.0

    @property
    def overlapped_s(self) -> Num:
        """Seconds with each send overlapped with a product; the first product needs no send."""
        return self.matmul_s + self.n_permutes * maximum(self.matmul_s, self.permute_s)

    @property
    def sequential_s(self) -> Num:
        """Seconds with the gather before the product."""
        return self.n_matmuls * self.matmul_s + self.n_permutes * self.permute_s


def collective_matmul(
    n: int, dim: int, *, math_s: Num = 0.0, n_bytes: Num = 0.0, bytes_per_s: Num = float("inf")
) -> CollectiveMatmul:
    """Cost of a matmul on a ring of n whose input is passed round instead of gathered. Book §10.

    Args:
        n: Chips of the ring.
        dim: The dim that is sharded.
        math_s: Seconds of all local products.
        n_bytes: V of the array that would be gathered.
        bytes_per_s: One direction of a link.
    """
    return CollectiveMatmul(
        n_permutes=n - 1,
        n_matmuls=n,
        chunk=dim / n,
        permute_s=n_bytes / n / bytes_per_s,
        matmul_s=math_s / n,
    )
