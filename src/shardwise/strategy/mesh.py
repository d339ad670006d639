"""Mesh axes: their roles and sizes, and their placement on the links of a machine."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from shardwise.errors import BadShape, NoStrategy, raise_all
from shardwise.hardware import Chip, Shape, Switched, System, Torus
from shardwise.strategy.factorings import factorings, undominated
from shardwise.strategy.span import Ring, Span, Tier, join

# Mesh roles from the innermost to the outermost on the hardware: the less of its traffic can
# overlap with compute, the closer together the chips of a role are.
INSIDE_OUT = ("tensor", "context", "expert", "fsdp", "data", "pipe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Sizes of the mesh axes by role.

    `data` shards the batch and replicates weights, `fsdp` shards both. `tensor` shards attention
    heads and the MLP width, `context` the sequence, `expert` the experts, `pipe` the layers.
    """

    data: int = 1
    fsdp: int = 1
    tensor: int = 1
    context: int = 1
    expert: int = 1
    pipe: int = 1

    def __post_init__(self) -> None:
        raise_all(BadShape, [f"{role} {n} is below 1." for role, n in self.sizes.items() if n < 1])

    @property
    def sizes(self) -> dict[str, int]:
        """Mesh role -> size, in the order of `ROLES`."""
        return {
            "data": self.data,
            "fsdp": self.fsdp,
            "tensor": self.tensor,
            "context": self.context,
            "expert": self.expert,
            "pipe": self.pipe,
        }

    @property
    def n_chips(self) -> int:
        return math.prod(self.sizes.values())

    def __str__(self) -> str:
        return " x ".join(f"{role} {n}" for role, n in self.sizes.items() if n > 1) or "one chip"


ROLES = tuple(f.name for f in fields(Mesh))


@dataclass(frozen=True, slots=True)
class Placement:
    """The physical links that each mesh axis runs over.

    Args:
        spans: pairs of a mesh axis and its links.
        shape, wrapped: those of the torus; () on switches.
    """

    spans: tuple[tuple[str, Span], ...]
    shape: tuple[int, ...] = ()
    wrapped: tuple[bool, ...] = ()

    def span(self, axes: tuple[str, ...]) -> Span:
        """The links of several mesh axes, as if they were one axis."""
        spans = tuple([span for axis, span in self.spans if axis in axes])
        if not spans:
            return Span()
        if len(spans) == 1:
            return spans[0]
        return join(spans, self.shape, self.wrapped)

    @property
    def lengths(self) -> tuple[int, ...] | None:
        """Length of the torus axis of each mesh axis; None unless each has one whole torus axis."""
        lengths = []
        for _, span in self.spans:
            if len(span.rings) != 1 or span.rings[0].size != self.shape[span.rings[0].axis]:
                return None
            lengths.append(span.rings[0].size)
        return tuple(lengths)

    def describe(self, axis: str) -> str:
        """The links of a mesh axis as text: `4 of 20 on y + 2 of 28 on z`, `8 in the node`, ..."""
        span = dict(self.spans).get(axis, Span())
        parts = [_ring_text(ring, self.shape) for ring in span.rings if ring.size > 1]
        places = {"node": "in the node", "scale-out": "across nodes", "dcn": "across slices"}
        parts += [f"{tier.size} {places[tier.name]}" for tier in span.tiers if tier.size > 1]
        return " + ".join(parts) or "not used"


def _ring_text(ring: Ring, shape: tuple[int, ...]) -> str:
    letter = "xyzw"[ring.axis]
    if ring.size < shape[ring.axis]:
        text = f"{ring.size} of {shape[ring.axis]} on {letter}"
        if ring.stride > 1:
            text += f", {ring.stride} apart"
        return text
    if ring.closed:
        return f"all {ring.size} on {letter} (ring)"
    return f"all {ring.size} on {letter} (line)"


