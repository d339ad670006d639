"""Numbers of elements of arrays on one chip, with every shared factor computed once.

A search needs the sizes of hundreds of arrays on a million meshes. Most sizes are a constant times
one of a few products of local sizes (e.g. tokens x heads), so the constants of equal products are
added before they are multiplied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shardwise.arrays import Num
from shardwise.models.weights import Weight
from shardwise.ops.einsum import shard_size
from shardwise.ops.program import SavedActivation
from shardwise.strategy.rules import Rules, layout

# A dim of an array: (name, size, axes that shard it). A size of None is looked up by name: it may
# be an array over meshes.
Factor = tuple[str, int | None, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Term:
    """Number of elements of an array: `coefficient` times the local sizes of `factors`."""

    coefficient: Num
    factors: tuple[Factor, ...]


class LocalElements:
    """Evaluates terms under one mesh, or under arrays of meshes; products are cached.

    Args:
        mesh: mesh role -> chips.
        sizes: name of a factor -> its size, for factors whose size may be an array.
    """

    __slots__ = ("_mesh", "_products", "_sizes")

    def __init__(self, mesh: Mapping[str, Num], sizes: Mapping[str, Num]) -> None:
        self._mesh = mesh
        self._sizes = sizes
        self._products: dict[tuple[Factor, ...], Num] = {(): 1}

    def product(self, factors: tuple[Factor, ...]) -> Num:
        """Product of the local sizes of `factors`, each ceil(size / shards)."""
        if factors not in self._products:
            name, number, axes = factors[-1]
            size = self._sizes[name] if number is None else number
            if axes:
                size = shard_size(size, axes, self._mesh)
            before = factors[:-1]
            self._products[factors] = self.product(before) * size if before else size
        return self._products[factors]

    def total(self, terms: Iterable[Term]) -> Num:
        """Sum of `terms`: total number of elements."""
        coefficients: dict[tuple[Factor, ...], Num] = {}
        for term in terms:
            coefficients[term.factors] = coefficients.get(term.factors, 0) + term.coefficient
        total: Num = 0
        for factors, coefficient in coefficients.items():
            total = total + coefficient * self.product(factors)
        return total


def activation_term(kept: SavedActivation, scale: Num = 1) -> Term:
    """Term for `scale` times the elements of an activation for one microbatch.

    If a layer saves several such arrays (`kept.count`), the term is for one of them.
    """
    coefficient = scale
    factors: list[Factor] = []
    for dim in kept.array.dims:
        size = kept.sizes[dim.name_in_memory]
        if dim.name in ("B", "T"):
            factors.append((dim.name, None, dim.axes))
        elif dim.axes:
            factors.append(("", size, dim.axes))
        else:
            coefficient = coefficient * size
    return Term(coefficient, tuple(factors))


def weight_term(weight: Weight, rules: Rules) -> Term:
    """Term for the elements of a weight on one chip under sharding rules."""
    axes = layout(rules, "weights", weight.dims)
    coefficient = 1
    factors: list[Factor] = []
    for dim, size in zip(weight.dims, weight.shape, strict=True):
        if axes.get(dim):
            factors.append(("", size, axes[dim]))
        else:
            coefficient *= size
    return Term(coefficient, tuple(sorted(factors, key=str)))
