"""Seconds of a collective of a compiled program, from the positions of its devices.

A group of devices is mapped to a `Span`, the links that connect it: on a torus the number of chips
along each axis, their distance, and whether they close a ring; on switches the number of members in
a node and the number of nodes. The planner's cost model (`ops.collective`) then gives the seconds.
So a plan and its compiled program may differ in the bytes sent, but not in the time per byte.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from shardwise.check.timeline.places import Array, DevicePlaces
from shardwise.check.timeline.steps import DIRECTIONS
from shardwise.errors import BadInput, BadShape
from shardwise.hardware import System, Torus
from shardwise.ops.collective import Price, price
from shardwise.strategy.span import Ring, Span, Tier

AXES = "xyzw"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The links that a collective uses, and the time it takes on them.

    Args:
        engines: names of the links: torus axes `x`, `y`, `z`, or one of their directions
            (`steps.shared_engines`); `node`, `scale-out`, `dcn`.
        price: time as a function of bytes: V of the book, or for a permute the bytes that each
            device sends.
        is_exact: False if groups are not evenly spaced along the torus axes; the price is then
            that of evenly spaced groups with at least their extent.
    """

    engines: tuple[str, ...]
    price: Price
    is_exact: bool = True

    def time_s(self, n_bytes: float) -> float:
        """Seconds that a collective of `n_bytes` takes."""
        return float(self.price.time_s(n_bytes))


