"""Seconds of a collective of a compiled program, from its groups and from where its devices are.

A group of devices is put back on the links: on a torus the run of chips that it has along each
physical axis (how many, how far apart, closed or not), on switches the members in a node, the
nodes and the slices. From there on it is a `Span`, and the price is that of the planner
(`ops.collective`): a plan and its compiled program can only differ in what is sent, not in what a
byte costs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from shardwise.check.timeline.places import Array, Devices
from shardwise.errors import BadInput, BadShape
from shardwise.hardware import System, Torus
from shardwise.ops.collective import Price, price
from shardwise.strategy.span import Ring, Span, Tier

AXES = "xyzw"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What a collective runs over.

    Args:
        engines: the links that it keeps busy: `x`, `y`, `z` of a torus, `node`, `scale-out`, `dcn`.
        price: seconds of it by bytes, V of the book (of a permute what each device sends).
        exact: False where the groups are no runs along the axes, and the price is that of the
            runs which they lie in.
    """

    engines: tuple[str, ...]
    price: Price
    exact: bool = True

    def time_s(self, n_bytes: float) -> float:
        return float(self.price.time_s(n_bytes))


@dataclass(frozen=True, slots=True)
class Network:
    """The links under a compiled program.

    Args:
        system: the machine.
        devices: where the program's devices are on it.
    """

    system: System
    devices: Devices
    known: dict[tuple[str, bytes, int], Route] = field(default_factory=dict)

    def route(self, kind: str, groups: Array) -> Route:
        """What a collective over these groups runs over, and what a byte costs.

        Args:
            kind: of `ops.collective.KINDS`; `send_recv` is a permute.
            groups: [group, member] device numbers; pairs (from, to) of a permute.

        Raises:
            BadInput: a device that the machine does not have.
        """
        groups = np.asarray(groups, dtype=np.int64)
        key = (kind, groups.tobytes(), groups.shape[-1])
        if key not in self.known:
            if groups.size and int(groups.max()) >= len(self.devices.cores):
                raise BadInput(
                    f"the program names device {int(groups.max()):,}, and {self.system.name} "
                    f"was laid out with {len(self.devices.cores):,} devices."
                )
            permute = kind in ("permute", "send_recv")
            self.known[key] = self._pairs(groups) if permute else self._groups(kind, groups)
        return self.known[key]

    def between_slices(self, kind: str, n_slices: int) -> Route:
        """A transfer over the data-center network in which every device takes part."""
        rate = self.system.chip.need("dcn_bytes_per_s_per_chip") / self.devices.per_chip
        span = Span(tiers=(Tier("dcn", n_slices, rate),))
        moved = "permute" if kind == "send_recv" else kind
        return Route(engines=("dcn",), price=price(moved, span))

    def _groups(self, kind: str, groups: Array) -> Route:
        """The dearest of the groups: all of them start together."""
        if groups.shape[-1] < 2:
            return Route(engines=(), price=Price(0.0, 0.0))
        runs, cores, exact = self._runs(groups)
        routes = []
        for row, n_cores in {(tuple(r), int(c)) for r, c in zip(runs.tolist(), cores, strict=True)}:
            span = self._span(row, self.devices.per_chip / n_cores)
            routes.append((price(kind, span), _engines(span)))
        cost, _ = max(routes, key=lambda r: (r[0].s_per_byte, r[0].latency_s))
        engines = tuple(sorted({name for _, names in routes for name in names}))
        return Route(engines=engines, price=cost, exact=exact)

    def _runs(self, groups: Array) -> tuple[Array, Array, bool]:
        """For each group, members and distance along each axis, last the domains; and its cores."""
        coords = np.concatenate(
            [self.devices.chips, self.devices.domains[:, None]], axis=1, dtype=np.int64
        )
        present = groups >= 0  # shorter groups are filled up with -1
        groups = np.where(present, groups, groups[:, :1])
        held = np.sort(coords[groups], axis=1)  # group, member, axis
        steps = np.diff(held, axis=1)
        members = (steps > 0).sum(axis=1) + 1
        extent = held[:, -1] - held[:, 0]
        apart = np.where(members > 1, -(-extent // np.maximum(members - 1, 1)), 1)
        cores = np.sort(self.devices.cores[groups], axis=1)
        n_cores = (np.diff(cores, axis=1) > 0).sum(axis=1) + 1
        regular = ((steps == 0) | (steps == apart[:, None, :])).all()
        whole = (members.prod(axis=1) * n_cores == present.sum(axis=1)).all()
        return np.concatenate([members, apart], axis=1), n_cores, bool(regular and whole)

    def _span(self, runs: tuple[int, ...], sharing: float) -> Span:
        """The links under one group.

        Args:
            runs: members along each axis and over domains, then the distances.
            sharing: groups that use the same chips: each has its part of the links.
        """
        half = len(runs) // 2
        members, apart = runs[: half - 1], runs[half:-1]
        chip, across = self.system.chip, runs[half - 1]
        topology = self.system.topology
        if not isinstance(topology, Torus):
            return Span(tiers=self._switches(members[0], across, sharing))
        if not chip.ici:
            raise BadShape(f"{chip.name} has no torus.")
        rate = chip.need("ici.link_bytes_per_s_one_way") / sharing
        rings = tuple(
            Ring(a, n, d, topology.wrapped[a] and n * d == topology.shape[a], rate)
            for a, (n, d) in enumerate(zip(members, apart, strict=True))
            if n > 1
        )
        dcn = chip.need("dcn_bytes_per_s_per_chip") / sharing if across > 1 else 0.0
        tiers = (Tier("dcn", across, dcn),) if across > 1 else ()
        return Span(rings, chip.need("ici.hop_s"), tiers)

    def _switches(self, inside: int, across: int, sharing: float) -> tuple[Tier, ...]:
        chip, adds = self.system.chip, self.system.in_network_reduction
        tiers = []
        if inside > 1:
            rate = chip.need("node.bytes_per_s_per_gpu_one_way") / sharing
            latency = (chip.node.latency_s if chip.node else None) or 0.0
            tiers.append(Tier("node", inside, rate, latency, adds))
        if across > 1:
            rate = chip.need("scale_out.bytes_per_s_per_gpu_one_way") / sharing
            latency = (chip.scale_out.latency_s if chip.scale_out else None) or 0.0
            tiers.append(Tier("scale-out", across, rate, latency, adds))
        return tuple(tiers)

    def _pairs(self, pairs: Array) -> Route:
        """A permute: the fullest link decides, each pair going the short way, axis by axis."""
        pairs = pairs[pairs[:, 0] != pairs[:, 1]] if pairs.size else pairs
        sources, targets = (pairs[:, 0], pairs[:, 1]) if pairs.size else (pairs, pairs)
        far = self.devices.domains[sources] != self.devices.domains[targets]
        prices: list[tuple[str, Price]] = []
        if far.any():
            torus = isinstance(self.system.topology, Torus)
            sharing = float(self.devices.per_chip)
            name = "dcn" if torus else "scale-out"
            # One member here, one there; on a torus nothing of it runs over the links inside.
            runs = (1,) * self.devices.chips.shape[1] + (2,)
            span = self._span(runs + (1,) * len(runs), sharing)
            prices.append((name, price("permute", span)))
        near = ~far
        if near.any() and isinstance(self.system.topology, Torus):
            prices += self._torus_pairs(sources[near], targets[near])
        elif near.any():
            span = Span(tiers=self._switches(2, 1, float(self.devices.per_chip)))
            prices.append(("node", price("permute", span)))
        slope = max((float(p.s_per_byte) for _, p in prices), default=0.0)
        latency = max((float(p.latency_s) for _, p in prices), default=0.0)
        return Route(engines=tuple(name for name, _ in prices), price=Price(slope, latency))

    def _torus_pairs(self, sources: Array, targets: Array) -> list[tuple[str, Price]]:
        """Messages on the fullest link of each axis, and the longest way."""
        topology, chip = self.system.topology, self.system.chip
        if not isinstance(topology, Torus):
            raise BadShape(f"{chip.name} has no torus.")
        at, end = self.devices.chips[sources].copy(), self.devices.chips[targets]
        found, hops = [], 0
        rate, hop_s = chip.need("ici.link_bytes_per_s_one_way"), chip.need("ici.hop_s")
        for axis, (n, wrapped) in enumerate(zip(topology.shape, topology.wrapped, strict=True)):
            way = end[:, axis] - at[:, axis]
            if wrapped:
                way = (way + n // 2) % n - n // 2
                way = np.where(2 * np.abs(way) == n, n // 2, way)
            if not way.any():
                continue
            hops += int(np.abs(way).max())
            load = _fullest(at, self.devices.domains[sources], axis, way, n)
            one = Ring(axis, 2, load, False, rate)
            found.append((AXES[axis], price("permute", Span((one,), 0.0))))
            at[:, axis] = end[:, axis]
        return [(name, Price(p.inside_s_per_byte, hops * hop_s)) for name, p in found]


def _fullest(at: Array, domains: Array, axis: int, way: Array, n: int) -> int:
    """Messages over the fullest directed link along one axis."""
    line = np.delete(at, axis, axis=1)
    _, lines = np.unique(
        np.concatenate([line, domains[:, None]], axis=1), axis=0, return_inverse=True
    )
    loads = np.zeros((2, int(lines.max()) + 1, n), dtype=np.int64)
    for step in range(int(np.abs(way).max())):
        on = np.abs(way) > step
        forward = way[on] > 0
        # The link that leaves a chip upwards and the one that enters it from above share a number.
        link = np.where(forward, at[on, axis] + step, at[on, axis] - step - 1) % n
        np.add.at(loads, (forward.astype(np.int64), lines[on], link), 1)
    return int(loads.max())


def _engines(span: Span) -> tuple[str, ...]:
    return (*(AXES[r.axis] for r in span.rings), *(t.name for t in span.tiers if t.size > 1))
