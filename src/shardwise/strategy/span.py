"""Spans: the physical links under one mesh axis, or under several, that a collective runs over.

A torus gives `Ring`s, one for each physical axis that the mesh axis uses. A switched machine
gives `Tier`s: the NVLink domain, then the scale-out network. Slices add a tier for DCN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Ring:
    """A run of `size` chips along one torus axis, `stride` chips apart.

    Groups that interleave with a stride share each link, so each has 1/stride of it. A run over a
    whole axis with a wraparound link is a closed ring; over a part of an axis it is a line.
    """

    axis: int
    size: int
    stride: int
    closed: bool
    link_bytes_per_s_one_way: float

    @property
    def share_bytes_per_s(self) -> float:
        """Bandwidth of one direction of one link, the share of this run."""
        return self.link_bytes_per_s_one_way / self.stride

    @property
    def at_once(self) -> Ring:
        """A copy whose links take no time."""
        return replace(self, link_bytes_per_s_one_way=math.inf)


@dataclass(frozen=True, slots=True)
class Tier:
    """`size` members behind a switch, each with its own port at the full rate."""

    name: str
    size: int
    bytes_per_s: float
    latency_s: float = 0.0
    reduces: bool = False  # in the switch (SHARP): an AllReduce sends each byte once

    @property
    def is_node(self) -> bool:
        """Whether it connects the chips of a node, rather than nodes or slices."""
        return self.name == "node"

    @property
    def at_once(self) -> Tier:
        """A copy whose links take no time."""
        return replace(self, bytes_per_s=math.inf)


@dataclass(frozen=True, slots=True)
class Span:
    """The links of one mesh axis: torus runs first, then tiers, the innermost first.

    `borrowed` are idle torus axes whose links carry a part of the traffic: each plane across them
    moves its share of the array, and they bring the shares together.
    """

    rings: tuple[Ring, ...] = ()
    hop_s: float = 0.0
    tiers: tuple[Tier, ...] = ()
    borrowed: tuple[Ring, ...] = ()

    @property
    def size(self) -> int:
        """Chips that the axis connects."""
        return self.ring_size * math.prod(tier.size for tier in self.tiers)

    @property
    def inside(self) -> Span:
        """A copy with no time spent outside the nodes or slices."""
        tiers = []
        for tier in self.tiers:
            if not tier.is_node:
                tier = tier.at_once
            tiers.append(tier)
        return replace(self, tiers=tuple(tiers))

    @property
    def outside(self) -> Span:
        """A copy with no time spent on the torus or inside the nodes."""
        tiers = []
        for tier in self.tiers:
            if tier.is_node:
                tier = tier.at_once
            tiers.append(tier)
        return replace(
            self,
            rings=tuple(ring.at_once for ring in self.rings),
            borrowed=tuple(ring.at_once for ring in self.borrowed),
            tiers=tuple(tiers),
        )

    @property
    def ring_size(self) -> int:
        """Chips that the axis connects on the torus."""
        return math.prod(ring.size for ring in self.rings)


TIER_ORDER = ("node", "scale-out", "dcn")


def join(spans: tuple[Span, ...], shape: tuple[int, ...], wrapped: tuple[bool, ...]) -> Span:
    """Merge several mesh axes: runs that continue each other on a torus axis become one run."""
    rings: list[Ring] = []
    tiers: dict[str, Tier] = {}
    borrowed: tuple[Ring, ...] = ()
    for span in spans:
        rings += span.rings
        borrowed = borrowed or span.borrowed
        for tier in span.tiers:
            size = tier.size
            if tier.name in tiers:
                size *= tiers[tier.name].size
            tiers[tier.name] = replace(tier, size=size)
    return Span(
        _join_rings(rings, shape, wrapped),
        max(span.hop_s for span in spans),
        tuple(sorted(tiers.values(), key=lambda tier: TIER_ORDER.index(tier.name))),
        borrowed,
    )


def _join_rings(
    rings: list[Ring], shape: tuple[int, ...], wrapped: tuple[bool, ...]
) -> tuple[Ring, ...]:
    joined: list[Ring] = []
    for ring in sorted(rings, key=lambda ring: (ring.axis, ring.stride)):
        last = None
        if joined:
            last = joined[-1]
        if last and last.axis == ring.axis and last.stride * last.size == ring.stride:
            size = last.size * ring.size
            closed = wrapped[ring.axis] and size * last.stride == shape[ring.axis]
            joined[-1] = Ring(ring.axis, size, last.stride, closed, ring.link_bytes_per_s_one_way)
        else:
            joined.append(ring)
    return tuple(joined)
