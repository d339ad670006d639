"""Roles of mesh axes, their sizes, and where they lie on the hardware."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from shardwise.errors import BadShape, NoStrategy
from shardwise.hardware import Chip, Shape, Switched, System, Torus
from shardwise.strategy.span import Ring, Span, Tier, join

FEW_WAYS = 64  # to lay a mesh over a torus: so many are all tried, of more the best on every axis

# From the inside out: the axis whose traffic nothing hides lies closest together.
INSIDE_OUT = ("tensor", "context", "expert", "fsdp", "data", "pipe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Sizes of the mesh axes by role.

    `data` shards the batch and replicates weights, `fsdp` shards both, `tensor` shards heads and
    MLP width, `context` the sequence, `expert` the experts, `pipe` the layers.
    """

    data: int = 1
    fsdp: int = 1
    tensor: int = 1
    context: int = 1
    expert: int = 1
    pipe: int = 1

    def __post_init__(self) -> None:
        bad = [f"{role} {n} is below 1." for role, n in self.sizes.items() if n < 1]
        if bad:
            raise BadShape(*bad)

    @property
    def sizes(self) -> dict[str, int]:
        return {role: getattr(self, role) for role in ROLES}

    @property
    def n_chips(self) -> int:
        return math.prod(self.sizes.values())

    def __str__(self) -> str:
        return " x ".join(f"{r} {n}" for r, n in self.sizes.items() if n > 1) or "one chip"


ROLES = tuple(f.name for f in fields(Mesh))


@dataclass(frozen=True, slots=True)
class Placement:
    """The links under every mesh axis, and the torus they lie on (empty when switched)."""

    spans: tuple[tuple[str, Span], ...]
    shape: tuple[int, ...] = ()
    wrapped: tuple[bool, ...] = ()

    def span(self, axes: tuple[str, ...]) -> Span:
        """The links under several mesh axes taken as one."""
        found = [span for axis, span in self.spans if axis in axes]
        if len(found) < 2:
            return found[0] if found else Span()
        return join(tuple(found), self.shape, self.wrapped)

    @property
    def lengths(self) -> tuple[int, ...] | None:
        """Lengths of the torus axes under the mesh axes when each lies on one whole one."""
        rings = [span.rings for _, span in self.spans]
        if any(len(r) != 1 for r in rings):
            return None
        on = [r[0].axis for r in rings]
        whole = all(r[0].size == self.shape[r[0].axis] for r in rings)
        return tuple(self.shape[a] for a in on) if whole else None

    def describe(self, axis: str) -> str:
        """`4 of 20 on y + 2 of 28 on z`, `8 in the node`, ..."""
        span = dict(self.spans).get(axis, Span())
        parts = [_ring_text(r, self.shape) for r in span.rings if r.size > 1]
        place = {"node": "in the node", "scale-out": "across nodes", "dcn": "across slices"}
        parts += [f"{t.size} {place[t.name]}" for t in span.tiers if t.size > 1]
        return " + ".join(parts) or "not used"


def _ring_text(ring: Ring, shape: tuple[int, ...]) -> str:
    letter = "xyzw"[ring.axis]
    if ring.size == shape[ring.axis]:
        return f"all {ring.size} on {letter}{' (ring)' if ring.closed else ' (line)'}"
    apart = f", {ring.stride} apart" if ring.stride > 1 else ""
    return f"{ring.size} of {shape[ring.axis]} on {letter}{apart}"


