"""The arrays of a model as descriptions: shape, dtype and layout first, numbers later.

Weights of equal layers are stacked along a first dim L, which a scan takes apart. A tree of arrays
is a dict: `layers` holds one dict per kind of layer, `outer` what stands around them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.models import Layer, ModelConfig, Moe
from shardwise.models.weights import Weight, layer_weights, outer_weights
from shardwise.runtime.table import Table

ZERO_DIMS = ("D", "Q", "C", "C'")  # those that ZeRO-3 cuts
# Beside the weights of a layer: what is added to scores to choose experts, but trained by no
# gradient (`models.numerics.Routing.correction`).
CORRECTION = "router_correction"

# Weights by name: of every kind of layer, and around the layers.
Tree = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayInfo:
    """One array of parameters before it exists.

    Args:
        weight: what it is.
        layers: equal layers that are stacked along dim 0; 0 for an array outside of layers.
    """

    weight: Weight
    layers: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.layers, *self.weight.shape) if self.layers else self.weight.shape

    @property
    def dims(self) -> tuple[str, ...]:
        return ("L", *self.weight.dims) if self.layers else self.weight.dims

    @property
    def is_table(self) -> bool:
        """Whether the rules for weights shard it: a matrix, not a norm's scale or a bias."""
        return self.weight.matmul or self.weight.part in ("embedding", "unembedding")

    @property
    def is_trained(self) -> bool:
        """Whether the optimizer changes it."""
        return self.weight.name != CORRECTION

    def roles(self, table: Table) -> dict[str, tuple[str, ...]]:
        """Dim -> roles that shard it. ZeRO-3 does not cut vectors: they are too small to gather."""
        found = table.roles("weights", self.weight.dims)
        return found if self.is_table else {d: r for d, r in found.items() if d not in ZERO_DIMS}

    def spec(self, table: Table) -> PartitionSpec:
        """How JAX lays it out."""
        roles = self.roles(table)
        return PartitionSpec(*(table.on.names(roles.get(d, ())) or None for d in self.dims))

    def local_shape(self, table: Table) -> tuple[int, ...]:
        """What one chip holds."""
        roles = self.roles(table)
        sizes = zip(self.dims, self.shape, strict=True)
        return tuple(n // table.on.size(roles.get(d, ())) for d, n in sizes)


def describe(config: ModelConfig) -> Tree:
    """Every array of a model: `layers` a list of dicts of ArrayInfo, `outer` one dict."""
    return {
        "layers": [
            {w.name: ArrayInfo(weight=w, layers=g.count) for w in layer_arrays(config, g.layer)}
            for g in config.groups
        ],
        "outer": {w.name: ArrayInfo(weight=w) for w in outer_weights(config)},
    }


def layer_arrays(config: ModelConfig, layer: Layer) -> tuple[Weight, ...]:
    """The weights of a layer, and what stands beside them."""
    weights, ffn = layer_weights(config, layer), layer.ffn
    if not (isinstance(ffn, Moe) and ffn.routing.correction):
        return weights
    shape = (ffn.n_experts,)
    correction = Weight(name=CORRECTION, dims=("E",), shape=shape, part="moe", matmul=False)
    return (*weights, correction)


def each(function: Callable[..., Any], infos: Tree, *trees: Tree) -> Tree:
    """A tree of what `function` makes of every description (and arrays of trees like it)."""
    return jax.tree.map(function, infos, *trees, is_leaf=lambda x: isinstance(x, ArrayInfo))


def shaped(info: ArrayInfo, table: Table, dtype: Any) -> jax.ShapeDtypeStruct:
    """The array without its numbers, as JAX takes it for lowering."""
    sharding = NamedSharding(table.on.mesh, info.spec(table))
    return jax.ShapeDtypeStruct(info.shape, dtype, sharding=sharding)


def initialised(infos: Tree, key: jax.Array, dtype: Any) -> Tree:
    """Random weights: normal with variance 1 / (summed elements), scales of norms 1, biases 0."""
    leaves, treedef = jax.tree.flatten(infos, is_leaf=lambda x: isinstance(x, ArrayInfo))
    keys = jax.random.split(key, len(leaves))
    made = [_initial(info, key, dtype) for info, key in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(treedef, made)


def _initial(info: ArrayInfo, key: jax.Array, dtype: Any) -> jax.Array:
    name = info.weight.name
    if name.endswith("norm") and not name.startswith("b_"):
        return jnp.ones(info.shape, dtype)
    if not info.is_table:
        return jnp.zeros(info.shape, dtype)
    width = info.weight.shape[-1] if info.weight.part == "embedding" else _summed(info.weight)
    return (jax.random.normal(key, info.shape) * width**-0.5).astype(dtype)


def _summed(weight: Weight) -> int:
    """Elements that one output of the product sums over."""
    dims = dict(zip(weight.dims, weight.shape, strict=True))
    if weight.name == "wo":
        return math.prod(weight.shape[:-1])
    return next(n for d, n in dims.items() if d != "E")
