"""What sums in int8 have lost, as a part of the state: one array for every weight that they sum.

Each chip has lost something else, so an array has a first dim for the copies, of which a chip has
its own. Names are those of a weight in the tree, `layers/0/wq`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import PartitionSpec

from shardwise.runtime.dtypes import dtype
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.training.gradient_sync import Deal
from shardwise.runtime.training.int8_reduce import Owing
from shardwise.runtime.weights.descriptions import ArrayInfo, Tree
from shardwise.workload import LOST

Array = jax.Array
Lost = Mapping[str, Array]
Sum = Callable[[Deal, Array], Array]


@dataclass(frozen=True, kw_only=True)
class Owed:
    """The arrays of a step.

    Args:
        infos: the weights as descriptions.
        deals: how copies of each share its update.
        table: rules on the mesh.
    """

    infos: Tree
    deals: Tree
    table: Table

    @functools.cached_property
    def rounded(self) -> dict[str, tuple[ArrayInfo, Deal]]:
        """The weights whose sums travel in int8."""
        deals = self.named(self.deals)
        return {
            name: (info, deals[name])
            for name, info in self.named(self.infos).items()
            if deals[name].rounded
        }

    def named(self, tree: Tree) -> dict[str, Any]:
        """What a tree has for each weight, by its name."""
        found: dict[str, Any] = {}
        self._each(lambda name, _, held: found.update({name: held}), tree)
        return found

    def specs(self) -> dict[str, PartitionSpec]:
        """How they are laid out."""
        return {
            name: PartitionSpec(deal.rounded, *info.spec(self.table))
            for name, (info, deal) in self.rounded.items()
        }

    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Without their numbers and places."""
        return {
            name: jax.ShapeDtypeStruct((self._copies(deal), *info.shape), dtype(LOST))
            for name, (info, deal) in self.rounded.items()
        }

    def _copies(self, deal: Deal) -> int:
        return math.prod(self.table.mesh.jax_mesh.shape[axis] for axis in deal.rounded)

    def holders(self, holders: Tree, lost: Lost) -> Tree:
        """The places of gradients, with what is lost of those that the backward pass sums."""

        def one(name: str, _: Deal, holder: Array) -> Array | Owing:
            here = name in self.rounded and self.rounded[name][1].each
            return Owing(holder, lost[name][0]) if here else holder

        return self._each(one, holders)

    def settled(self, found: Tree, lost: Lost, exact: Sum) -> tuple[Tree, dict[str, Array]]:
        """(gradients summed over copies, what is lost now).

        Args:
            found: gradients, with what is lost where the backward pass has summed them.
            lost: before.
            exact: sums all others.
        """
        later: dict[str, Array] = {}

        def one(name: str, deal: Deal, gradient: Array | Owing) -> Array:
            if not isinstance(gradient, Owing):
                if name not in self.rounded:
                    return exact(deal, gradient)
                gradient = _summed(self.rounded[name][0], deal, gradient, lost[name][0])
            later[name] = gradient.lost[None]
            return gradient.gradient

        return self._each(one, found), later

    def _each(self, function: Callable[..., Any], tree: Tree) -> Tree:
        """A tree of what `function` makes of name, deal and what `tree` has for each weight."""
        leaf = lambda x: isinstance(x, ArrayInfo)
        paths, like = jax.tree_util.tree_flatten_with_path(self.infos, is_leaf=leaf)
        treedef: Any = like
        deals, held = (treedef.flatten_up_to(t) for t in (self.deals, tree))
        names = [jax.tree_util.keystr(p, simple=True, separator="/") for p, _ in paths]
        made: Tree = jax.tree.unflatten(treedef, map(function, names, deals, held))
        return made


def _summed(info: ArrayInfo, deal: Deal, gradient: Array, lost: Array) -> Owing:
    """One layer after the other: what a sum works on is as wide as fp32."""

    def one(both: tuple[Array, Array]) -> Owing:
        found = deal.owing(*both)
        return found._replace(gradient=found.gradient.astype(gradient.dtype))

    return jax.lax.map(one, (gradient, lost)) if info.layers else one((gradient, lost))
