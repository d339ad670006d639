"""Mesh axes: their roles and sizes, and their placement on the links of a machine."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from shardwise.errors import BadShape, NoStrategy, raise_all
from shardwise.hardware import Chip, Shape, Switched, System, Torus
from shardwise.strategy.span import Ring, Span, Tier, join

if TYPE_CHECKING:
    import numpy as np

    Factors = np.ndarray[Any, Any]  # [factoring, mesh axis, torus axis]

# `place(best=True)` returns all placements on a torus up to this number, else undominated ones.
MAX_EXHAUSTIVE = 64

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
        return {role: getattr(self, role) for role in ROLES}

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
        best: if there are more than `MAX_EXHAUSTIVE` placements, leave out those that another one
            matches or beats in bandwidth on every mesh axis.

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
        factorings = _undominated(of_names, torus.shape, torus.wrapped, pipe)
    else:
        factorings = tuple(_factorings(of_names, torus.shape))
    for factors in _without_swaps(factorings, torus):
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
    factorings: tuple[tuple[Shape, ...], ...], torus: Torus
) -> tuple[tuple[Shape, ...], ...]:
    """The factorings, of those that differ only by a swap of equal torus axes the first.

    They have the same links.
    """
    torus_axes = tuple(zip(torus.shape, torus.wrapped, strict=True))
    if len(set(torus_axes)) == len(torus_axes):
        return factorings
    first_of: dict[object, tuple[Shape, ...]] = {}
    for factors in factorings:
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


def _factorings(sizes: Shape, shape: Shape) -> list[tuple[Shape, ...]]:
    """Every way to divide a torus among mesh axes: for each mesh axis, its part of each torus axis.

    The parts of a mesh axis multiply to its size. They divide what the mesh axes before it leave of
    `shape`.
    """
    if not sizes:
        return [()]
    factorings: list[tuple[Shape, ...]] = []
    for parts in _splits(sizes[0], shape):
        remaining = tuple(map(operator.floordiv, shape, parts))
        factorings += [(parts, *others) for others in _factorings(sizes[1:], remaining)]
    return factorings


@functools.lru_cache(maxsize=4096)
def _factoring_arrays(sizes: Shape, shape: Shape) -> Factors:
    """The same as an array, which is faster where there are many.

    Cached, since the meshes of a search have the sizes of their first mesh axes in common.
    """
    import numpy as np

    if not sizes:
        return np.ones((1, 0, len(shape)), int)
    before = _factoring_arrays(sizes[:-1], shape)
    remaining = np.array(shape) // before.prod(axis=1)
    kinds, kind = np.unique(remaining, axis=0, return_inverse=True)
    splits = [np.array(_splits(sizes[-1], tuple(x)), int) for x in kinds.tolist()]
    splits = [of_kind.reshape(-1, len(shape)) for of_kind in splits]
    n_splits = np.array([len(of_kind) for of_kind in splits], int)
    n = n_splits[kind.reshape(-1)]
    rows = np.repeat(np.arange(len(before)), n)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(n) - n, n)
    first = (np.cumsum(n_splits) - n_splits)[kind.reshape(-1)]
    parts = np.concatenate([np.ones((0, len(shape)), int), *splits])[first[rows] + within]
    return np.concatenate([before[rows], parts[:, None]], axis=1)


@functools.lru_cache(maxsize=65536)
def _undominated(
    sizes: Shape, shape: Shape, wrapped: tuple[bool, ...], pipe: int | None
) -> tuple[tuple[Shape, ...], ...]:
    """The factorings that no other one matches or beats in bandwidth on every mesh axis.

    A mesh axis receives over all its rings: over two links of a closed ring, over one of a line. A
    ring of stride s shares its links with s - 1 other groups. `pipe` sends over one ring at a time,
    so that its slowest ring counts. Of equal factorings the first stays. Cached, since chips of
    many models have tori of the same shapes.

    Args:
        shape, wrapped: those of the torus.
        pipe: index of the mesh axis `pipe`, if there is one.
    """
    if math.prod(len(_splits(size, shape)) for size in sizes) <= MAX_EXHAUSTIVE:
        return tuple(_factorings(sizes, shape))
    factors = _factoring_arrays(sizes, shape)
    if len(factors) <= MAX_EXHAUSTIVE:
        return _as_tuples(factors)
    import numpy as np

    ends = np.cumprod(factors, axis=1)
    closed = (ends == np.array(shape)) & np.array(wrapped)
    links = np.where(factors > 1, (1 + closed) * factors / ends, 0.0).sum(axis=2)
    if pipe is not None:
        links[:, pipe] = np.where(factors > 1, factors / ends, np.inf).min(axis=2)[:, pipe]
    codes = np.zeros(len(links), int)  # equal for equal rows; faster than np.unique of rows
    for column in links.T:
        _, ranks = np.unique(column, return_inverse=True)
        _, codes = np.unique(codes * len(links) + ranks, return_inverse=True)
    first = np.unique(codes, return_index=True)[1]
    matches = np.ones((len(first), len(first)), bool)
    for column in links[first].T:
        matches &= column[:, None] >= column
    n_matching = matches.sum(axis=0)  # with itself
    return _as_tuples(factors[np.sort(first[n_matching == 1])])


def _as_tuples(factors: Factors) -> tuple[tuple[Shape, ...], ...]:
    return tuple(tuple(map(tuple, parts)) for parts in factors.tolist())


@functools.lru_cache(maxsize=65536)
def _splits(size: int, shape: Shape) -> tuple[Shape, ...]:
    """Every way to write `size` as a product of factors, one dividing each axis of `shape`."""
    if not shape:
        if size == 1:
            return ((),)
        return ()
    splits = []
    for factor in range(shape[0], 0, -1):
        if shape[0] % factor == 0 and size % factor == 0:
            splits += [(factor, *others) for others in _splits(size // factor, shape[1:])]
    return tuple(splits)


def _on_switches(
    system: System, machine: Switched, sizes: dict[str, int], names: list[str]
) -> Iterator[Placement]:
    """Place the innermost axes in the NVLink domain while it has room, the rest across nodes."""
    chip = system.chip
    node_latency_s = 0.0
    if chip.node:
        node_latency_s = chip.node.latency_s or 0.0
    network_latency_s = 0.0
    if chip.scale_out:
        network_latency_s = chip.scale_out.latency_s or 0.0
    free_gpus = machine.gpus_per_node  # of one domain, for the axes still to place
    reduces = system.in_network_reduction
    spans = []
    for name in names:
        inside = math.gcd(sizes[name], free_gpus)
        outside = sizes[name] // inside
        if outside > 1 and free_gpus // inside > 1 and inside < sizes[name] and name == names[0]:
            return  # the innermost axis would fill a part of several nodes
        free_gpus //= inside
        tiers = []
        if inside > 1:
            rate = chip.need("node.bytes_per_s_per_gpu_one_way")
            tiers.append(Tier("node", inside, rate, node_latency_s, reduces))
        if outside > 1:
            rate = chip.need("scale_out.bytes_per_s_per_gpu_one_way")
            tiers.append(Tier("scale-out", outside, rate, network_latency_s, reduces))
        spans.append((name, Span(tiers=tuple(tiers))))
    yield Placement(tuple(spans))


def _with_tiers(placement: Placement, tiers: dict[str, Tier]) -> Placement:
    """Add the tiers between slices to the spans of the mesh axes that have one."""
    if not tiers:
        return placement
    spans = dict(placement.spans)
    for name, tier in tiers.items():
        span = spans.get(name, Span())
        spans[name] = replace(span, tiers=(*span.tiers, tier))
    return Placement(tuple(spans.items()), placement.shape, placement.wrapped)
