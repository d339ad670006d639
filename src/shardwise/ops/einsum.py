"""Einsums over named dims with shardings: `A[I_X,J] . B[J,K_Y] -> C[I_X,K_Y]`.

A `Dim` is a letter with the mesh axes that shard it, an `Array` is dims (and axes over which it
still waits to be summed), an `Einsum` is two inputs and an output. Gradients are einsums again.
Book §3 (notation), §4 (FLOPs of a contraction), §5 (the backward pass).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shardwise.arrays import Num, ceil_div
from shardwise.errors import BadSharding


@dataclass(frozen=True, slots=True)
class Dim:
    """One dim of an array.

    `stored` is set where an array holds fewer of it than the einsum runs over: keys hold K heads
    where the product runs over N.
    """

    name: str
    axes: tuple[str, ...] = ()
    stored: str = ""

    @property
    def held(self) -> str:
        return self.stored or self.name

    def __str__(self) -> str:
        return f"{self.held}_{axes_text(self.axes)}" if self.axes else self.held


def axes_text(axes: tuple[str, ...]) -> str:
    """`X`, `XY`, `fsdp`, `{fsdp,context}`."""
    if all(len(a) == 1 for a in axes) or len(axes) == 1:
        return "".join(axes)
    return "{" + ",".join(axes) + "}"


@dataclass(frozen=True, slots=True)
class Array:
    """A named array: its dims in order, and the axes over which shards must still be summed.

    `gradient_of` names the array whose gradient this is, if it is one.
    """

    name: str
    dims: tuple[Dim, ...]
    partial: tuple[str, ...] = ()
    gradient_of: str = ""

    def __str__(self) -> str:
        sums = " {" + f"U_{axes_text(self.partial)}" + "}" if self.partial else ""
        return f"{self.name}[{','.join(map(str, self.dims))}]{sums}"

    @property
    def base(self) -> str:
        """The forward array: of a gradient the one that it belongs to."""
        return self.gradient_of or self.name

    @property
    def names(self) -> tuple[str, ...]:
        return tuple([d.name for d in self.dims])

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(a for d in self.dims for a in d.axes)

    def where(self, axis: str) -> str | None:
        """The dim that `axis` shards, if any."""
        return next((d.name for d in self.dims if axis in d.axes), None)

    def with_axes(
        self, axes: Mapping[str, tuple[str, ...]], partial: tuple[str, ...] = ()
    ) -> Array:
        """The same array under another sharding: dim name -> mesh axes."""
        dims = tuple(Dim(d.name, axes.get(d.name, ()), d.stored) for d in self.dims)
        return Array(self.name, dims, partial, self.gradient_of)

    def gradient(self) -> Array:
        """The gradient with respect to this array, sharded like it."""
        return replace(self, name=f"d{self.name}", gradient_of=self.name)

    def check(self) -> Array:
        """Refuse an axis that shards two dims (or one twice), and a dim named twice."""
        problems = []
        for axis in dict.fromkeys((*self.axes, *self.partial)):
            if (self.axes + self.partial).count(axis) > 1:
                problems.append(
                    f"{self} uses mesh axis {axis} twice: each chip would hold only blocks where "
                    f"both dims have the same index. Shard one dim over {axis}."
                )
        for name in dict.fromkeys(self.names):
            if self.names.count(name) > 1:
                problems.append(f"{self} has dim {name} twice. Give each dim its own letter.")
        if problems:
            raise BadSharding(*problems)
        return self

    def local_elements(self, sizes: Mapping[str, Num], mesh: Mapping[str, Num]) -> Num:
        """Elements that one chip holds; a dim that does not divide is padded up."""
        total: Num = 1
        for dim in self.dims:
            total = total * local_size(dim, sizes, mesh)
        return total


def shards(axes: tuple[str, ...], mesh: Mapping[str, Num]) -> Num:
    """Over how many shards these axes split a dim."""
    n: Num = 1
    for axis in axes:
        n = n * mesh.get(axis, 1)
    return n


def local_size(dim: Dim, sizes: Mapping[str, Num], mesh: Mapping[str, Num]) -> Num:
    """ceil(size / shards): what the fullest chip holds of a dim."""
    size = sizes[dim.held]
    return ceil_div(size, shards(dim.axes, mesh)) if dim.axes else size


@dataclass(frozen=True, slots=True)
class Einsum:
    """`left . right -> output`: dims in both inputs and not in the output are summed over.

    `chosen` names dims that only select (the experts of an MoE weight): they hold memory, but each
    token meets one of them, so they do not multiply FLOPs.
    """

    left: Array
    right: Array
    output: Array
    chosen: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.left} . {self.right} -> {self.output}"

    @property
    def inputs(self) -> tuple[Array, Array]:
        return (self.left, self.right)

    @property
    def dims(self) -> tuple[str, ...]:
        """Every dim once, output dims first."""
        named = (*self.output.names, *self.left.names, *self.right.names)
        return tuple(dict.fromkeys(named))

    @property
    def contracting(self) -> tuple[str, ...]:
        return tuple(d for d in self.dims if d not in self.output.names)

    def flops(self, sizes: Mapping[str, Num]) -> Num:
        """2 times the product of all distinct dims. Book §4."""
        total: Num = 2
        for name in self.dims:
            if name not in self.chosen:
                total = total * sizes[name]
        return total

    def gradients(self) -> tuple[Einsum, Einsum]:
        """The backward pass: d(left) and d(right), each with the FLOPs of this einsum."""
        d_out = self.output.gradient()
        return (
            Einsum(d_out, self.right, self.left.gradient(), self.chosen),
            Einsum(self.left, d_out, self.right.gradient(), self.chosen),
        )

    def check(self) -> Einsum:
        """Refuse what is not an einsum of two arrays, with every reason."""
        problems: list[str] = []
        for array in (*self.inputs, self.output):
            try:
                array.check()
            except BadSharding as error:
                problems += error.problems
        known = {*self.left.names, *self.right.names}
        problems += [
            f"{self.output} has dim {name}, which neither input has."
            for name in self.output.names
            if name not in known
        ]
        for array, other in (self.inputs, self.inputs[::-1]):
            problems += [
                f"dim {name} of {array} is in neither {other} nor the output: a sum over one input "
                "alone is no matmul."
                for name in array.names
                if name not in (*other.names, *self.output.names, *self.chosen)
            ]
            if array.partial:
                problems.append(f"{array} is an unreduced sum; reduce an input before using it.")
        if problems:
            raise BadSharding(*dict.fromkeys(problems))
        return self
