"""Spans: the physical links of one or several mesh axes, over which a collective runs.

On a torus a span has `Ring`s, one for each torus axis that the mesh axis uses. On switches it has
`Tier`s: the NVLink domain, then the network between nodes. Several slices add a tier for the
data-center network (DCN).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Ring:
    """`size` chips along one torus axis, `stride` chips apart.

    With a stride, that many groups interleave and share each link: a group has 1/stride of its
    bandwidth. A group that covers a whole axis with a wraparound link is `closed`, a ring; any
    other is a line.
    """

    axis: int
    size: int
    stride: int
    closed: bool
    link_bytes_per_s_one_way: float

    @property
    def share_bytes_per_s(self) -> float:
        """This group's share of the bandwidth of one link in one direction."""
        return self.link_bytes_per_s_one_way / self.stride

    @property
    def with_instant_links(self) -> Ring:
        """A copy whose links take no time."""
        return replace(self, link_bytes_per_s_one_way=math.inf)


@dataclass(frozen=True, slots=True)
class Tier:
    """`size` members that a switch connects, each at the full rate of its port.

    The members are GPUs ("node"), nodes ("scale-out") or slices ("dcn"). With `reduces`, the switch
    adds up what it receives (SHARP), and an AllReduce sends each byte once.
    """

    name: str
    size: int
    bytes_per_s: float
    latency_s: float = 0.0
    reduces: bool = False

    @property
    def is_node(self) -> bool:
        """Whether the members are the GPUs of one node, not nodes or slices."""
        return self.name == "node"

    @property
    def is_slices(self) -> bool:
        """Whether the members are slices of TPUs."""
        return self.name == "dcn"

    @property
    def with_instant_links(self) -> Tier:
        """A copy whose links take no time."""
        return replace(self, bytes_per_s=math.inf)


@dataclass(frozen=True)
class Span:
    """The links of one mesh axis: rings of a torus, then tiers from the innermost to the outermost.

    `borrowed` are torus axes that no mesh axis uses and whose links carry a part of the traffic:
    each chip along them moves a share of the array, and they bring the shares together.
    """

    rings: tuple[Ring, ...] = ()
    hop_s: float = 0.0
    tiers: tuple[Tier, ...] = ()
    borrowed: tuple[Ring, ...] = ()

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        """Hash of the fields, kept because a search looks spans up many times."""
        return hash((self.rings, self.hop_s, self.tiers, self.borrowed))

    @property
    def size(self) -> int:
        """Chips that the axis connects."""
        return self.ring_size * math.prod(tier.size for tier in self.tiers)

    @property
    def inside(self) -> Span:
        """A copy in which only links of the torus or inside nodes take time."""
        tiers = []
        for tier in self.tiers:
            if not tier.is_node:
                tier = tier.with_instant_links
            tiers.append(tier)
        return replace(self, tiers=tuple(tiers))

    @property
    def outside(self) -> Span:
        """A copy in which only links between nodes or slices take time."""
        tiers = []
        for tier in self.tiers:
            if tier.is_node:
                tier = tier.with_instant_links
            tiers.append(tier)
        return replace(
            self,
            rings=tuple(ring.with_instant_links for ring in self.rings),
            borrowed=tuple(ring.with_instant_links for ring in self.borrowed),
            tiers=tuple(tiers),
        )

    @property
    def ring_size(self) -> int:
        """Chips that the axis connects on the torus."""
        return math.prod(ring.size for ring in self.rings)


TIER_ORDER = ("node", "scale-out", "dcn")


@functools.lru_cache(maxsize=1 << 16)
def join(spans: tuple[Span, ...], shape: tuple[int, ...], wrapped: tuple[bool, ...]) -> Span:
    """The links of several mesh axes, as if they were one axis.

    Rings that continue each other on a torus axis become one ring. Tiers of one name become one.
    """
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
    """Merge rings on the same torus axis if the stride of one is the extent of the other."""
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