def place(
    system: System,
    sizes: dict[str, int],
    *,
    order: tuple[str, ...] = INSIDE_OUT,
    lend: bool = False,
    best: bool = False,
) -> tuple[Placement, ...]:
    """Every way to lay mesh axes of these sizes over the system's links.

    Args:
        system: the machine.
        sizes: mesh axis -> size. Chips that no axis uses stay idle.
        order: mesh axes from the inside out; on one physical axis the inner lie contiguously.
        lend: torus axes that no mesh axis uses carry a share of every collective.
        best: only placements of which no other takes in more bytes a second on every mesh axis.

    Raises:
        NoStrategy: when the sizes do not factor over the machine.
    """
    names = [a for a in order if sizes.get(a, 1) > 1]
    names += [a for a in sizes if a not in order and sizes[a] > 1]
    total = math.prod(sizes[a] for a in names)
    if total > system.n_chips or system.n_chips % total:
        raise NoStrategy(
            f"{' x '.join(str(sizes[a]) for a in names)} = {total:,} does not divide the "
            f"{system.n_chips:,} chips of {system.name}."
        )
    inner = {a: sizes[a] for a in names}
    slices = max(1, total // system.chips_per_slice)
    dcn = _across_slices(inner, names, system, slices) if slices > 1 else {}
    if isinstance(system.topology, Torus):
        found = tuple(_on_torus(system.chip, system.topology, inner, names, lend=lend, best=best))
    else:
        found = tuple(_on_switches(system, system.topology, inner, names))
    if not found:
        wanted = ", ".join(f"{a} {sizes[a]}" for a in names)
        raise NoStrategy(f"{wanted} cannot be laid over {system.name}: sizes do not factor.")
    return tuple(_with_tiers(p, dcn) for p in found)


def _across_slices(
    inner: dict[str, int], names: list[str], system: System, slices: int
) -> dict[str, Tier]:
    """Give the slices to the outermost axes; `inner` keeps what is left inside a slice."""
    rate = system.chip.need("dcn_bytes_per_s_per_chip")
    left, found = slices, {}
    for axis in ["data", *(a for a in reversed(names) if a != "data")]:
        if axis not in inner:
            continue
        take = math.gcd(inner[axis], left)
        if take > 1:
            found[axis] = Tier("dcn", take, rate)
            inner[axis] //= take
            left //= take
    if left > 1:
        raise NoStrategy(f"{slices} slices do not divide over {', '.join(names)}.")
    return found


def _on_torus(
    chip: Chip, torus: Torus, sizes: dict[str, int], names: list[str], *, lend: bool, best: bool
) -> Iterator[Placement]:
    rate, hop = chip.need("ici.link_bytes_per_s_one_way"), chip.need("ici.hop_s")
    ends = tuple(zip(torus.shape, torus.wrapped, strict=True))
    seen = set()
    every = _factorings(tuple(sizes[a] for a in names), torus.shape)
    for factors in _undominated(tuple(every), torus, names) if best else every:
        # Equal physical axes may be exchanged: keep one of each such set.
        same = tuple(sorted(zip(ends, *factors, strict=True)))
        if same in seen:
            continue
        seen.add(same)
        spans, stride = [], (1,) * len(torus.shape)
        used = [any(parts[a] > 1 for parts in factors) for a in range(len(torus.shape))]
        idle = tuple(
            Ring(a, n, 1, torus.wrapped[a], rate)
            for a, n in enumerate(torus.shape)
            if lend and n > 1 and not used[a]
        )
        for name, parts in zip(names, factors, strict=True):
            spans.append((name, _runs(torus, parts, stride, rate, hop, idle)))
            stride = tuple(s * n for s, n in zip(stride, parts, strict=True))
        yield Placement(tuple(spans), torus.shape, torus.wrapped)


@functools.lru_cache(maxsize=65536)
def _runs(
    torus: Torus, parts: Shape, stride: Shape, rate: float, hop: float, lent: tuple[Ring, ...]
) -> Span:
    """The links of one mesh axis. Many placements share it."""
    rings = [
        Ring(axis, n, apart, torus.wrapped[axis] and n * apart == torus.shape[axis], rate)
        for axis, (n, apart) in enumerate(zip(parts, stride, strict=True))
        if n > 1
    ]
    return Span(tuple(rings), hop, lent=lent)


def _factorings(sizes: Shape, shape: Shape) -> Iterator[tuple[Shape, ...]]:
    """Every way to write each size as a product over the axes of what is left of `shape`."""
    if not sizes:
        yield ()
        return
    for parts in _splits(sizes[0], shape):
        rest = tuple(n // p for n, p in zip(shape, parts, strict=True))
        for tail in _factorings(sizes[1:], rest):
            yield (parts, *tail)


def _undominated(
    every: tuple[tuple[Shape, ...], ...], torus: Torus, names: list[str]
) -> Iterator[tuple[Shape, ...]]:
    """The ways of which no other gives every mesh axis at least its links.

    A mesh axis takes in bytes over all its runs: two links of a closed one, one of a line, shared
    by as many groups as its stride. What `pipe` sends goes over one link, the slowest decides.
    """
    if len(every) <= FEW_WAYS or not every[0]:
        yield from every
        return
    import numpy as np

    factors = np.array(every)  # way, mesh axis, torus axis
    ends = np.cumprod(factors, axis=1)
    closed = (ends == np.array(torus.shape)) & np.array(torus.wrapped)
    links = np.where(factors > 1, (1 + closed) * factors / ends, 0.0).sum(axis=2)
    if "pipe" in names:
        sends = np.where(factors > 1, factors / ends, np.inf).min(axis=2)
        links[:, names.index("pipe")] = sends[:, names.index("pipe")]
    kept: list[int] = []
    for i in np.argsort(-links.sum(axis=1), kind="stable"):
        if not (links[kept] >= links[i]).all(axis=1).any():
            kept.append(int(i))
    yield from (every[i] for i in sorted(kept))


@functools.lru_cache(maxsize=65536)
def _splits(size: int, shape: Shape) -> tuple[Shape, ...]:
    """Every way to write `size` as a product with one factor dividing each axis of `shape`."""
    if not shape:
        return ((),) if size == 1 else ()
    return tuple(
        (first, *rest)
        for first in range(shape[0], 0, -1)
        if shape[0] % first == 0 and size % first == 0
        for rest in _splits(size // first, shape[1:])
    )


def _on_switches(
    system: System, machine: Switched, sizes: dict[str, int], names: list[str]
) -> Iterator[Placement]:
    """Fill the NVLink domain from the inside out; what is left of each axis goes across nodes."""
    chip, room = system.chip, min(machine.domain, machine.n_gpus)
    spans = []
    for name in names:
        inside = math.gcd(sizes[name], room)
        outside = sizes[name] // inside
        if outside > 1 and room // inside > 1 and inside < sizes[name] and name == names[0]:
            return  # the innermost axis would straddle nodes unevenly
        room //= inside
        tiers = []
        if inside > 1:
            rate = chip.need("node.bytes_per_s_per_gpu_one_way")
            latency = chip.node.latency_s if chip.node and chip.node.latency_s else 0.0
            tiers.append(Tier("node", inside, rate, latency, system.in_network_reduction))
        if outside > 1:
            rate = chip.need("scale_out.bytes_per_s_per_gpu_one_way")
            latency = (chip.scale_out.latency_s if chip.scale_out else None) or 0.0
            tiers.append(Tier("scale-out", outside, rate, latency, system.in_network_reduction))
        spans.append((name, Span(tiers=tuple(tiers))))
    yield Placement(tuple(spans))


def _with_tiers(placement: Placement, dcn: dict[str, Tier]) -> Placement:
    if not dcn:
        return placement
    spans = dict(placement.spans)
    for axis, tier in dcn.items():
        old = spans.get(axis, Span())
        spans[axis] = replace(old, tiers=(*old.tiers, tier))
    return Placement(tuple(spans.items()), placement.shape, placement.wrapped)
