"""One sharded matmul on real links: every way to run it, with bytes and seconds. Book §3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise import units
from shardwise.errors import BadInput, BadShape, NoStrategy, UnknownName, raise_all
from shardwise.formulas.roofline import bounds
from shardwise.hardware import System, parse_system
from shardwise.ops import collective
from shardwise.ops.einsum import Einsum, local_size, shards
from shardwise.ops.notation import parse_einsum
from shardwise.ops.sharded import Move, Program, axes_of, choices
from shardwise.strategy.mesh import Placement, place

LARGEST_DIM = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardStep:
    """One collective of a sharded matmul, or a free local slice.

    Args:
        expression: as the book writes it, `AllGather_X(W[D_X,F_Y]) -> W[D,F_Y]`.
        collective: its kind, None for a slice.
        axes: the mesh axes it runs over.
        joined_bytes: V of the book, summed over the shards that it joins.
        received_bytes: what each chip takes in.
        time_s: seconds.
        latency_bound: the hops take longer than the bytes.
    """

    expression: str
    collective: str | None
    axes: tuple[str, ...]
    joined_bytes: float
    received_bytes: float
    time_s: float
    latency_bound: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to run a sharded matmul: collectives before, the local product, collectives after."""

    before: tuple[ShardStep, ...]
    local: str
    after: tuple[ShardStep, ...]
    flops_per_chip: float
    hbm_bytes_per_chip: float
    math_s: float
    hbm_s: float

    @property
    def steps(self) -> tuple[ShardStep, ...]:
        return self.before + self.after

    @property
    def comms_s(self) -> float:
        """All collectives, one after the other."""
        return sum(step.time_s for step in self.steps)

    @property
    def lower_s(self) -> float:
        """Communication, arithmetic and HBM all overlapped."""
        return max(self.math_s, self.hbm_s, self.comms_s)

    @property
    def upper_s(self) -> float:
        """Communication not hidden."""
        return max(self.math_s, self.hbm_s) + self.comms_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardResult:
    """A sharded matmul: the cheapest way, the others, and the gradients when asked for.

    Args:
        expression: what was asked.
        system: the machine.
        mesh: axis -> size.
        placement: axis -> where it lies.
        best: the way with the smallest `upper_s`.
        others: the other ways, cheapest first.
        padding: one line for each dim that its axes do not divide.
        gradients: the two einsums of the backward pass, solved the same way.
    """

    expression: str
    system: str
    mesh: dict[str, int]
    placement: dict[str, str]
    sizes: dict[str, int]
    dtype: str
    best: Way
    others: tuple[Way, ...]
    padding: tuple[str, ...]
    gradients: tuple[ShardResult, ...] = ()


def shard(
    einsum: str,
    *,
    mesh: Mapping[str, int],
    on: str | System,
    sizes: Mapping[str, int],
    dtype: str = "bf16",
    grad: bool = False,
    lend: bool = False,
) -> ShardResult:
    """Cost every way to run a sharded matmul and take the cheapest.

    Mesh axes that have the lengths of the torus axes lie on them in order; else the placement
    is the cheapest one.

    Args:
        einsum: `In[B_X,D] . W[D_X,F_Y] -> Out[B_X,F_Y]`.
        mesh: mesh axis -> size.
        on: the machine, a name or a System.
        sizes: dim -> size.
        dtype: of every array, and of the arithmetic.
        grad: also derive and cost the two gradient einsums.
        lend: torus axes that no mesh axis uses help to gather and to reduce.

    Raises:
        BadSharding: not an einsum, or one that no program can run.
        BadInput: an axis or dim without a size; sizes that cannot be.
        BadShape: the mesh does not lie on the machine.
    """
    parsed = parse_einsum(einsum)
    raise_all(BadInput, _missing(parsed, mesh, sizes))
    system = parse_system(on) if isinstance(on, str) else on
    try:
        placements = place(system, dict(mesh), order=tuple(mesh), borrow=lend)
    except NoStrategy as error:
        raise BadShape(*error.problems, f"Sizes must divide {system.topology}.") from None
    lengths = tuple(n for n in mesh.values() if n > 1)
    in_order = [placement for placement in placements if placement.lengths == lengths]
    results = [
        _solve(parsed, dict(mesh), placement, system, dict(sizes), dtype, grad)
        for placement in in_order or placements
    ]
    return min(results, key=_total_s)


