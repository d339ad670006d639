"""Einsums over named dims with shardings: `A[I_X,J] . B[J,K_Y] -> C[I_X,K_Y]`.

A `Dim` has a letter and the mesh axes that shard it. An `Array` has dims, and mesh axes over which
it is a partial sum. An `Einsum` has two inputs and an output; its gradients are einsums too.
Book §3 (notation), §4 (FLOPs of a contraction), §5 (the backward pass).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from shardwise.arrays import Num, ceil_div
from shardwise.errors import BadSharding, raise_all


@dataclass(frozen=True, slots=True)
class Dim:
    """One dim of an array.

    Args:
        name: its letter in the einsum.
        axes: mesh axes that shard it.
        stored: letter of the dim in memory if that is a smaller one, else "". Grouped-query
            attention multiplies N heads, but keys have only K heads in memory.
    """

    name: str
    axes: tuple[str, ...] = ()
    stored: str = ""

    @property
    def name_in_memory(self) -> str:
        """The letter of the dim in memory."""
        return self.stored or self.name

    def __str__(self) -> str:
        if not self.axes:
            return self.name_in_memory
        return f"{self.name_in_memory}_{axes_text(self.axes)}"


def axes_text(axes: tuple[str, ...]) -> str:
    """Mesh axes in the book's notation: `X`, `XY`, `fsdp`, `{fsdp,context}`."""
    if max(map(len, axes), default=0) <= 1 or len(axes) == 1:
        return "".join(axes)
    return "{" + ",".join(axes) + "}"


@dataclass(frozen=True)  # without slots, for what is kept
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
        """The name of the array, or of the array whose gradient this is."""
        return self.gradient_of or self.name

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        return tuple([dim.name for dim in self.dims])

    @property
    def axes(self) -> tuple[str, ...]:
        axes: list[str] = []
        for dim in self.dims:
            axes += dim.axes
        return tuple(axes)

    def where(self, axis: str) -> str | None:
        """The letter of the dim that the mesh axis `axis` shards; None if it shards none."""
        return next((dim.name for dim in self.dims if axis in dim.axes), None)

    def with_axes(
        self, axes: Mapping[str, tuple[str, ...]], partial: tuple[str, ...] = ()
    ) -> Array:
        """A copy whose dims are sharded over `axes` (dim -> mesh axes), summed over `partial`."""
        dims = [Dim(dim.name, axes.get(dim.name, ()), dim.stored) for dim in self.dims]
        return Array(self.name, tuple(dims), partial, self.gradient_of)

    def gradient(self) -> Array:
        """The gradient with respect to this array, sharded like it."""
        return replace(self, name=f"d{self.name}", gradient_of=self.name)

    def check(self) -> Array:
        """Return this array, or raise BadSharding if a mesh axis or a dim occurs twice."""
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
        """Elements of the largest shard.

        Args:
            sizes: dim -> size.
            mesh: mesh axis -> size.
        """
        total: Num = 1
        for dim in self.dims:
            size = sizes[dim.stored or dim.name]
            if dim.axes:
                size = shard_size(size, dim.axes, mesh)
            total = total * size
        return total


def shards(axes: tuple[str, ...], mesh: Mapping[str, Num]) -> Num:
    """Number of shards of a dim that these mesh axes shard."""
    if len(axes) == 1:
        return mesh.get(axes[0], 1)
    n: Num = 1
    for axis in axes:
        n = n * mesh.get(axis, 1)
    return n


def shard_size(size: Num, axes: tuple[str, ...], mesh: Mapping[str, Num]) -> Num:
    """Size of a dim of `size` in the largest of its shards over these mesh axes."""
    n = shards(axes, mesh)
    if isinstance(n, int) and n == 1:  # most dims of most meshes
        return size
    return ceil_div(size, n)


def local_size(dim: Dim, sizes: Mapping[str, Num], mesh: Mapping[str, Num]) -> Num:
    """Size of a dim in the largest shard: ceil(size / number of shards)."""
    return shard_size(sizes[dim.name_in_memory], dim.axes, mesh)


@dataclass(frozen=True)  # without slots, for what is kept
class Einsum:
    """`left . right -> output`: dims in both inputs and not in the output are summed over.

    `chosen` are dims of which each token uses some indices only, as the experts E of an MoE weight:
    they count in the size of an array, but not in FLOPs.
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

    @functools.cached_property
    def dims(self) -> tuple[str, ...]:
        """Every dim once, output dims first."""
        names = (*self.output.names, *self.left.names, *self.right.names)
        return tuple(dict.fromkeys(names))

    @property
    def contracting(self) -> tuple[str, ...]:
        return tuple(name for name in self.dims if name not in self.output.names)

    def flops(self, sizes: Mapping[str, Num]) -> Num:
        """FLOPs: 2 times the product of all distinct dims except `chosen`. Book §4."""
        total: Num = 2
        for name in self.dims:
            if name not in self.chosen:
                total = total * sizes[name]
        return total

    def gradients(self) -> tuple[Einsum, Einsum]:
        """The einsums of d(left) and d(right), each with the FLOPs of this einsum."""
        d_out = self.output.gradient()
        return (
            Einsum(d_out, self.right, self.left.gradient(), self.chosen),
            Einsum(self.left, d_out, self.right.gradient(), self.chosen),
        )

    def check(self) -> Einsum:
        """Return this einsum, or raise BadSharding with every reason why it is not a matmul."""
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
