"""Elements of many arrays on one chip, each factor that they share worked out once.

A search asks for the bytes of hundreds of arrays on a million meshes. Most of them are a number
times the same few products of shards (tokens x heads), so terms with equal factors are added first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shardwise.arrays import Num, ceil_div
from shardwise.models.weights import Weight
from shardwise.ops.einsum import shards
from shardwise.ops.program import Kept
from shardwise.strategy.rules import Rules, layout

# (name of a size that is not a plain number, the number or None, axes that shard it)
Factor = tuple[str, int | None, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Term:
    """`coefficient` times the local sizes of `factors`."""

    coefficient: Num
    factors: tuple[Factor, ...]


class Local:
    """Local sizes under one mesh, or under arrays of meshes.

    Args:
        mesh: Chips by role.
        sizes: Sizes that may be arrays, by the name that factors give them.
    """

    __slots__ = ("_found", "_mesh", "_sizes")

    def __init__(self, mesh: Mapping[str, Num], sizes: Mapping[str, Num]) -> None:
        self._mesh, self._sizes = mesh, sizes
        self._found: dict[tuple[Factor, ...], Num] = {(): 1}

    def product(self, factors: tuple[Factor, ...]) -> Num:
        """The product of ceil(size / shards)."""
        if factors not in self._found:
            *before, (name, number, axes) = factors
            size = self._sizes[name] if number is None else number
            last = ceil_div(size, shards(axes, self._mesh)) if axes else size
            head = tuple(before)
            self._found[factors] = self.product(head) * last if head else last
        return self._found[factors]

    def total(self, terms: Iterable[Term]) -> Num:
        """The sum of terms."""
        found: dict[tuple[Factor, ...], Num] = {}
        for term in terms:
            found[term.factors] = found.get(term.factors, 0) + term.coefficient
        total: Num = 0
        for factors, coefficient in found.items():
            total = total + coefficient * self.product(factors)
        return total


def activation_term(kept: Kept, times: Num = 1) -> Term:
    """One of the `count` arrays, for one microbatch."""
    coefficient, factors = times, list[Factor]()
    for dim in kept.array.dims:
        size = kept.sizes[dim.held]
        if dim.name in ("B", "T"):
            factors.append((dim.name, None, dim.axes))
        elif dim.axes:
            factors.append(("", size, dim.axes))
        else:
            coefficient = coefficient * size
    return Term(coefficient, tuple(factors))


def weight_term(weight: Weight, rules: Rules) -> Term:
    """All elements of a weight that the rules leave on one chip."""
    axes = layout(rules, "weights", weight.dims)
    coefficient, factors = 1, list[Factor]()
    for dim, size in zip(weight.dims, weight.shape, strict=True):
        if axes.get(dim):
            factors.append(("", size, axes[dim]))
        else:
            coefficient *= size
    return Term(coefficient, tuple(sorted(factors, key=str)))
