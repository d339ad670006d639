"""One collective on the links of a machine, level by level. Book §3 (torus), §12 (GPUs)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from shardwise.errors import BadInput, UnknownName
from shardwise.hardware import Switched, System
from shardwise.ops import collective
from shardwise.strategy.mesh import Placement, place
from shardwise.strategy.span import Span, Tier

AXIS_NAMES = "XYZW"
MAX_BYTES = 2.0**60


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLevel:
    """Links of one level over which a collective runs.

    Args:
        name: `torus`, `node`, `scale-out` or `dcn`.
        members: chips, nodes or slices that the level connects.
        transfer_s: seconds in which these links carry the bytes; all levels work at the same time.
        reduces: whether the switch of the level adds up what it receives.
    """

    name: str
    members: int
    transfer_s: float
    reduces: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """The time of a collective.

    Args:
        kind: one of `ops.collective.KINDS`.
        joined_bytes: V of the book: bytes of the whole array; of a permute, what a chip sends.
        mesh: axis -> its size.
        axes: the axes over which the collective runs.
        links: axis -> its links in words.
        n_chips: chips of one group.
        received_bytes: bytes that each chip receives.
        latency_s: seconds of an array without bytes: the hops, or the messages of the switches.
        transfer_s: seconds of the bytes on the slowest level.
        latency_bound_bytes: arrays below this size take the latency.
    """

    kind: str
    system: str
    joined_bytes: float
    mesh: Mapping[str, int]
    axes: tuple[str, ...]
    links: Mapping[str, str]
    n_chips: int
    received_bytes: float
    latency_s: float
    transfer_s: float
    latency_bound_bytes: float
    levels: tuple[LinkLevel, ...]

    @property
    def time_s(self) -> float:
        """Seconds: the bytes are pipelined behind the latency, so the longer of the two."""
        return max(self.latency_s, self.transfer_s)


def physical_mesh(system: System) -> dict[str, int]:
    """The axes of a machine: those of its torus, or the GPUs of a node and the nodes.

    >>> from shardwise.hardware import parse_system
    >>> physical_mesh(parse_system("v5e:4x8")), physical_mesh(parse_system("h100:32"))
    ({'X': 4, 'Y': 8}, {'X': 8, 'Y': 4})
    """
    topology = system.topology
    if isinstance(topology, Switched):
        node_gpus = topology.gpus_per_node
        sizes = [node_gpus, topology.n_gpus // node_gpus]
    else:
        sizes = [*topology.shape, system.n_slices]
    return {name: size for name, size in zip(AXIS_NAMES, sizes, strict=False) if size > 1}


def collective_time(
    kind: str,
    n_bytes: float,
    system: System,
    axes: Sequence[str] = (),
    mesh: Mapping[str, int] | None = None,
) -> CollectiveTime:
    """The time of one collective, on the fastest placement of its axes.

    Args:
        kind: one of `ops.collective.KINDS`.
        n_bytes: V; of a permute, the bytes that each chip sends.
        axes: the mesh axes over which it runs; empty for all.
        mesh: axis -> its size; None for the axes of the machine, `physical_mesh`.

    Raises:
        UnknownName: the kind or an axis is unknown.
        BadInput: the size is out of range.
        NoStrategy: the mesh does not fit on the machine.
    """
    if kind not in collective.KINDS:
        raise UnknownName("collective", kind, collective.KINDS)
    if not 0 < n_bytes <= MAX_BYTES:
        raise BadInput(f"an array of {n_bytes:g} bytes is not between 1 B and 1 EiB.")
    sizes = dict(mesh or physical_mesh(system))
    for axis in axes:
        if axis not in sizes:
            raise UnknownName("mesh axis", axis, sizes)
    over = tuple(axes) or tuple(sizes)
    placements = place(system, sizes, order=tuple(sizes))
    if not mesh:
        placements = tuple(filter(_is_physical, placements))
    best = min(placements, key=lambda p: collective.time_s(kind, n_bytes, p.span(over)))
    span = best.span(over)
    price = collective.price(kind, span)
    s_per_byte = float(price.s_per_byte)
    return CollectiveTime(
        kind=kind,
        system=system.name,
        joined_bytes=n_bytes,
        mesh=sizes,
        axes=over,
        links={axis: best.describe(axis) for axis in over},
        n_chips=span.size,
        received_bytes=float(collective.received_bytes(kind, n_bytes, max(1, span.size))),
        latency_s=float(price.latency_s),
        transfer_s=n_bytes * s_per_byte,
        latency_bound_bytes=float(price.latency_s) / s_per_byte if s_per_byte else 0.0,
        levels=tuple(_levels(kind, n_bytes, span)),
    )


def _is_physical(placement: Placement) -> bool:
    """Whether X, Y and Z are the axes x, y and z of the torus."""
    rings = [(name, span.rings) for name, span in placement.spans if span.rings]
    return all(len(part) == 1 and AXIS_NAMES[part[0].axis] == name for name, part in rings)


def _levels(kind: str, n_bytes: float, span: Span) -> Iterator[LinkLevel]:
    """The levels of a span, from the innermost: each alone carries the bytes."""
    if span.rings:
        tiers = tuple(tier.with_instant_links for tier in span.tiers)
        yield _level("torus", span.ring_size, kind, n_bytes, replace(span, tiers=tiers), None)
    rings = tuple(ring.with_instant_links for ring in span.rings)
    borrowed = tuple(ring.with_instant_links for ring in span.borrowed)
    for index, tier in enumerate(span.tiers):
        if tier.size == 1:
            continue
        tiers = tuple(
            other if position == index else other.with_instant_links
            for position, other in enumerate(span.tiers)
        )
        alone = replace(span, rings=rings, borrowed=borrowed, tiers=tiers)
        yield _level(tier.name, tier.size, kind, n_bytes, alone, tier)


def _level(
    name: str, members: int, kind: str, n_bytes: float, span: Span, tier: Tier | None
) -> LinkLevel:
    return LinkLevel(
        name=name,
        members=members,
        transfer_s=n_bytes * float(collective.price(kind, span).s_per_byte),
        reduces=tier is not None and tier.reduces and kind == "all_reduce",
    )
