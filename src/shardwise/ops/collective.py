"""Times of collectives on their links. Book §3 (torus), §12 (GPUs).

A collective takes `max(latency, bytes * seconds_per_byte)`. For a kind of collective and its links
these are two numbers, so that a search over a million strategies can use arrays of them.

`bytes` is V in the book: the bytes of all shards that the collective joins or splits. On a torus of
N chips whose axis i has n_i chips and bandwidth W_i, both directions together:

    AllGather, ReduceScatter   V / sum of W_i
    AllReduce                  twice that
    AllToAll                   V * n_i / (4 N W_i) of the slowest axis
    permute                    V / one direction of one link, with V the bytes that each chip sends
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, fields, replace

from shardwise.arrays import Num, maximum
from shardwise.errors import BadInput, UnknownName
from shardwise.strategy.span import Ring, Span

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute")
DISPLAY_NAMES = {
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_reduce": "AllReduce",
    "all_to_all": "AllToAll",
    "permute": "Permute",
}
# Collective of the forward pass -> collective of its backward pass. Book §3, Q10.
ADJOINT = {
    "all_gather": "reduce_scatter",
    "reduce_scatter": "all_gather",
    "all_reduce": "all_reduce",
    "all_to_all": "all_to_all",
    "permute": "permute",
}


@dataclass(frozen=True, slots=True)
class Price:
    """The time of a collective on its links: `max(latency_s, bytes * s_per_byte)`.

    Args:
        inside_s_per_byte: seconds per byte on the torus or inside the nodes.
        latency_s: seconds of an array without bytes.
        outside_s_per_byte: seconds per byte between nodes or slices. Both levels run in parallel.
        inside_steps, outside_steps: steps of a ring inside and between the nodes of GPUs, for the
            time to start a collective; 0 on a torus.
    """

    inside_s_per_byte: Num
    latency_s: Num
    outside_s_per_byte: Num = 0.0
    inside_steps: Num = 0
    outside_steps: Num = 0

    @property
    def columns(self) -> tuple[Num, ...]:
        """The values of all fields, in their order."""
        return tuple(getattr(self, field.name) for field in fields(self))

    @property
    def s_per_byte(self) -> Num:
        """Seconds per byte of the slower level."""
        return maximum(self.inside_s_per_byte, self.outside_s_per_byte)

    def time_s(self, n_bytes: Num, links: Num = 1.0, network: Num = 1.0) -> Num:
        """Seconds of the collective on an array of `n_bytes`.

        Args:
            n_bytes: V.
            links: share of the rate that is reached on the torus or inside the nodes.
            network: share of the rate that is reached between nodes or slices.
        """
        slower = maximum(self.inside_s_per_byte / links, self.outside_s_per_byte / network)
        return maximum(self.latency_s, n_bytes * slower)


@functools.lru_cache(maxsize=65536)
def price(kind: str, span: Span, directions: int = 2) -> Price:
    """Seconds per byte and latency of one collective.

    Args:
        kind: one of `KINDS`.
        span: the links that it runs over.
        directions: 2 to send both ways around each ring, as TPUs do; 1 to send only one way.

    Raises:
        UnknownName: the kind is unknown.
        BadInput: `directions` is neither 1 nor 2.
    """
    if kind not in KINDS:
        raise UnknownName("collective", kind, KINDS)
    if directions not in (1, 2):
        raise BadInput(f"a ring has 1 or 2 directions, not {directions}.")
    if span.size == 1:
        return Price(0.0, 0.0)
    inside = span.inside
    outside = span.outside
    steps = ring_steps(kind, span)
    if kind == "permute":
        return Price(_permute(inside), _permute_latency(span), _permute(outside), *steps)
    latency_s = _latency(span, directions)
    if kind == "all_to_all":
        seconds_per_byte = _all_to_all(inside, directions), _all_to_all(outside, directions)
    elif kind == "all_reduce":
        latency_s *= 2
        seconds_per_byte = _all_reduce(inside, directions), _all_reduce(outside, directions)
    else:
        seconds_per_byte = _all_gather(inside, directions), _all_gather(outside, directions)
    return Price(seconds_per_byte[0], latency_s, seconds_per_byte[1], *steps)


def ring_steps(kind: str, span: Span) -> tuple[int, int]:
    """Steps of a collective around one ring through all GPUs: inside nodes, and between nodes.

    An AllToAll and a permute send each message directly. Slices of TPUs have no such ring.
    """
    tiers = [tier for tier in span.tiers if not tier.is_slices]
    n_nodes = math.prod(tier.size for tier in tiers if not tier.is_node)
    n_chips = math.prod(tier.size for tier in tiers)
    if kind in ("permute", "all_to_all"):
        return int(n_chips > n_nodes), int(n_nodes > 1)
    rounds = 2 if kind == "all_reduce" else 1
    return rounds * (n_chips - n_nodes), rounds * (n_nodes - 1)


def time_s(kind: str, n_bytes: Num, span: Span, directions: int = 2) -> Num:
    """Seconds of a collective over `span` on an array of `n_bytes` (V in the book)."""
    return price(kind, span, directions).time_s(n_bytes)


def received_bytes(kind: str, n_bytes: Num, n: Num) -> Num:
    """Bytes that each of `n` chips receives in a collective on an array of `n_bytes` (V)."""
    share = (n - 1) / n
    shares = {"all_reduce": 2 * share, "all_to_all": share / n, "permute": 1.0}
    return n_bytes * shares.get(kind, share)


def hops(n: int, closed: bool, directions: int = 2) -> int:
    """Hops of the longest route: floor(n/2) on a ring used in both directions, else n - 1."""
    if closed and directions == 2:
        return n // 2
    return n - 1


def inbound_bytes_per_s(ring: Ring, directions: int = 2) -> float:
    """Inbound bandwidth of the slowest chip: two links on a ring, one at the end of a line."""
    if ring.closed:
        return ring.share_bytes_per_s * directions
    return ring.share_bytes_per_s


def _all_gather(span: Span, directions: int) -> float:
    """Seconds per byte of an AllGather.

    Each chip receives (N-1)/N of V. On a ring of even length the last hop uses only half of the
    links, so that it takes as long as if the chip received all of V; this is the book's V / W.
    """
    rings = [ring for ring in span.rings if ring.size > 1]
    slowest = 0.0
    if rings:
        n_chips = math.prod(ring.size for ring in rings)
        received = (n_chips - 1) / n_chips
        if directions == 2 and any(ring.closed and ring.size % 2 == 0 for ring in rings):
            received = 1.0
        inbound = sum(inbound_bytes_per_s(ring, directions) for ring in (*rings, *span.borrowed))
        slowest = received / inbound
    n_inner = span.ring_size
    for tier in span.tiers:
        slowest = max(slowest, (tier.size - 1) / (tier.size * tier.bytes_per_s * n_inner))
        n_inner *= tier.size
    return slowest


def _all_reduce(span: Span, directions: int) -> float:
    """Seconds per byte of an AllReduce: twice the AllGather, on the slowest level.

    A switch that reduces receives each byte once. All levels work at the same time (pipelined).
    """
    slowest = 0.0
    rings = replace(span, tiers=())
    if rings.size > 1:
        slowest = 2 * _all_gather(rings, directions)
    n_inner = span.ring_size
    for tier in span.tiers:
        factor = 2 * (tier.size - 1) / tier.size
        if tier.reduces:
            factor = 1.0
        if tier.size > 1:
            slowest = max(slowest, factor / (tier.bytes_per_s * n_inner))
        n_inner *= tier.size
    return slowest


def _all_to_all(span: Span, directions: int) -> float:
    """Seconds per byte of an AllToAll: the busiest link is the bottleneck.

    Each chip holds V/N and sends 1/N of that to every other chip.
    """
    n_chips = span.size
    slowest = 0.0
    for ring in span.rings:
        n = ring.size
        # Share of the messages that cross the busiest link in one direction.
        crossing = (n * n // 4) / (n * n)
        if ring.closed and directions == 1:
            crossing = (n - 1) / (2 * n)
        elif ring.closed:
            crossing /= 2
        slowest = max(slowest, crossing * n / (n_chips * ring.share_bytes_per_s))
    for tier in span.tiers:
        slowest = max(slowest, (tier.size - 1) / (tier.size * n_chips * tier.bytes_per_s))
    return slowest


def _permute(span: Span) -> float:
    rates = [ring.share_bytes_per_s for ring in span.rings]
    rates += [tier.bytes_per_s for tier in span.tiers]
    return 1 / min(rates)


def _permute_latency(span: Span) -> float:
    longest_stride = max((ring.stride for ring in span.rings), default=0)
    return max([span.hop_s * longest_stride, *(tier.latency_s for tier in span.tiers)])


def _latency(span: Span, directions: int) -> float:
    n_hops = 0
    for ring in (*span.rings, *span.borrowed):
        if ring.size > 1:
            n_hops += hops(ring.size, ring.closed, directions) * ring.stride
    return n_hops * span.hop_s + sum(tier.latency_s for tier in span.tiers if tier.size > 1)
