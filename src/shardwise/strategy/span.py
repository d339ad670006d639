"""What a collective runs over: the physical links under one mesh axis, or under several.

A torus gives `Ring`s, one for each physical axis that the mesh axis uses. A switched machine
gives `Tier`s: the NVLink domain, then the scale-out network. Slices add a tier for DCN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Ring:
    """A run of `size` chips along one torus axis, `stride` chips apart.

    Groups that interleave with a stride share each link, so each has 1/stride of it. A run that
    covers its axis closes over the wraparound link; a part of an axis is a line.
    """

    axis: int
    size: int
    stride: int
    closed: bool
    link_bytes_per_s_one_way: float

    @property
    def share_bytes_per_s(self) -> float:
        """One direction of one link, as far as this run has it."""
        return self.link_bytes_per_s_one_way / self.stride

    @property
    def at_once(self) -> Ring:
        """The same with links that take no time."""
        return replace(self, link_bytes_per_s_one_way=math.inf)


@dataclass(frozen=True, slots=True)
class Tier:
    """`size` members behind a switch, each with its own port while all the others use theirs."""

    name: str
    size: int
    bytes_per_s: float
    latency_s: float = 0.0
    reduces: bool = False  # the switch adds (SHARP): an AllReduce sends each byte once

    @property
    def is_node(self) -> bool:
        """Whether it joins the chips of one node, not nodes or slices."""
        return self.name == "node"

    @property
    def at_once(self) -> Tier:
        """The same with links that take no time."""
        return replace(self, bytes_per_s=math.inf)


@dataclass(frozen=True, slots=True)
class Span:
    """The links of one mesh axis: torus runs first, then tiers from the inside out.

    `lent` are idle torus axes whose links carry a part of the traffic: each plane across them
    moves its share of the array, and they bring the shares together.
    """

    rings: tuple[Ring, ...] = ()
    hop_s: float = 0.0
    tiers: tuple[Tier, ...] = ()
    lent: tuple[Ring, ...] = ()

    @property
    def size(self) -> int:
        """Chips that the axis joins."""
        return self.ring_size * math.prod(t.size for t in self.tiers)

    @property
    def inside(self) -> Span:
        """The same with no time spent outside the nodes or slices."""
        return replace(self, tiers=tuple(t if t.is_node else t.at_once for t in self.tiers))

    @property
    def outside(self) -> Span:
        """The same with no time spent on the torus or inside the nodes."""
        return replace(
            self,
            rings=tuple(r.at_once for r in self.rings),
            lent=tuple(r.at_once for r in self.lent),
            tiers=tuple(t.at_once if t.is_node else t for t in self.tiers),
        )

    @property
    def ring_size(self) -> int:
        """Chips that it joins on the torus."""
        return math.prod(r.size for r in self.rings)


def join(spans: tuple[Span, ...], shape: tuple[int, ...], wrapped: tuple[bool, ...]) -> Span:
    """Several mesh axes as one: runs that continue each other on a torus axis become one run."""
    rings = _join_rings([r for s in spans for r in s.rings], shape, wrapped)
    tiers: dict[str, Tier] = {}
    for tier in (t for s in spans for t in s.tiers):
        old = tiers.get(tier.name)
        size = tier.size * (old.size if old else 1)
        tiers[tier.name] = Tier(tier.name, size, tier.bytes_per_s, tier.latency_s, tier.reduces)
    order = {"node": 0, "scale-out": 1, "dcn": 2}
    return Span(
        rings,
        max(s.hop_s for s in spans),
        tuple(sorted(tiers.values(), key=lambda t: order[t.name])),
        next((s.lent for s in spans if s.lent), ()),
    )


def _join_rings(
    rings: list[Ring], shape: tuple[int, ...], wrapped: tuple[bool, ...]
) -> tuple[Ring, ...]:
    joined: list[Ring] = []
    for ring in sorted(rings, key=lambda r: (r.axis, r.stride)):
        last = joined[-1] if joined else None
        if last and last.axis == ring.axis and last.stride * last.size == ring.stride:
            size = last.size * ring.size
            closed = wrapped[ring.axis] and size * last.stride == shape[ring.axis]
            joined[-1] = Ring(ring.axis, size, last.stride, closed, ring.link_bytes_per_s_one_way)
        else:
            joined.append(ring)
    return tuple(joined)
