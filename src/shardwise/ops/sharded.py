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
from shardwise.ops.einsum import Array, Dim, Einsum, shards

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
        local = self.before.local_elements(sizes, mesh) * element
        return local * shards(self.axes, mesh) if self.kind == "all_to_all" else local

    def __str__(self) -> str:
        from shardwise.ops.collective import SHOWN
        from shardwise.ops.einsum import axes_text

        name = SHOWN.get(self.kind, "Slice")
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
        dims = {
            d.name: d for a in (*self.local.inputs, self.local.output) for d in a.dims if d.axes
        }
        held = dict(sizes)
        for name, dim in dims.items():
            held[name] = -(-sizes[name] // shards(dim.axes, mesh))
        return self.local.flops(held)


def axes_of(einsum: Einsum) -> tuple[str, ...]:
    """The mesh axes that an einsum names, in order."""
    arrays = (*einsum.inputs, einsum.output)
    return tuple(dict.fromkeys(a for array in arrays for a in (*array.axes, *array.partial)))


def derive(einsum: Einsum) -> Program:
    """The book's choice for each axis.

    Keep an output dim where an input has it sharded that way (cases 1, 2 and 4), or a kept dim
    that both inputs shard; else sum over a dim that both shard (case 3); else gather.
    """
    assignment: Assignment = {}
    for axis in axes_of(einsum):
        kept = einsum.output.where(axis)
        held = [array.where(axis) for array in einsum.inputs]
        summed = [d for d in held if d in einsum.contracting]
        both = len(summed) == 2 and summed[0] == summed[1]
        if kept is not None and kept in held:
            assignment[axis] = kept
        elif held[0] == held[1] and held[0] in einsum.output.names:
            assignment[axis] = held[0]
        elif summed and (both or axis in einsum.output.partial or _slices(einsum, axis)):
            assignment[axis] = summed[0]
        else:
            assignment[axis] = None
    return build(einsum, assignment)


def _slices(einsum: Einsum, axis: str) -> bool:
    """Case 2 with a scattered output: slicing the other input is free, and saves the gather."""
    unsharded = any(array.where(axis) is None for array in einsum.inputs)
    return unsharded and einsum.output.where(axis) is not None


def choices(einsum: Einsum) -> Iterator[Program]:
    """Every way to run the einsum: for each axis each dim it may shard, and not at all."""
    axes = axes_of(einsum)
    options: list[list[str | None]] = []
    for axis in axes:
        keep_sum = axis in einsum.output.partial
        dims = einsum.contracting if keep_sum else einsum.dims
        used: list[str | None] = [d for d in dims if _used(einsum, axis, d)]
        options.append(used if keep_sum else [*used, None])
    seen = set()
    for picks in itertools.product(*options):
        assignment = dict(zip(axes, picks, strict=True))
        try:
            program = build(einsum, assignment)
        except BadSharding:
            continue
        if program not in seen:
            seen.add(program)
            yield program


def _used(einsum: Einsum, axis: str, dim: str) -> bool:
    """Whether sharding `dim` over `axis` can pay: some array is laid out so already."""
    return any(array.where(axis) == dim for array in (*einsum.inputs, einsum.output)) or (
        dim in einsum.contracting and axis in einsum.output.partial
    )


def build(einsum: Einsum, assignment: Assignment) -> Program:
    """The program in which each mesh axis shards the dim that `assignment` gives it.

    Raises:
        BadSharding: when the output asks for a partial sum that this does not leave.
    """
    layout: dict[str, tuple[str, ...]] = {}
    for axis, dim in assignment.items():
        if dim is not None:
            layout[dim] = (*layout.get(dim, ()), axis)
    layout = {dim: _ordered(einsum, dim, axes) for dim, axes in layout.items()}
    inputs, before = [], []
    for array in einsum.inputs:
        target = array.with_axes(layout)
        before += list(_moves(array, target))
        inputs.append(target)
    summed = tuple(a for a, d in assignment.items() if d in einsum.contracting)
    product = einsum.output.with_axes(layout, summed)
    missing = [a for a in einsum.output.partial if a not in summed]
    if missing:
        raise BadSharding(
            f"{einsum.output} is to stay a partial sum over {', '.join(missing)}, but no summed "
            "dim is sharded over it."
        )
    local = Einsum(inputs[0], inputs[1], product, einsum.chosen)
    return Program(einsum, local, tuple(before), tuple(_moves(product, einsum.output)))


def _ordered(einsum: Einsum, dim: str, axes: tuple[str, ...]) -> tuple[str, ...]:
    """One order of a dim's axes for all arrays: J_XY and J_YX are different blocks.

    It is that of the array which is already cut by most of these axes.
    """
    written = [
        tuple(a for a in d.axes if a in axes)
        for array in (*einsum.inputs, einsum.output)
        for d in array.dims
        if d.name == dim
    ]
    longest = max(written, key=len, default=())
    return (*longest, *(a for a in axes if a not in longest))


def _moves(have: Array, want: Array) -> Iterator[Move]:
    """Collectives from one layout to another: reduce, exchange, gather, then slice.

    I_XY is cut by X first: a chip's block can be cut further by an axis that comes last, and only
    the last axis can be exchanged or gathered without mixing up the blocks.
    """
    at = have
    for move in _reductions(have, want):
        yield move
        at = move.after
    while leaving := _leaving(at, want):
        move = _exchange(at, want, leaving) or _gather(at, want, leaving)
        yield move
        at = move.after
    sliced = tuple(a for a in want.axes if a not in at.axes)
    if sliced:
        yield Move("slice", sliced, at, want)


def _reductions(have: Array, want: Array) -> Iterator[Move]:
    """Sums that are scattered where the output wants them, and the others in one AllReduce."""
    at = have
    gone = [a for a in have.partial if a not in want.partial]
    for dim in want.dims:
        now = _axes_of(at, dim.name)
        new = tuple(a for a in dim.axes if a in gone)
        if new and dim.axes[: len(now) + len(new)] == (*now, *new):
            left = tuple(a for a in at.partial if a not in new)
            after = _resharded(at, dim.name, (*now, *new), left)
            yield Move("reduce_scatter", new, at, after)
            at = after
    plain = tuple(a for a in at.partial if a in gone)
    if plain:
        left = tuple(a for a in at.partial if a not in plain)
        yield Move("all_reduce", plain, at, replace(at, partial=left))


def _leaving(at: Array, want: Array) -> dict[str, tuple[str, ...]]:
    """Dim -> its last axes that the wanted layout does not have there."""
    found = {}
    for dim in at.dims:
        target = _axes_of(want, dim.name)
        same = 0
        while dim.axes[same : same + 1] and dim.axes[: same + 1] == target[: same + 1]:
            same += 1
        if dim.axes[same:]:
            found[dim.name] = dim.axes[same:]
    return found


def _goes_to(at: Array, want: Array, axis: str, source: str) -> str | None:
    """The dim to which an exchange can bring an axis at once."""
    target = want.where(axis)
    if target is None or target == source:
        return None
    now = (*_axes_of(at, target), axis)
    return target if _axes_of(want, target)[: len(now)] == now else None


def _exchange(at: Array, want: Array, leaving: Mapping[str, tuple[str, ...]]) -> Move | None:
    for source, axes in leaving.items():
        target = _goes_to(at, want, axes[-1], source)
        if target is not None:
            after = _resharded(at, source, _axes_of(at, source)[:-1], at.partial)
            after = _resharded(after, target, (*_axes_of(at, target), axes[-1]), at.partial)
            return Move("all_to_all", axes[-1:], at, after)
    return None


def _gather(at: Array, want: Array, leaving: Mapping[str, tuple[str, ...]]) -> Move:
    """Gather the last axes of one dim, up to one that an exchange can take."""
    source, axes = next(iter(leaving.items()))
    n = 1
    while n < len(axes) and _goes_to(at, want, axes[-n - 1], source) is None:
        n += 1
    after = _resharded(at, source, _axes_of(at, source)[:-n], at.partial)
    return Move("all_gather", axes[-n:], at, after)


def _axes_of(array: Array, dim: str) -> tuple[str, ...]:
    return next(d.axes for d in array.dims if d.name == dim)


def _resharded(array: Array, dim: str, axes: tuple[str, ...], partial: tuple[str, ...]) -> Array:
    """The same array with one dim over other axes."""
    dims = tuple(Dim(d.name, axes, d.stored) if d.name == dim else d for d in array.dims)
    return replace(array, dims=dims, partial=partial)
