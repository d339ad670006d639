"""A sharded matmul on a machine: every way to run it, with its bytes and seconds. Book §3."""

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
        collective: kind of the collective; None for a slice.
        axes: the mesh axes it runs over.
        joined_bytes: V in the book: bytes of all shards that the collective joins or splits.
        received_bytes: bytes that each chip receives.
        time_s: seconds of the collective.
        latency_bound: whether the latency of the hops exceeds the transfer time of the bytes.
    """

    expression: str
    collective: str | None
    axes: tuple[str, ...]
    joined_bytes: float
    received_bytes: float
    time_s: float
    latency_bound: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulOption:
    """One way to run a sharded matmul: collectives, the local matmul, collectives.

    Args:
        before: collectives and slices on the inputs.
        local: the einsum of one chip.
        after: collectives and slices on the output.
        hbm_bytes_per_chip: bytes of the inputs and the output of the local matmul.
        math_s, hbm_s: seconds of its FLOPs at peak, and of these bytes.
    """

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
        """Seconds of all collectives, one after the other."""
        return sum(step.time_s for step in self.steps)

    @property
    def lower_s(self) -> float:
        """Seconds with communication, arithmetic and HBM traffic overlapped."""
        return max(self.math_s, self.hbm_s, self.comms_s)

    @property
    def upper_s(self) -> float:
        """Seconds with arithmetic and HBM traffic overlapped, then the communication."""
        return max(self.math_s, self.hbm_s) + self.comms_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardResult:
    """A sharded matmul: the fastest option, the others, and optionally the gradients.

    Args:
        expression: the einsum.
        system: name of the machine.
        mesh: mesh axis -> size.
        placement: mesh axis -> description of the links that it runs over.
        sizes: dim -> size.
        best: the option with the smallest `upper_s`.
        others: the other options, fastest first.
        padding: one sentence for each dim that its mesh axes do not divide.
        gradients: the results of the two einsums of the backward pass; () if not asked for.
    """

    expression: str
    system: str
    mesh: dict[str, int]
    placement: dict[str, str]
    sizes: dict[str, int]
    dtype: str
    best: MatmulOption
    others: tuple[MatmulOption, ...]
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
    """Compute the time of every option to run a sharded matmul and select the fastest.

    If the mesh axes have the lengths of the torus axes in the same order, each mesh axis is placed
    on the torus axis at its position; otherwise the fastest placement is chosen.

    Args:
        einsum: `In[B_X,D] . W[D_X,F_Y] -> Out[B_X,F_Y]`.
        mesh: mesh axis -> size.
        on: a machine or its name.
        sizes: dim -> size.
        dtype: dtype of every array and of the arithmetic.
        grad: whether to solve the two gradient einsums too.
        lend: whether collectives also use the links of torus axes that no mesh axis uses.

    Raises:
        BadSharding: the text is not an einsum, or no program can run it.
        BadInput: a mesh axis or dim has no size, or a size is out of range.
        BadShape: the mesh cannot be placed on the machine.
    """
    parsed = parse_einsum(einsum)
    raise_all(BadInput, _size_problems(parsed, mesh, sizes))
    system = parse_system(on) if isinstance(on, str) else on
    try:
        placements = place(system, dict(mesh), order=tuple(mesh), borrow=lend)
    except NoStrategy as error:
        raise BadShape(*error.problems, f"Sizes must divide {system.topology}.") from None
    lengths = tuple(n for n in mesh.values() if n > 1)
    in_order = [placement for placement in placements if placement.lengths == lengths]
    results = []
    for placement in in_order or placements:
        results.append(_solve(parsed, dict(mesh), placement, system, dict(sizes), dtype, grad))
    return min(results, key=_total_s)


def _total_s(result: ShardResult) -> float:
    return result.best.upper_s + sum(gradient.best.upper_s for gradient in result.gradients)


def _size_problems(einsum: Einsum, mesh: Mapping[str, int], sizes: Mapping[str, int]) -> list[str]:
    problems = []
    for axis in axes_of(einsum):
        if axis not in mesh:
            problems.append(f"mesh axis {axis} has no size. Give --mesh {axis}=4.")
    for dim in einsum.dims:
        if dim not in sizes:
            problems.append(f"dim {dim} has no size. Give {dim}=1024.")
    for kind, lengths in (("mesh axis", mesh), ("dim", sizes)):
        for name, size in lengths.items():
            if not 1 <= size <= LARGEST_DIM:
                problems.append(f"{kind} {name}={size:,} is not between 1 and {LARGEST_DIM:,}.")
    unused = [dim for dim in sizes if dim not in einsum.dims]
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
    """Compute and sort all options on one placement; with `grad` also those of the gradients."""
    options = [
        _matmul_option(program, mesh, placement, system, sizes, dtype)
        for program in choices(einsum)
    ]
    options.sort(key=lambda option: (option.upper_s, option.comms_s, len(option.steps)))
    gradients = []
    if grad:
        for gradient in einsum.gradients():
            gradients.append(_solve(gradient, mesh, placement, system, sizes, dtype, False))
    return ShardResult(
        expression=str(einsum),
        system=system.name,
        mesh=mesh,
        placement={axis: placement.describe(axis) for axis in mesh},
        sizes=sizes,
        dtype=dtype,
        best=options[0],
        others=tuple(options[1:]),
        padding=tuple(_padding_sentences(einsum, mesh, sizes)),
        gradients=tuple(gradients),
    )


def _matmul_option(
    program: Program,
    mesh: dict[str, int],
    placement: Placement,
    system: System,
    sizes: dict[str, int],
    dtype: str,
) -> MatmulOption:
    element_bytes = units.bytes_per_element(dtype)
    local = program.local
    flops = float(program.local_flops(sizes, mesh))
    n_elements = 0.0
    for array in (*local.inputs, local.output):
        n_elements += float(array.local_elements(sizes, mesh))
    hbm_bytes = element_bytes * n_elements
    chip = system.chip
    times = bounds(flops, chip.peak(dtype), hbm_bytes, chip.need("hbm_bytes_per_s"))
    return MatmulOption(
        before=tuple(
            _shard_step(move, mesh, placement, sizes, element_bytes) for move in program.before
        ),
        local=str(local),
        after=tuple(
            _shard_step(move, mesh, placement, sizes, element_bytes) for move in program.after
        ),
        flops_per_chip=flops,
        hbm_bytes_per_chip=hbm_bytes,
        math_s=times.math_s,
        hbm_s=times.comms_s,
    )


def _shard_step(
    move: Move,
    mesh: dict[str, int],
    placement: Placement,
    sizes: dict[str, int],
    element_bytes: float,
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
    n_bytes = float(move.joined_bytes(sizes, mesh, element_bytes))
    price = collective.price(move.kind, placement.span(move.axes))
    n_shards = shards(move.axes, mesh)
    return ShardStep(
        expression=str(move),
        collective=move.kind,
        axes=move.axes,
        joined_bytes=n_bytes,
        received_bytes=float(collective.received_bytes(move.kind, n_bytes, n_shards)),
        time_s=float(price.time_s(n_bytes)),
        latency_bound=bool(price.latency_s > n_bytes * price.s_per_byte),
    )


def _padding_sentences(einsum: Einsum, mesh: dict[str, int], sizes: dict[str, int]) -> list[str]:
    """A sentence for each dim that its mesh axes do not divide, so that it is padded."""
    lines = {}
    for array in (*einsum.inputs, einsum.output):
        for dim in array.dims:
            name = dim.name_in_memory
            size = sizes[name]
            n_shards = shards(dim.axes, mesh)
            padded = n_shards * local_size(dim, sizes, mesh)
            if padded != size:
                lines[name, n_shards] = (
                    f"{name} {size:,} does not divide over {n_shards}: padded to "
                    f"{padded:,} (+{padded / size - 1:.2%})."
                )
    return list(lines.values())