def place(
    system: System,
    sizes: dict[str, int],
    *,
    order: tuple[str, ...] = INSIDE_OUT,
    borrow: bool = False,
    best: bool = False,
) -> tuple[Placement, ...]:
    """Enumerate the placements of mesh axes on the links of a machine.

    Args:
        sizes: mesh axis -> size. The machine has a multiple of their product; other chips are idle.
        order: mesh axes from the innermost to the outermost; of those that share a torus axis, the
            inner ones have neighbouring chips.
        borrow: whether collectives also use the links of torus axes that no mesh axis uses.
        best: if there are more placements than `factorings.MAX_EXHAUSTIVE`, leave out those that
            another one matches or beats in bandwidth on every mesh axis.

    Raises:
        NoStrategy: no placement exists, since the sizes do not divide the axes or nodes.
    """
    names = [name for name in order if sizes.get(name, 1) > 1]
    names += [name for name in sizes if name not in order and sizes[name] > 1]
    total = math.prod(sizes[name] for name in names)
    if total > system.n_chips or system.n_chips % total:
        raise NoStrategy(
            f"{' x '.join(str(sizes[name]) for name in names)} = {total:,} does not divide the "
            f"{system.n_chips:,} chips of {system.name}."
        )
    sizes_in_slice = {name: sizes[name] for name in names}
    n_slices = max(1, total // system.chips_per_slice)
    slice_tiers = {}
    if n_slices > 1:
        slice_tiers = _slice_tiers(sizes_in_slice, names, system, n_slices)
        for name, tier in slice_tiers.items():
            sizes_in_slice[name] //= tier.size
    if isinstance(system.topology, Torus):
        torus = system.topology
        placements = tuple(
            _on_torus(system.chip, torus, sizes_in_slice, names, borrow=borrow, best=best)
        )
    else:
        placements = tuple(_on_switches(system, system.topology, sizes_in_slice, names))
    if not placements:
        axes = ", ".join(f"{name} {sizes[name]}" for name in names)
        raise NoStrategy(f"{axes} cannot be placed on {system.name}: sizes do not factor.")
    return tuple(_with_tiers(placement, slice_tiers) for placement in placements)


def _slice_tiers(
    sizes: dict[str, int], names: list[str], system: System, n_slices: int
) -> dict[str, Tier]:
    """Distribute the slices over the mesh axes: first over `data`, then from the outermost in."""
    rate = system.chip.need("dcn_bytes_per_s_per_chip")
    tiers = {}
    remaining = n_slices
    outermost_first = names[::-1]
    for name in sorted(outermost_first, key=lambda name: name != "data"):
        size = math.gcd(sizes[name], remaining)
        if size > 1:
            tiers[name] = Tier("dcn", size, rate)
            remaining //= size
    if remaining > 1:
        raise NoStrategy(f"{n_slices} slices do not divide over {', '.join(names)}.")
    return tiers


def _on_torus(
    chip: Chip, torus: Torus, sizes: dict[str, int], names: list[str], *, borrow: bool, best: bool
) -> Iterator[Placement]:
    """Yield the placements of mesh axes (`names`, the innermost first) on the axes of a torus."""
    rate = chip.need("ici.link_bytes_per_s_one_way")
    hop_s = chip.need("ici.hop_s")
    of_names = tuple(sizes[name] for name in names)
    if best:
        pipe = names.index("pipe") if "pipe" in names else None
        divisions = undominated(of_names, torus.shape, torus.wrapped, pipe)
    else:
        divisions = tuple(factorings(of_names, torus.shape))
    for factors in _without_swaps(divisions, torus):
        borrowed: tuple[Ring, ...] = ()
        if borrow:
            borrowed = _idle_rings(torus, factors, rate)
        spans = []
        stride = (1,) * len(torus.shape)
        for name, parts in zip(names, factors, strict=True):
            span = _torus_span(torus.shape, torus.wrapped, parts, stride, rate, hop_s, borrowed)
            spans.append((name, span))
            stride = tuple(map(operator.mul, stride, parts))
        yield Placement(tuple(spans), torus.shape, torus.wrapped)


def _without_swaps(
    divisions: tuple[tuple[Shape, ...], ...], torus: Torus
) -> tuple[tuple[Shape, ...], ...]:
    """The factorings, of those that differ only by a swap of equal torus axes the first.

    They have the same links.
    """
    torus_axes = tuple(zip(torus.shape, torus.wrapped, strict=True))
    if len(set(torus_axes)) == len(torus_axes):
        return divisions
    first_of: dict[object, tuple[Shape, ...]] = {}
    for factors in divisions:
        first_of.setdefault(tuple(sorted(zip(torus_axes, *factors, strict=True))), factors)
    return tuple(first_of.values())


def _idle_rings(torus: Torus, factors: tuple[Shape, ...], rate: float) -> tuple[Ring, ...]:
    """The torus axes that no mesh axis uses."""
    rings = []
    for axis, size in enumerate(torus.shape):
        if size > 1 and all(parts[axis] == 1 for parts in factors):
            rings.append(Ring(axis, size, 1, torus.wrapped[axis], rate))
    return tuple(rings)


@functools.lru_cache(maxsize=65536)
def _torus_span(
    shape: Shape,
    wrapped: tuple[bool, ...],
    parts: Shape,
    strides: Shape,
    rate: float,
    hop_s: float,
    borrowed: tuple[Ring, ...],
) -> Span:
    """The links of one mesh axis on a torus; cached, since many placements have the same.

    `shape` and `wrapped` are those of the torus. `parts` has the mesh axis's number of chips along
    each torus axis, `strides` their distance.
    """
    rings = []
    for axis, (size, stride) in enumerate(zip(parts, strides, strict=True)):
        if size > 1:
            closed = wrapped[axis] and size * stride == shape[axis]
            rings.append(Ring(axis, size, stride, closed, rate))
    return Span(tuple(rings), hop_s, borrowed=borrowed)


def _on_switches(
    system: System, machine: Switched, sizes: dict[str, int], names: list[str]
) -> Iterator[Placement]:
    """Place the innermost axes in the NVLink domain while it has room, the rest across nodes."""
    free_gpus = machine.gpus_per_node  # of one domain, for the axes still to place
    spans = []
    for name in names:
        inside = math.gcd(sizes[name], free_gpus)
        outside = sizes[name] // inside
        if outside > 1 and free_gpus // inside > 1 and inside < sizes[name] and name == names[0]:
            return  # the innermost axis would fill a part of several nodes
        free_gpus //= inside
        spans.append((name, _switch_span(system, inside, outside)))
    yield Placement(tuple(spans))


@functools.lru_cache(maxsize=4096)
def _switch_span(system: System, inside: int, outside: int) -> Span:
    """The links of one mesh axis on switches; cached, since many placements have the same.

    Args:
        inside: number of GPUs in an NVLink domain.
        outside: number of such groups of GPUs, in other nodes.
    """
    chip = system.chip
    reduces = system.in_network_reduction
    tiers = []
    if inside > 1:
        rate = chip.need("node.bytes_per_s_per_gpu_one_way")
        latency_s = chip.node.latency_s if chip.node else None
        tiers.append(Tier("node", inside, rate, latency_s or 0.0, reduces))
    if outside > 1:
        rate = chip.need("scale_out.bytes_per_s_per_gpu_one_way")
        latency_s = chip.scale_out.latency_s if chip.scale_out else None
        tiers.append(Tier("scale-out", outside, rate, latency_s or 0.0, reduces))
    return Span(tiers=tuple(tiers))


def _with_tiers(placement: Placement, tiers: dict[str, Tier]) -> Placement:
    """Add the tiers between slices to the spans of the mesh axes that have one."""
    if not tiers:
        return placement
    spans = dict(placement.spans)
    for name, tier in tiers.items():
        span = spans.get(name, Span())
        spans[name] = replace(span, tiers=(*span.tiers, tier))
    return Placement(tuple(spans.items()), placement.shape, placement.wrapped)
