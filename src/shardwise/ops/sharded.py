"""The sharded matmul: which collectives an einsum needs under given shardings. Book §3.

Each mesh axis has one of three uses in the local matmul, and the book's four cases follow:

- it shards a dim of the output: the inputs that have the dim are sharded too;
- it shards a summed dim: both inputs are sharded, and the output is a partial sum;
- it shards nothing: all chips along the axis compute the same.

An input with another sharding is gathered, sliced or exchanged (AllToAll) before the matmul; the
output is reduced, scattered, gathered or exchanged after it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from shardwise.arrays import Num
from shardwise.errors import BadSharding
from shardwise.ops.einsum import Array, Dim, Einsum, local_size, shard_size, shards

# mesh axis -> the dim that it shards in the local matmul, or None
Assignment = dict[str, str | None]


@dataclass(frozen=True)
class Move:
    """One collective on an array, or a local `slice`, which sends nothing.

    Args:
        kind: one of `collective.KINDS`, or `slice`.
        axes: the mesh axes it runs over.
        before, after: the array before and after it.
    """

    kind: str
    axes: tuple[str, ...]
    before: Array
    after: Array

    def joined_bytes(self, sizes: Mapping[str, Num], mesh: Mapping[str, Num], element: Num) -> Num:
        """V in the book: bytes of all shards that the collective joins or splits.

        Args:
            sizes: dim -> size.
            mesh: mesh axis -> size.
            element: bytes per element.
        """
        if self.kind == "all_gather":
            return self.after.local_elements(sizes, mesh) * element
        n_bytes = self.before.local_elements(sizes, mesh) * element
        if self.kind == "all_to_all":
            n_bytes = n_bytes * shards(self.axes, mesh)
        return n_bytes

    def __str__(self) -> str:
        return self._text

    @functools.cached_property
    def _text(self) -> str:
        from shardwise.ops.collective import DISPLAY_NAMES
        from shardwise.ops.einsum import axes_text

        name = DISPLAY_NAMES.get(self.kind, "Slice")
        return f"{name}_{axes_text(self.axes)}({self.before}) -> {self.after}"


@dataclass(frozen=True)
class Program:
    """A way to run an einsum: moves of the inputs, the local matmul, moves of the output."""

    einsum: Einsum
    local: Einsum
    before: tuple[Move, ...]
    after: tuple[Move, ...]

    @property
    def moves(self) -> tuple[Move, ...]:
        return self.before + self.after

    @functools.cached_property
    def expression(self) -> str:
        """The local einsum as text, kept: every plan of a model has the same ones."""
        return str(self.local)

    def local_flops(self, sizes: Mapping[str, Num], mesh: Mapping[str, Num]) -> Num:
        """FLOPs of the chip with the largest shards."""
        total: Num = 2
        for name, axes in self._multiplied:
            size = sizes[name]
            if axes:
                size = shard_size(size, axes, mesh)
            total = total * size
        return total

    @functools.cached_property
    def _multiplied(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Dims whose sizes are the factors of the FLOPs, and the mesh axes that shard each."""
        axes: dict[str, tuple[str, ...]] = {}
        for array in (*self.local.inputs, self.local.output):
            for dim in array.dims:
                axes[dim.name] = axes.get(dim.name) or dim.axes
        return tuple(
            (name, axes[name]) for name in self.local.dims if name not in self.local.chosen
        )

    def local_sizes(self, sizes: Mapping[str, Num], mesh: Mapping[str, Num]) -> dict[str, Num]:
        """Dim -> its size in the local matmul of the chip with the largest shards."""
        return {dim.name: local_size(dim, sizes, mesh) for dim in self._local_dims}

    @functools.cached_property
    def _local_dims(self) -> tuple[Dim, ...]:
        """Each dim of the local matmul once, as its last array has it."""
        arrays = (*self.local.inputs, self.local.output)
        return tuple({dim.name: dim for array in arrays for dim in array.dims}.values())

    @functools.cached_property
    def columns(self) -> tuple[str, ...]:
        """Dims of the output that come from the right input."""
        return tuple(dim for dim in self.local.output.names if dim in self.local.right.names)

    @functools.cached_property
    def rows(self) -> tuple[str, ...]:
        """The other dims of the output."""
        return tuple(dim for dim in self.local.output.names if dim not in self.columns)


def axes_of(einsum: Einsum) -> tuple[str, ...]:
    """The mesh axes that an einsum names, in the order of their first use."""
    axes: list[str] = []
    for array in (*einsum.inputs, einsum.output):
        axes += (*array.axes, *array.partial)
    return tuple(dict.fromkeys(axes))


