"""How long a collective takes on the links it runs over. Book §3 (torus), §12 (GPUs).

Every time is linear in the bytes above a latency floor, `max(latency, bytes * seconds_per_byte)`,
so a span and a kind of collective come down to two numbers, and a search over a million strategies
multiplies arrays of them.

`bytes` is V in the book: the array summed over the shards that the collective joins or splits.

    AllGather, ReduceScatter   V / sum of the rings' bandwidth        rings in both directions
    AllReduce                  twice that
    AllToAll                   V * n_i / (4 N W_i), the slowest axis
    permute                    V / one direction of one link          V: what each chip sends
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from shardwise.arrays import Num, maximum
from shardwise.errors import BadInput, UnknownName
from shardwise.strategy.span import Ring, Span, Tier

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute")
SHOWN = {
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_reduce": "AllReduce",
    "all_to_all": "AllToAll",
    "permute": "Permute",
}
# The collective that the backward pass runs for each one of the forward pass. Book §3, Q10.
ADJOINT = {
    "all_gather": "reduce_scatter",
    "reduce_scatter": "all_gather",
    "all_reduce": "all_reduce",
    "all_to_all": "all_to_all",
    "permute": "permute",
}


@dataclass(frozen=True, slots=True)
class Price:
    """What a collective costs on a span: `max(latency_s, bytes * s_per_byte)`.

    Args:
        inside_s_per_byte: on the torus or inside the nodes.
        outside_s_per_byte: between nodes or slices, which runs beside it.
    """

    inside_s_per_byte: Num
    latency_s: Num
    outside_s_per_byte: Num = 0.0

    @property
    def s_per_byte(self) -> Num:
        """The slower of the two."""
        return maximum(self.inside_s_per_byte, self.outside_s_per_byte)

    def time_s(self, n_bytes: Num, links: Num = 1.0, network: Num = 1.0) -> Num:
        """Seconds where a share of the rates is reached inside and between nodes."""
        slower = maximum(self.inside_s_per_byte / links, self.outside_s_per_byte / network)
        return maximum(self.latency_s, n_bytes * slower)


@functools.lru_cache(maxsize=65536)
def price(kind: str, span: Span, directions: int = 2) -> Price:
    """Seconds per byte and latency of one collective.

    Args:
        kind: one of `KINDS`.
        span: the links.
        directions: 2 sends both ways round each ring (what TPUs do), 1 only one way.

    Raises:
        UnknownName: for another kind.
        BadInput: for other directions.
    """
    if kind not in KINDS:
        raise UnknownName("collective", kind, KINDS)
    if directions not in (1, 2):
        raise BadInput(f"a ring has 1 or 2 directions, not {directions}.")
    if span.size == 1:
        return Price(0.0, 0.0)
    inside, outside = span.inside, span.outside
    if kind == "permute":
        return Price(_permute(inside), _permute_latency(span), _permute(outside))
    if kind == "all_to_all":
        slopes = [_all_to_all(part, directions) for part in (inside, outside)]
        return Price(slopes[0], _latency(span, directions), slopes[1])
    found = _all_reduce if kind == "all_reduce" else _all_gather
    latency = _latency(span, directions) * (2 if kind == "all_reduce" else 1)
    return Price(found(inside, directions), latency, found(outside, directions))


def time_s(kind: str, n_bytes: Num, span: Span, directions: int = 2) -> Num:
    """Seconds of a collective over `span` on an array of `n_bytes` (V in the book)."""
    return price(kind, span, directions).time_s(n_bytes)


def received_bytes(kind: str, n_bytes: Num, n: Num) -> Num:
    """Bytes that each of `n` chips takes in: what the compiled program should show."""
    share = (n - 1) / n
    each = {"all_reduce": 2 * share, "all_to_all": share / n, "permute": 1.0}
    return n_bytes * each.get(kind, share)


def hops(n: int, closed: bool, directions: int = 2) -> int:
    """Longest way along an axis: n/2 round a ring both ways, n - 1 along a line or one way."""
    return n // 2 if closed and directions == 2 else n - 1


def inbound_bytes_per_s(ring: Ring, directions: int = 2) -> float:
    """What the worst chip of a run can take in: two links on a ring, one at the end of a line."""
    return ring.share_bytes_per_s * (directions if ring.closed else 1)


def _all_gather(span: Span, directions: int) -> float:
    """V over what a chip takes in; exactly V (N-1)/N unless a ring of even length ends in a hop
    that both directions fill half. The book's V / W is that of an even ring.
    """
    runs = [r for r in span.rings if r.size > 1]
    even = directions == 2 and any(r.closed and r.size % 2 == 0 for r in runs)
    n = math.prod(r.size for r in runs)
    taken = 1.0 if even else (n - 1) / n
    inbound = sum(inbound_bytes_per_s(r, directions) for r in (*runs, *span.lent))
    slowest = taken / inbound if runs else 0.0
    inner = span.ring_size
    for tier in span.tiers:
        slowest = max(slowest, (tier.size - 1) / (tier.size * tier.bytes_per_s * inner))
        inner *= tier.size
    return slowest


def _all_reduce(span: Span, directions: int) -> float:
    """Twice the gather, but a switch that adds takes each byte once. Levels run as a pipeline."""
    rings = replace(span, tiers=())
    slowest = 2 * _all_gather(rings, directions) if rings.size > 1 else 0.0
    inner = span.ring_size
    for tier in span.tiers:
        factor = 1.0 if tier.reduces else 2 * (tier.size - 1) / tier.size
        slowest = max(slowest, factor / (tier.bytes_per_s * inner) if tier.size > 1 else 0.0)
        inner *= tier.size
    return slowest


def _all_to_all(span: Span, directions: int) -> float:
    """Every chip holds V/N and sends an N-th of it to each: the fullest link decides."""
    n_all = span.size
    slowest = 0.0
    for ring in span.rings:
        n = ring.size
        if ring.closed and directions == 1:
            crossing = (n - 1) / (2 * n)
        else:
            crossing = (n * n // 4) / (n * n) / (2 if ring.closed else 1)
        slowest = max(slowest, crossing * n / (n_all * ring.share_bytes_per_s))
    for tier in span.tiers:
        slowest = max(slowest, (tier.size - 1) / (tier.size * n_all * tier.bytes_per_s))
    return slowest


def _permute(span: Span) -> float:
    rates = [r.share_bytes_per_s for r in span.rings] + [t.bytes_per_s for t in span.tiers]
    return 1 / min(rates)


def _permute_latency(span: Span) -> float:
    along = span.hop_s * max((r.stride for r in span.rings), default=0)
    return max([along, *(t.latency_s for t in span.tiers)])


def _latency(span: Span, directions: int) -> float:
    runs = [r for r in (*span.rings, *span.lent) if r.size > 1]
    along = sum(hops(r.size, r.closed, directions) * r.stride for r in runs)
    return along * span.hop_s + sum(_tier_latency(t) for t in span.tiers)


def _tier_latency(tier: Tier) -> float:
    return tier.latency_s if tier.size > 1 else 0.0
