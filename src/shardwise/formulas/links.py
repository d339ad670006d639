"""Data on the links that is not one plain collective. Book §2, §10.

Point to point on a torus, gathering on one chip, and matmuls whose collective is cut into pieces.
Letters: V bytes of the array, W1 one direction of one link, T_min seconds of a hop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.arrays import Num, maximum
from shardwise.errors import BadShape
from shardwise.hardware import Torus


def torus_hops(torus: Torus, start: Sequence[int], end: Sequence[int]) -> int:
    """Hops of the shortest way between two chips: on a ring min(d, n - d), on a line d. Book §2.

    Raises:
        BadShape: A coordinate that the torus does not have.

    >>> torus_hops(Torus(shape=(4, 4), wrapped=(False, False)), (0, 0), (3, 3))
    6
    """
    inside = all(
        len(at) == torus.n_axes and all(0 <= a < n for a, n in zip(at, torus.shape, strict=True))
        for at in (start, end)
    )
    if not inside:
        raise BadShape(f"{tuple(start)} to {tuple(end)} does not lie in a torus of {torus}.")
    steps = zip(start, end, torus.shape, torus.wrapped, strict=True)
    return sum(min(abs(a - b), n - abs(a - b)) if w else abs(a - b) for a, b, n, w in steps)


def point_to_point_s(
    n_bytes: Num, hops: Num, *, link_bytes_per_s_one_way: Num, hop_s: Num, ports: Num = 1
) -> Num:
    """V / (ports W1) + hops T_min: from one chip to another, seconds. Book §2, question 5.

    The first byte arrives after hops T_min.

    Args:
        n_bytes: V.
        hops: Hops of the longest way that is used.
        link_bytes_per_s_one_way: W1.
        hop_s: T_min.
        ports: Links of the chip that carry a share each.
    """
    return n_bytes / (ports * link_bytes_per_s_one_way) + hops * hop_s


def gather_to_one_s(
    n_bytes: Num, n_chips: Num, *, links: Num, link_bytes_per_s_one_way: Num
) -> Num:
    """V (n-1)/n / (links W1): all n shards to one chip, bound by its links. Book §2, question 6."""
    return n_bytes * (n_chips - 1) / n_chips / (links * link_bytes_per_s_one_way)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveMatmul:
    """A gather cut into steps, each hidden behind the product with what has already come.

    Args:
        n_permutes: Shards passed to the neighbour.
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
        """Seconds with shards sent behind products: only the first product waits for nothing."""
        return self.matmul_s + self.n_permutes * maximum(self.matmul_s, self.permute_s)

    @property
    def sequential_s(self) -> Num:
        """Seconds where the gather ends before the product begins."""
        return self.n_matmuls * self.matmul_s + self.n_permutes * self.permute_s


def collective_matmul(
    n: int, dim: int, *, math_s: Num = 0.0, n_bytes: Num = 0.0, bytes_per_s: Num = float("inf")
) -> CollectiveMatmul:
    """A matmul on a ring of n whose input is passed round instead of gathered. Book §10.

    Args:
        n: Chips of the ring.
        dim: The dim that is sharded.
        math_s: Seconds of the whole local product.
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
