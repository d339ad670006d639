"""Data between chips that is not one plain collective. Book §2, §3, §10, §12.

Point to point on a torus, gathering on one chip, reductions over the outer levels of a tree, and
matmuls whose collective is cut into pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.arrays import Num, maximum, minimum
from shardwise.errors import BadShape
from shardwise.hardware import Torus
from shardwise.strategy.span import Tier


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
    """V / (ports W1) + hops T_min: from one chip to another; the first byte after hops T_min.

    Args:
        n_bytes: V.
        hops: Of the longest way that is used.
        link_bytes_per_s_one_way: W1.
        hop_s: T_min.
        ports: Links of the chip that carry a share each. Book §2, question 5.
    """
    return n_bytes / (ports * link_bytes_per_s_one_way) + hops * hop_s


def gather_to_one_s(
    n_bytes: Num, n_chips: Num, *, links: Num, link_bytes_per_s_one_way: Num
) -> Num:
    """V (n-1)/n / (links W1): all shards to a single chip, bound by its own links. Book §2, Q6."""
    return n_bytes * (n_chips - 1) / n_chips / (links * link_bytes_per_s_one_way)


def outer_reduce_s(
    n_bytes: Num, tiers: Sequence[Tier], *, sharded: Num = 1, all_reduce: bool = False
) -> Num:
    """V max_i (D_i - 1) / (D_i max(Y, S_i) W_i): over a tree, of an array already in Y shards.

    Sharding over an inner axis helps only once it is wider than all that lies below a level.
    Book §12.

    Args:
        n_bytes: V, the array over all its shards.
        tiers: Levels from the inside out: D_i members, each GPU with W_i of its own.
        sharded: Y.
        all_reduce: Twice the time of a gather or scatter.
    """
    slowest: Num = 0.0
    below = 1
    for tier in tiers:
        share = (tier.size - 1) / (tier.size * maximum(sharded, below) * tier.bytes_per_s)
        slowest = maximum(slowest, share)
        below *= tier.size
    return (2 if all_reduce else 1) * n_bytes * slowest


def tree_bytes_per_s(tiers: Sequence[Tier]) -> float:
    """min_i D_i W_i S_i / (D_i - 1): the rate at which a tree gathers. Book §12."""
    return 1 / float(outer_reduce_s(1.0, tiers))


def routed_share(experts_per_token: Num, n: Num) -> Num:
    """(1 - ((n-1)/n)^k) (n-1)/n: AllToAll of random routing, as a part of a full one over n places.

    Each of k choices falls on any place; a place is met with the probability in brackets, and one
    of n is the sender's own. The book's min(k/n, 1) counts every choice as another place. Book §12.
    """
    away = (n - 1) / n
    return (1 - away**experts_per_token) * away


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveMatmul:
    """A gather cut into steps, each hidden behind the product with what has already come.

    Args:
        n_permutes: Shards passed to the neighbour.
        n_matmuls: Partial products.
        chunk: Size of the summed dim in each.
        permute_s, matmul_s: Seconds of one of each.
    """

    n_permutes: int
    n_matmuls: int
    chunk: float
    permute_s: Num = 0.0
    matmul_s: Num = 0.0

    @property
    def overlapped_s(self) -> Num:
        """The first product waits for nothing; each later one for its shard, sent meanwhile."""
        return self.matmul_s + self.n_permutes * maximum(self.matmul_s, self.permute_s)

    @property
    def sequential_s(self) -> Num:
        """Gather first, multiply after."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTimes:
    """Compute and AllToAlls of one MoE layer, seconds."""

    math_s: Num
    comms_s: Num


def expert_times(
    tokens: Num,
    d_model: Num,
    d_ff: Num,
    *,
    experts_per_token: Num,
    n_chips: Num,
    flops_per_s: Num,
    node_bytes_per_s: Num,
    node_chips: Num = 8,
) -> ExpertTimes:
    """Expert parallelism over Z GPUs of several nodes, forward. Book §12.

    T_math = 4BkDF/(ZC), T_comms = 4BD (Z-n)/(W Z) min(n k / Z, 1): two AllToAlls in bf16, of which
    what stays in a node of n GPUs is free.

    Args:
        tokens, d_model, d_ff: B, D, F of one expert with two matrices.
        experts_per_token: k.
        n_chips: Z.
        flops_per_s: C.
        node_bytes_per_s: W out of a node.
        node_chips: n.
    """
    B, D, Z, k = tokens, d_model, n_chips, experts_per_token
    outside = (Z - node_chips) / Z * minimum(node_chips * k / Z, 1.0)
    return ExpertTimes(
        math_s=4 * B * k * D * d_ff / (Z * flops_per_s),
        comms_s=4 * B * D * outside / node_bytes_per_s,
    )


def expert_width(n_chips: Num, experts_per_token: Num, alpha: Num, *, node_chips: Num = 8) -> Num:
    """F of an expert above which expert parallelism over Z GPUs is compute-bound. Book §12.

    F > alpha (Z - n) / k where k > Z/n, and F > n alpha (Z - n) / Z (about n alpha) else.
    """
    outside = (n_chips - node_chips) * minimum(node_chips * experts_per_token / n_chips, 1.0)
    return alpha * outside / experts_per_token


def pipeline_send_s(
    tokens: Num, d_model: Num, *, n_microbatches: Num, n_stages: Num, bytes_per_s: Num
) -> Num:
    """2BD/(W M) for each of M + p - 2 hops: activations that stages pass on, in bf16. Book §12."""
    return 2 * tokens * d_model / (bytes_per_s * n_microbatches) * (n_microbatches + n_stages - 2)