@functools.lru_cache(maxsize=1 << 12)  # the einsums of dozens of models under a dozen rule tables
def derive(einsum: Einsum) -> Program:
    """Choose the program by the book's rule for each axis.

    In the local matmul an axis shards a dim of the output if the output and an input are sharded
    that way (cases 1, 2 and 4), or if both inputs are. Otherwise it shards a summed dim if both
    inputs are sharded that way (case 3) or the output is reduced over the axis. Otherwise it shards
    nothing, and sharded inputs are gathered.
    """
    assignment: Assignment = {}
    for axis in axes_of(einsum):
        output_dim = einsum.output.where(axis)
        left_dim = einsum.left.where(axis)
        right_dim = einsum.right.where(axis)
        contracting = [dim for dim in (left_dim, right_dim) if dim in einsum.contracting]
        both_contract = len(contracting) == 2 and left_dim == right_dim
        assignment[axis] = None
        if output_dim is not None and output_dim in (left_dim, right_dim):
            assignment[axis] = output_dim
        elif left_dim == right_dim and left_dim in einsum.output.names:
            assignment[axis] = left_dim
        elif contracting and (
            both_contract or axis in einsum.output.partial or _slices(einsum, axis)
        ):
            assignment[axis] = contracting[0]
    return build(einsum, assignment)


def _slices(einsum: Einsum, axis: str) -> bool:
    """Whether to slice the other input over `axis`, as in case 2 with a sharded output.

    A slice sends nothing, and the partial sums are reduce-scattered instead of gathering an input.
    """
    unsharded = any(array.where(axis) is None for array in einsum.inputs)
    return unsharded and einsum.output.where(axis) is not None


def choices(einsum: Einsum) -> Iterator[Program]:
    """Yield every program for an einsum: each axis shards any useful dim, or nothing."""
    axes = axes_of(einsum)
    options: list[list[str | None]] = []
    for axis in axes:
        useful: list[str | None] = [dim for dim in einsum.dims if _is_useful(einsum, axis, dim)]
        if axis in einsum.output.partial:
            options.append([dim for dim in useful if dim in einsum.contracting])
        else:
            options.append([*useful, None])
    programs = set()
    for dims in itertools.product(*options):
        try:
            program = build(einsum, dict(zip(axes, dims, strict=True)))
        except BadSharding:
            continue
        if program not in programs:
            programs.add(program)
            yield program


def _is_useful(einsum: Einsum, axis: str, dim: str) -> bool:
    """Whether an array has `dim` sharded over `axis`, or the output is a partial sum over both."""
    return any(array.where(axis) == dim for array in (*einsum.inputs, einsum.output)) or (
        dim in einsum.contracting and axis in einsum.output.partial
    )


def build(einsum: Einsum, assignment: Assignment) -> Program:
    """Build the program in which each mesh axis shards its dim of `assignment`.

    Raises:
        BadSharding: the output is a partial sum over an axis that shards no contracting dim.
    """
    layout: dict[str, tuple[str, ...]] = {}
    for axis, dim in assignment.items():
        if dim is not None:
            layout[dim] = (*layout.get(dim, ()), axis)
    layout = {dim: _ordered(einsum, dim, axes) for dim, axes in layout.items()}
    inputs = []
    before: list[Move] = []
    for array in einsum.inputs:
        target = array.with_axes(layout)
        before += _moves(array, target)
        inputs.append(target)
    partial = tuple(axis for axis, dim in assignment.items() if dim in einsum.contracting)
    product = einsum.output.with_axes(layout, partial)
    missing = [axis for axis in einsum.output.partial if axis not in partial]
    if missing:
        raise BadSharding(
            f"{einsum.output} is to stay a partial sum over {', '.join(missing)}, but no summed "
            "dim is sharded over it."
        )
    local = Einsum(inputs[0], inputs[1], product, einsum.chosen)
    return Program(einsum, local, tuple(before), tuple(_moves(product, einsum.output)))


def _ordered(einsum: Einsum, dim: str, axes: tuple[str, ...]) -> tuple[str, ...]:
    """The order of the axes that shard `dim`, for all arrays: J_XY and J_YX are different blocks.

    It is the order in the array that is sharded over most of these axes.
    """
    longest: tuple[str, ...] = ()
    for array in (*einsum.inputs, einsum.output):
        if dim in array.names:
            common = tuple(axis for axis in _axes_of(array, dim) if axis in axes)
            longest = max(longest, common, key=len)
    return (*longest, *(axis for axis in axes if axis not in longest))