@dataclass(frozen=True, slots=True)
class Network:
    """The links between the devices of a compiled program.

    Args:
        places: positions of the program's devices on the system.
        routes: cache of `route`.
    """

    system: System
    places: DevicePlaces
    routes: dict[tuple[str, bytes, int], Route] = field(default_factory=dict)

    def route(self, kind: str, groups: Array) -> Route:
        """The route of a collective over device groups.

        Args:
            kind: one of `ops.collective.KINDS`, or `send_recv`, which counts as a permute.
            groups: device numbers [group, member]; of a permute [pair, (source, target)].

        Raises:
            BadInput: a device that the machine does not have.
        """
        groups = np.asarray(groups, dtype=np.int64)
        key = (kind, groups.tobytes(), groups.shape[-1])
        if key not in self.routes:
            n_devices = len(self.places.cores)
            if groups.size and int(groups.max()) >= n_devices:
                raise BadInput(
                    f"the program names device {int(groups.max()):,}, but {self.system.name} "
                    f"has {n_devices:,} devices."
                )
            if kind in ("permute", "send_recv"):
                self.routes[key] = self._pairs_route(groups)
            else:
                self.routes[key] = self._groups_route(kind, groups)
        return self.routes[key]

    def between_slices(self, kind: str, n_slices: int) -> Route:
        """The route of a collective between slices, in which every device takes part."""
        rate = self.system.chip.need("dcn_bytes_per_s_per_chip") / self.places.devices_per_chip
        span = Span(tiers=(Tier("dcn", n_slices, rate),))
        cost_kind = "permute" if kind == "send_recv" else kind
        return Route(engines=("dcn",), price=price(cost_kind, span))

    def _groups_route(self, kind: str, groups: Array) -> Route:
        """The route of the slowest group; all groups start together."""
        if groups.shape[-1] < 2:
            return Route(engines=(), price=Price(0.0, 0.0))
        grids, n_cores, is_exact = self._grids(groups)
        prices = []
        engines: set[str] = set()
        for *grid, cores in np.unique(np.column_stack([grids, n_cores]), axis=0).tolist():
            span = self._span(tuple(grid), self.places.devices_per_chip / cores)
            engines.update(_engines(span))
            prices.append(price(kind, span))
        slowest = max(prices, key=lambda p: (p.s_per_byte, p.latency_s))
        return Route(engines=tuple(sorted(engines)), price=slowest, is_exact=is_exact)

    def _grids(self, groups: Array) -> tuple[Array, Array, bool]:
        """Describe each group as a grid of evenly spaced members.

        Returns:
            grids: [group, 2 * (axes + 1)], the number of members along each torus axis and over
                domains, then the distances between them.
            n_cores: [group], the number of cores per chip that take part.
            is_exact: whether all groups are such grids.
        """
        coordinates = np.concatenate(
            [self.places.chips, self.places.domains[:, None]], axis=1, dtype=np.int64
        )
        present = groups >= 0  # shorter groups are padded with -1
        groups = np.where(present, groups, groups[:, :1])
        positions = np.sort(coordinates[groups], axis=1)  # group, member, axis
        gaps = np.diff(positions, axis=1)
        members = (gaps > 0).sum(axis=1) + 1
        extent = positions[:, -1] - positions[:, 0]
        distances = np.where(members > 1, -(-extent // np.maximum(members - 1, 1)), 1)
        cores = np.sort(self.places.cores[groups], axis=1)
        n_cores = (np.diff(cores, axis=1) > 0).sum(axis=1) + 1
        is_regular = ((gaps == 0) | (gaps == distances[:, None, :])).all()
        is_full = (members.prod(axis=1) * n_cores == present.sum(axis=1)).all()
        grids = np.concatenate([members, distances], axis=1)
        return grids, n_cores, bool(is_regular and is_full)

    def _span(self, grid: tuple[int, ...], groups_per_chip: float) -> Span:
        """The links that connect one group.

        Args:
            grid: number of members along each torus axis and over domains, then their distances.
            groups_per_chip: number of groups that share each chip and divide its bandwidth.
        """
        n_axes = len(grid) // 2 - 1
        members = grid[:n_axes]
        n_domains = grid[n_axes]
        distances = grid[n_axes + 1 : -1]
        chip = self.system.chip
        topology = self.system.topology
        if not isinstance(topology, Torus):
            return Span(tiers=self._switch_tiers(members[0], n_domains, groups_per_chip))
        if not chip.ici:
            raise BadShape(f"{chip.name} has no torus.")
        rate = chip.need("ici.link_bytes_per_s_one_way") / groups_per_chip
        rings = []
        for axis, (size, distance) in enumerate(zip(members, distances, strict=True)):
            if size > 1:
                closed = topology.wrapped[axis] and size * distance == topology.shape[axis]
                rings.append(Ring(axis, size, distance, closed, rate))
        tiers: tuple[Tier, ...] = ()
        if n_domains > 1:
            tiers = (
                Tier("dcn", n_domains, chip.need("dcn_bytes_per_s_per_chip") / groups_per_chip),
            )
        return Span(tuple(rings), chip.need("ici.hop_s"), tiers)

    def _switch_tiers(
        self, node_members: int, n_nodes: int, groups_per_chip: float
    ) -> tuple[Tier, ...]:
        chip = self.system.chip
        reduces = self.system.in_network_reduction
        tiers = []
        if node_members > 1:
            rate = chip.need("node.bytes_per_s_per_gpu_one_way") / groups_per_chip
            latency = (chip.node.latency_s if chip.node else None) or 0.0
            tiers.append(Tier("node", node_members, rate, latency, reduces))
        if n_nodes > 1:
            rate = chip.need("scale_out.bytes_per_s_per_gpu_one_way") / groups_per_chip
            latency = (chip.scale_out.latency_s if chip.scale_out else None) or 0.0
            tiers.append(Tier("scale-out", n_nodes, rate, latency, reduces))
        return tuple(tiers)

    def _pairs_route(self, pairs: Array) -> Route:
        """The route of a permute, which takes as long as its most loaded link.

        On a torus each message takes the shortest way, one axis after the other.
        """
        pairs = pairs.reshape(-1, 2)
        pairs = pairs[pairs[:, 0] != pairs[:, 1]]
        sources = pairs[:, 0]
        targets = pairs[:, 1]
        crosses = self.places.domains[sources] != self.places.domains[targets]
        is_torus = isinstance(self.system.topology, Torus)
        groups_per_chip = float(self.places.devices_per_chip)
        prices: dict[str, Price] = {}
        if crosses.any():
            # Two domains with one member each: no links within a domain.
            members = (1,) * self.places.chips.shape[1] + (2,)
            span = self._span(members + (1,) * len(members), groups_per_chip)
            prices["dcn" if is_torus else "scale-out"] = price("permute", span)
        if not crosses.all():
            if is_torus:
                prices |= self._torus_prices(sources[~crosses], targets[~crosses])
            else:
                span = Span(tiers=self._switch_tiers(2, 1, groups_per_chip))
                prices["node"] = price("permute", span)
        s_per_byte = max((float(p.s_per_byte) for p in prices.values()), default=0.0)
        latency_s = max((float(p.latency_s) for p in prices.values()), default=0.0)
        return Route(engines=tuple(prices), price=Price(s_per_byte, latency_s))

    def _torus_prices(self, sources: Array, targets: Array) -> dict[str, Price]:
        """Engine -> price on its most loaded link, with the latency of the hops along all axes.

        The engines are axes, or one direction of them for permutes that use every link in one
        direction alone: that in which they use the first link, along whichever ring. The permute
        along the same ring in the other direction then shares no link with them.
        """
        topology = self.system.topology
        chip = self.system.chip
        if not isinstance(topology, Torus):
            raise BadShape(f"{chip.name} has no torus.")
        positions = self.places.chips[sources].copy()
        target_positions = self.places.chips[targets]
        domains = self.places.domains[sources]
        rate = chip.need("ici.link_bytes_per_s_one_way")
        loads = {}
        n_hops = 0
        for axis, (size, wrapped) in enumerate(zip(topology.shape, topology.wrapped, strict=True)):
            distance = target_positions[:, axis] - positions[:, axis]
            if wrapped:
                distance = (distance + size // 2) % size - size // 2
                distance = np.where(2 * np.abs(distance) == size, size // 2, distance)
            if distance.any():
                n_hops += int(np.abs(distance).max())
                loads[axis] = _link_loads(positions, domains, axis, distance, size)
                positions[:, axis] = target_positions[:, axis]
        latency_s = n_hops * chip.need("ici.hop_s")
        direction = _only_direction(list(loads.values()))
        prices = {}
        for axis, load in loads.items():
            span = Span((Ring(axis, 2, int(load.max()), False, rate),), 0.0)
            seconds = price("permute", span).inside_s_per_byte
            prices[AXES[axis] + direction] = Price(seconds, latency_s)
        return prices


def _link_loads(positions: Array, domains: Array, axis: int, distance: Array, size: int) -> Array:
    """Number of messages over each directed link along one torus axis.

    Args:
        positions: [message, axis], chip coordinates from which the messages start.
        domains: [message], the slice.
        distance: [message], signed hops along `axis`.
        size: chips along `axis`.

    Returns:
        [direction, line, link]; direction 0 is backward, and link i connects chips i and i + 1.
    """
    other_axes = np.delete(positions, axis, axis=1)
    _, lines = np.unique(
        np.concatenate([other_axes, domains[:, None]], axis=1), axis=0, return_inverse=True
    )
    loads = np.zeros((2, int(lines.max()) + 1, size), dtype=np.int64)
    for hop in range(int(np.abs(distance).max())):
        moving = np.abs(distance) > hop
        forward = distance[moving] > 0
        start = positions[moving, axis]
        link = np.where(forward, start + hop, start - hop - 1) % size
        np.add.at(loads, (forward.astype(np.int64), lines[moving], link), 1)
    return loads


def _only_direction(loads: list[Array]) -> str:
    """Suffix of the engines of messages that use each link in one direction; empty for others."""
    if not loads or any((load[0] * load[1]).any() for load in loads):
        return ""
    first_link = np.argmax(loads[0].sum(axis=0) > 0)
    is_forward = loads[0][1].reshape(-1)[first_link] > 0
    return f" {DIRECTIONS[0 if is_forward else 1]}"


def _engines(span: Span) -> tuple[str, ...]:
    """Names of the links in a span."""
    rings = (AXES[ring.axis] for ring in span.rings)
    return (*rings, *(tier.name for tier in span.tiers if tier.size > 1))
