"""Einsums over named dims with shardings: `A[I_X,J] . B[J,K_Y] -> C[I_X,K_Y]`.

A `Dim` is a letter with the mesh axes that shard it, an `Array` is dims (and axes over which it is
a partial sum), an `Einsum` is two inputs and an output. Gradients are einsums again.
Book §3 (notation), §4 (FLOPs of a contraction), §5 (the backward pass).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shardwise.arrays import Num, ceil_div
from shardwise.errors import BadSharding, raise_all


@dataclass(frozen=True, slots=True)
class Dim:
    """One dim of an array.

    `stored` is the dim of the array in memory where it is smaller: keys have K heads in a product
    over N heads.
    """

    name: str
    axes: tuple[str, ...] = ()
    stored: str = ""

    @property
    def held(self) -> str:
        """The dim of the array in memory."""
        return self.stored or self.name

    def __str__(self) -> str:
        if not self.axes:
            return self.held
        return f"{self.held}_{axes_text(self.axes)}"


def axes_text(axes: tuple[str, ...]) -> str:
    """`X`, `XY`, `fsdp`, `{fsdp,context}`."""
    if max(map(len, axes), default=0) <= 1 or len(axes) == 1:
        return "".join(axes)
    return "{" + ",".join(axes) + "}"


@dataclass(frozen=True, slots=True)
class Array:
    """A named array: its dims in order, and the axes over which it is a partial sum.

    `gradient_of` is the name of the array whose gradient this is, or "".
    """

    name: str
    dims: tuple[Dim, ...]
    partial: tuple[str, ...] = ()
    gradient_of: str = ""

    def __str__(self) -> str:
        text = f"{self.name}[{','.join(map(str, self.dims))}]"
        if self.partial:
            text += f" {{U_{axes_text(self.partial)}}}"
        return text

    @property
    def base(self) -> str:
        """The name of the forward array, for a gradient too."""
        return self.gradient_of or self.name

    @property
    def names(self) -> tuple[str, ...]:
        return tuple([dim.name for dim in self.dims])

    @property
    def axes(self) -> tuple[str, ...]:
        axes: list[str] = []
        for dim in self.dims:
            axes += dim.axes
        return tuple(axes)

    def where(self, axis: str) -> str | None:
        """The dim that `axis` shards, if any."""
        return next((dim.name for dim in self.dims if axis in dim.axes), None)

    def with_axes(
        self, axes: Mapping[str, tuple[str, ...]], partial: tuple[str, ...] = ()
    ) -> Array:
        """The same array under another sharding: dim name -> mesh axes."""
        dims = [Dim(dim.name, axes.get(dim.name, ()), dim.stored) for dim in self.dims]
        return Array(self.name, tuple(dims), partial, self.gradient_of)

    def gradient(self) -> Array:
        """The gradient with respect to this array, sharded like it."""
        return replace(self, name=f"d{self.name}", gradient_of=self.name)

    def check(self) -> Array:
        """Return the array; raise BadSharding if a mesh axis or a dim occurs twice."""
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
    """Number of shards of a dim over these axes."""
    n: Num = 1
    for axis in axes:
        n = n * mesh.get(axis, 1)
    return n


def local_size(dim: Dim, sizes: Mapping[str, Num], mesh: Mapping[str, Num]) -> Num:
    """ceil(size / shards): the size of a dim on the fullest chip."""
    size = sizes[dim.held]
    if not dim.axes:
        return size
    return ceil_div(size, shards(dim.axes, mesh))


@dataclass(frozen=True, slots=True)
class Einsum:
    """`left . right -> output`: dims in both inputs and not in the output are summed over.

    `chosen` are dims that only select (the experts of an MoE weight): they take memory, but do not
    multiply FLOPs.
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
        names = (*self.output.names, *self.left.names, *self.right.names)
        return tuple(dict.fromkeys(names))

    @property
    def contracting(self) -> tuple[str, ...]:
        return tuple(name for name in self.dims if name not in self.output.names)

    def flops(self, sizes: Mapping[str, Num]) -> Num:
        """FLOPs: 2 times the product of all distinct dims. Book §4."""
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
        """Return the einsum; raise BadSharding with every reason why it is not a matmul."""
        problems: list[str] = []
        for array in (*self.inputs, self.output):
            try:
                array.check()
            except BadSharding as error:
                problems += error.problems
        input_names = (*self.left.names, *self.right.names)
        for name in self.output.names:
            if name not in input_names:
                problems.append(f"{self.output} has dim {name}, which neither input has.")
        for array, other in (self.inputs, self.inputs[::-1]):
            legal_names = (*other.names, *self.output.names, *self.chosen)
            for name in array.names:
                if name not in legal_names:
                    problems.append(
                        f"dim {name} of {array} is in neither {other} nor the output: a sum over "
                        "one input alone is not a matmul."
                    )
            if array.partial:
                problems.append(f"{array} is a partial sum; reduce an input before using it.")
        raise_all(BadSharding, list(dict.fromkeys(problems)))
        return self
