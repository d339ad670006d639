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
from dataclasses import dataclass

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

    Keep an output dim where an input has it sharded that way (cases 1, 2 and 4); else sum over a
    dim that both inputs shard (case 3); else gather.
    """
    assignment: Assignment = {}
    for axis in axes_of(einsum):
        kept = einsum.output.where(axis)
        held = [array.where(axis) for array in einsum.inputs]
        summed = [d for d in held if d in einsum.contracting]
        both = len(summed) == 2 and summed[0] == summed[1]
        if kept is not None and kept in held:
            assignment[axis] = kept
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
    inputs, before = [], []
    for array in einsum.inputs:
        target = array.with_axes({d: _ordered(array, layout.get(d, ()), d) for d in array.names})
        before += list(_moves(array, target))
        inputs.append(target)
    summed = tuple(a for a, d in assignment.items() if d in einsum.contracting)
    kept = {d: _ordered(einsum.output, layout.get(d, ()), d) for d in einsum.output.names}
    product = einsum.output.with_axes(kept, summed)
    missing = [a for a in einsum.output.partial if a not in summed]
    if missing:
        raise BadSharding(
            f"{einsum.output} is to stay a partial sum over {', '.join(missing)}, but no summed "
            "dim is sharded over it."
        )
    local = Einsum(inputs[0], inputs[1], product, einsum.chosen)
    _check_blocks(local)
    return Program(einsum, local, tuple(before), tuple(_moves(product, einsum.output)))


def _check_blocks(local: Einsum) -> None:
    """J_XY and J_YX are different blocks: a chip must hold the same block of a dim everywhere."""
    for name in local.dims:
        orders = {
            d.axes
            for a in (*local.inputs, local.output)
            for d in a.dims
            if d.name == name and d.axes
        }
        if len(orders) > 1:
            raise BadSharding(
                f"{local}: dim {name} is laid out in {len(orders)} orders of its axes."
            )


def _ordered(array: Array, axes: tuple[str, ...], dim: str) -> tuple[str, ...]:
    """The axes of a dim in the order in which the array itself writes them."""
    own = next((d.axes for d in array.dims if d.name == dim), ())
    return tuple(sorted(axes, key=lambda a: own.index(a) if a in own else len(own)))


def _moves(have: Array, want: Array) -> Iterator[Move]:
    """Collectives from one layout to another: reduce, exchange, gather, then slice."""
    at = have
    scatter: dict[str, tuple[str, ...]] = {}
    plain: tuple[str, ...] = ()
    for axis in (a for a in have.partial if a not in want.partial):
        dim = want.where(axis)
        if dim is None:
            plain = (*plain, axis)
        else:
            scatter[dim] = (*scatter.get(dim, ()), axis)
    for dim, axes in scatter.items():
        left = tuple(a for a in at.partial if a not in axes)
        after = _resharded(at, dim, (*_axes_of(at, dim), *axes), left)
        after = _resharded(after, dim, _ordered(want, _axes_of(after, dim), dim), left)
        yield Move("reduce_scatter", axes, at, after)
        at = after
    if plain:
        after = Array(at.name, at.dims, tuple(a for a in at.partial if a not in plain))
        yield Move("all_reduce", plain, at, after)
        at = after
    gather: dict[str, tuple[str, ...]] = {}
    for axis in have.axes:
        source, target = have.where(axis) or "", want.where(axis)
        if target is None:
            gather[source] = (*gather.get(source, ()), axis)
        elif target != source:
            after = _resharded(at, source, _without(_axes_of(at, source), (axis,)), at.partial)
            after = _resharded(after, target, (*_axes_of(after, target), axis), at.partial)
            yield Move("all_to_all", (axis,), at, after)
            at = after
    for source, axes in gather.items():
        after = _resharded(at, source, _without(_axes_of(at, source), axes), at.partial)
        yield Move("all_gather", axes, at, after)
        at = after
    sliced = tuple(a for a in want.axes if a not in at.axes and a not in have.partial)
    if sliced:
        yield Move("slice", sliced, at, want)


def _axes_of(array: Array, dim: str) -> tuple[str, ...]:
    return next(d.axes for d in array.dims if d.name == dim)


def _without(axes: tuple[str, ...], gone: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(a for a in axes if a not in gone)


def _resharded(array: Array, dim: str, axes: tuple[str, ...], partial: tuple[str, ...]) -> Array:
    """The same array with one dim over other axes."""
    dims = tuple(Dim(d.name, axes, d.stored) if d.name == dim else d for d in array.dims)
    return Array(array.name, dims, partial)
