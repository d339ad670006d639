"""The sharded matmul: which collectives an einsum needs under given shardings. Book §3.

For every mesh axis the local product does one of these, and the four cases of the book are what
follows from it:

- the axis shards a kept dim: an input that has the dim holds its part of it;
- the axis shards a summed dim: both inputs hold their parts, the output is a partial sum;
- the axis shards nothing: every chip along it computes the same.

An input that is not laid out that way is gathered, sliced or exchanged first; the output is
reduced, scattered, gathered or exchanged after.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from shardwise.arrays import Num
from shardwise.errors import BadSharding
from shardwise.ops.einsum import Array, Einsum, shards

# mesh axis -> the dim that it shards in the local product, or None
Assignment = dict[str, str | None]


@dataclass(frozen=True, slots=True)
class Move:
    """One collective on one array (or a free local `slice`)."""

    kind: str
    axes: tuple[str, ...]
    before: Array
    after: Array

    def joined_bytes(self, sizes: Mapping[str, Num], mesh: Mapping[str, Num], element: Num) -> Num:
        """V of the book: the bytes of the array summed over the shards that the move joins."""
        if self.kind == "all_gather":
            return self.after.local_elements(sizes, mesh) * element
        n_bytes = self.before.local_elements(sizes, mesh) * element
        if self.kind == "all_to_all":
            n_bytes = n_bytes * shards(self.axes, mesh)
        return n_bytes

    def __str__(self) -> str:
        from shardwise.ops.collective import DISPLAY_NAMES
        from shardwise.ops.einsum import axes_text

        name = DISPLAY_NAMES.get(self.kind, "Slice")
        return f"{name}_{axes_text(self.axes)}({self.before}) -> {self.after}"


@dataclass(frozen=True, slots=True)
class Program:
    """Moves of the inputs, the local product, moves of the output."""

    einsum: Einsum
    local: Einsum
    before: tuple[Move, ...]
    after: tuple[Move, ...]

    @property
    def moves(self) -> tuple[Move, ...]:
        return self.before + self.after

    def local_flops(self, sizes: Mapping[str, Num], mesh: Mapping[str, Num]) -> Num:
        """FLOPs of the fullest chip."""
        local_sizes = dict(sizes)
        for array in (*self.local.inputs, self.local.output):
            for dim in array.dims:
                if dim.axes:
                    local_sizes[dim.name] = -(-sizes[dim.name] // shards(dim.axes, mesh))
        return self.local.flops(local_sizes)


def axes_of(einsum: Einsum) -> tuple[str, ...]:
    """The mesh axes that an einsum names, in order."""
    axes: list[str] = []
    for array in (*einsum.inputs, einsum.output):
        axes += (*array.axes, *array.partial)
    return tuple(dict.fromkeys(axes))


def derive(einsum: Einsum) -> Program:
    """Choose the program by the book's rule for each axis.

    The axis shards an output dim if an input is sharded that way (cases 1, 2 and 4), or a dim that
    both inputs shard and the output has; else a contracting dim that both shard (case 3). Else the
    input is gathered.
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
    """Case 2 with a scattered output: slicing the other input is free, and saves the gather."""
    unsharded = any(array.where(axis) is None for array in einsum.inputs)
    return unsharded and einsum.output.where(axis) is not None


def choices(einsum: Einsum) -> Iterator[Program]:
    """Every program for an einsum: each axis shards each dim that it may, or none."""
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
    """Whether some array has `dim` sharded over `axis`, or the output is to be such a sum."""
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
    """One order of a dim's axes for all arrays: J_XY and J_YX are different blocks.

    The array that is sharded over most of these axes determines it.
    """
    longest: tuple[str, ...] = ()
    for array in (*einsum.inputs, einsum.output):
        if dim in array.names:
            common = tuple(axis for axis in _axes_of(array, dim) if axis in axes)
            longest = max(longest, common, key=len)
    return (*longest, *(axis for axis in axes if axis not in longest))


def _moves(source: Array, target: Array) -> Iterator[Move]:
    """Collectives from one layout to another: reduce, exchange, gather, then slice.

    I_XY is cut by X first: a chip's block can be cut further by an axis that comes last, and only
    the last axis can be exchanged or gathered without mixing up the blocks.
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
    """ReduceScatters over axes that shard a dim of the target, then one AllReduce."""
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
    """Dim -> its last axes that the target does not have there."""
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
    """The dim to which one exchange can move an axis, in the order of the target."""
    dim = target.where(axis)
    if dim is None or dim == source_dim:
        return None
    axes = (*_axes_of(current, dim), axis)
    if _axes_of(target, dim)[: len(axes)] != axes:
        return None
    return dim


def _exchange(current: Array, target: Array, surplus: Mapping[str, tuple[str, ...]]) -> Move | None:
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
    """Gather the last axes of one dim, down to one that can be exchanged instead."""
    dim, axes = next(iter(surplus.items()))
    n = 1
    while n < len(axes) and _exchange_dim(current, target, axes[-n - 1], dim) is None:
        n += 1
    after = _resharded(current, dim, _axes_of(current, dim)[:-n], current.partial)
    return Move("all_gather", axes[-n:], current, after)


def _axes_of(array: Array, name: str) -> tuple[str, ...]:
    return next(dim.axes for dim in array.dims if dim.name == name)


def _resharded(array: Array, name: str, axes: tuple[str, ...], partial: tuple[str, ...]) -> Array:
    """The same array with one dim sharded over other axes."""
    dims = []
    for dim in array.dims:
        if dim.name == name:
            dim = replace(dim, axes=axes)
        dims.append(dim)
    return replace(array, dims=tuple(dims), partial=partial)