def _total_s(result: ShardResult) -> float:
    return result.best.upper_s + sum(g.best.upper_s for g in result.gradients)


def _missing(einsum: Einsum, mesh: Mapping[str, int], sizes: Mapping[str, int]) -> list[str]:
    problems = [
        f"mesh axis {a} has no size. Give --mesh {a}=4." for a in axes_of(einsum) if a not in mesh
    ]
    problems += [f"dim {d} has no size. Give {d}=1024." for d in einsum.dims if d not in sizes]
    problems += [
        f"{kind} {name}={n:,} is not between 1 and {LARGEST_DIM:,}."
        for kind, lengths in (("mesh axis", mesh), ("dim", sizes))
        for name, n in lengths.items()
        if not 1 <= n <= LARGEST_DIM
    ]
    unused = [d for d in sizes if d not in einsum.dims]
    if unused:
        problems.append(str(UnknownName("dim", unused[0], einsum.dims)))
    return problems


def _solve(
    einsum: Einsum,
    mesh: dict[str, int],
    placement: Placement,
    system: System,
    sizes: dict[str, int],
    dtype: str,
    grad: bool,
) -> ShardResult:
    ways = sorted(
        (_way(p, mesh, placement, system, sizes, dtype) for p in choices(einsum)),
        key=lambda w: (w.upper_s, w.comms_s, len(w.steps)),
    )
    gradients = einsum.gradients() if grad else ()
    return ShardResult(
        expression=str(einsum),
        system=system.name,
        mesh=mesh,
        placement={a: placement.describe(a) for a in mesh},
        sizes=sizes,
        dtype=dtype,
        best=ways[0],
        others=tuple(ways[1:]),
        padding=tuple(_padding(einsum, mesh, sizes)),
        gradients=tuple(_solve(g, mesh, placement, system, sizes, dtype, False) for g in gradients),
    )


def _way(
    program: Program,
    mesh: dict[str, int],
    placement: Placement,
    system: System,
    sizes: dict[str, int],
    dtype: str,
) -> Way:
    element = units.bytes_per_element(dtype)
    local = program.local
    flops = float(program.local_flops(sizes, mesh))
    arrays = (*local.inputs, local.output)
    hbm = element * sum(float(a.local_elements(sizes, mesh)) for a in arrays)
    time = bounds(flops, system.chip.peak(dtype), hbm, system.chip.need("hbm_bytes_per_s"))
    return Way(
        before=tuple(_step(move, mesh, placement, sizes, element) for move in program.before),
        local=str(local),
        after=tuple(_step(move, mesh, placement, sizes, element) for move in program.after),
        flops_per_chip=flops,
        hbm_bytes_per_chip=hbm,
        math_s=time.math_s,
        hbm_s=time.comms_s,
    )


def _step(
    move: Move, mesh: dict[str, int], placement: Placement, sizes: dict[str, int], element: float
) -> ShardStep:
    if move.kind == "slice":
        return ShardStep(
            expression=str(move),
            collective=None,
            axes=move.axes,
            joined_bytes=0.0,
            received_bytes=0.0,
            time_s=0.0,
            latency_bound=False,
        )
    n_bytes = float(move.joined_bytes(sizes, mesh, element))
    price = collective.price(move.kind, placement.span(move.axes))
    n = shards(move.axes, mesh)
    return ShardStep(
        expression=str(move),
        collective=move.kind,
        axes=move.axes,
        joined_bytes=n_bytes,
        received_bytes=float(collective.received_bytes(move.kind, n_bytes, n)),
        time_s=float(price.time_s(n_bytes)),
        latency_bound=bool(price.latency_s > n_bytes * price.s_per_byte),
    )


def _padding(einsum: Einsum, mesh: dict[str, int], sizes: dict[str, int]) -> list[str]:
    lines = {}
    for array in (*einsum.inputs, einsum.output):
        for dim in array.dims:
            n = shards(dim.axes, mesh)
            padded = n * local_size(dim, sizes, mesh)
            if padded != sizes[dim.held]:
                lines[dim.held, n] = (
                    f"{dim.held} {sizes[dim.held]:,} does not divide over {n}: padded to "
                    f"{padded:,} (+{padded / sizes[dim.held] - 1:.2%})."
                )
    return list(lines.values())