def _moves(source: Array, target: Array) -> Iterator[Move]:
    """Yield the collectives from one sharding to another: reduce, exchange, gather, then slice.

    I_XY is divided over X first, then over Y. An axis can thus only be added as the last one, and
    only the last axis can be exchanged or gathered while the blocks stay contiguous.
    """
    current = source
    for move in _reductions(source, target):
        yield move
        current = move.after
    while surplus := _surplus_axes(current, target):
        move = _exchange(current, target, surplus) or _gather(current, target, surplus)
        yield move
        current = move.after
    sliced = tuple(axis for axis in target.axes if axis not in current.axes)
    if sliced:
        yield Move("slice", sliced, current, target)


def _reductions(source: Array, target: Array) -> Iterator[Move]:
    """Yield ReduceScatters over the axes that shard a dim of the target, then one AllReduce."""
    current = source
    reduced = [axis for axis in source.partial if axis not in target.partial]
    for dim in target.dims:
        axes = _axes_of(current, dim.name)
        scattered = tuple(axis for axis in dim.axes if axis in reduced)
        if scattered and dim.axes[: len(axes) + len(scattered)] == (*axes, *scattered):
            partial = tuple(axis for axis in current.partial if axis not in scattered)
            after = _resharded(current, dim.name, (*axes, *scattered), partial)
            yield Move("reduce_scatter", scattered, current, after)
            current = after
    unscattered = tuple(axis for axis in current.partial if axis in reduced)
    if unscattered:
        partial = tuple(axis for axis in current.partial if axis not in unscattered)
        yield Move("all_reduce", unscattered, current, replace(current, partial=partial))


def _surplus_axes(current: Array, target: Array) -> dict[str, tuple[str, ...]]:
    """Dim -> its last axes, from the first one on that the target does not have there."""
    surplus = {}
    for dim in current.dims:
        target_axes = _axes_of(target, dim.name)
        n_common = 0
        for axis, target_axis in zip(dim.axes, target_axes, strict=False):
            if axis != target_axis:
                break
            n_common += 1
        if dim.axes[n_common:]:
            surplus[dim.name] = dim.axes[n_common:]
    return surplus


def _exchange_dim(current: Array, target: Array, axis: str, source_dim: str) -> str | None:
    """The dim to which an AllToAll can move `axis`, as its last axis; None if there is none.

    The axes of that dim must then begin like those of the target.
    """
    dim = target.where(axis)
    if dim is None or dim == source_dim:
        return None
    axes = (*_axes_of(current, dim), axis)
    if _axes_of(target, dim)[: len(axes)] != axes:
        return None
    return dim


def _exchange(current: Array, target: Array, surplus: Mapping[str, tuple[str, ...]]) -> Move | None:
    """The AllToAll that moves a dim's last axis to the dim where the target has it, if any."""
    for source_dim, axes in surplus.items():
        dim = _exchange_dim(current, target, axes[-1], source_dim)
        if dim is not None:
            after = _resharded(
                current, source_dim, _axes_of(current, source_dim)[:-1], current.partial
            )
            after = _resharded(after, dim, (*_axes_of(current, dim), axes[-1]), current.partial)
            return Move("all_to_all", axes[-1:], current, after)
    return None


def _gather(current: Array, target: Array, surplus: Mapping[str, tuple[str, ...]]) -> Move:
    """Gather the last axes of one dim, up to the next axis that can be exchanged instead."""
    dim, axes = next(iter(surplus.items()))
    n = 1
    while n < len(axes) and _exchange_dim(current, target, axes[-n - 1], dim) is None:
        n += 1
    after = _resharded(current, dim, _axes_of(current, dim)[:-n], current.partial)
    return Move("all_gather", axes[-n:], current, after)


def _axes_of(array: Array, name: str) -> tuple[str, ...]:
    return next(dim.axes for dim in array.dims if dim.name == name)


def _resharded(array: Array, name: str, axes: tuple[str, ...], partial: tuple[str, ...]) -> Array:
    """A copy of the array with dim `name` sharded over `axes` and partial sums over `partial`."""
    dims = []
    for dim in array.dims:
        if dim.name == name:
            dim = replace(dim, axes=axes)
        dims.append(dim)
    return replace(array, dims=tuple(dims), partial=partial)
