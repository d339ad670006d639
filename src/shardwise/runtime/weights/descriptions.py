"""The arrays of a model as descriptions: shape, dtype and layout first, numbers later.

Layers stand as runs of a period (`models.stack`): Gemma 2 is 13 times a local and a global layer.
What stands in one place of a period is stacked along a first dim L, which a scan takes apart. A
tree of arrays is a dict: `layers` holds one dict per place, `outer` what stands around them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.models import Layer, ModelConfig, Moe, stack
from shardwise.models.weights import Weight, layer_weights, outer_weights
from shardwise.runtime.layout.sharding import Table

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
        weight: what it is; a vocabulary that its chips do not divide is filled up.
        layers: equal layers that are stacked along dim 0; 0 for an array outside of layers.
        start: what all its numbers are before training; None where they are random.
    """

    weight: Weight
    layers: int = 0
    start: float | None = None

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
        if not self.is_table:
            found = {d: r for d, r in found.items() if d not in ZERO_DIMS}
        staged = self.layers and table.mesh.sizes["pipe"] > 1
        return {"L": ("pipe",), **found} if staged else found

    def axes(self, table: Table) -> dict[str, tuple[str, ...]]:
        """Dim -> mesh axes that cut it.

        KV heads that are fewer than the chips of `tensor` are dealt out by its major axes; chips
        along the others hold copies.
        """
        found = {d: table.mesh.axis_names(roles) for d, roles in self.roles(table).items()}
        if "K" in found:
            n_heads = self.shape[self.dims.index("K")]
            found["K"] = table.mesh.dividing_axes(found["K"], n_heads)
        return {d: axes for d, axes in found.items() if axes}

    def spec(self, table: Table) -> PartitionSpec:
        """How JAX lays it out."""
        axes = self.axes(table)
        return PartitionSpec(*(axes.get(d) for d in self.dims))

    def local_shape(self, table: Table) -> tuple[int, ...]:
        """What one chip holds."""
        axes, shape = self.axes(table), table.mesh.jax_mesh.shape
        sizes = zip(self.dims, self.shape, strict=True)
        return tuple(n // math.prod(shape[a] for a in axes.get(d, ())) for d, n in sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One place in the period of a segment: layers that are stacked.

    Args:
        kind: index of their group.
        layers: their numbers in the model, counted from 0.
    """

    kind: int
    layers: range


def places(config: ModelConfig) -> tuple[Place, ...]:
    """What `layers` of a tree holds, in order.

    >>> from shardwise.models import load
    >>> [(p.kind, p.layers) for p in places(load("gemma2-2b"))]
    [(0, range(0, 26, 2)), (1, range(1, 26, 2))]
    """
    found, at = [], 0
    for segment in stack(config):
        period, end = len(segment.kinds), at + segment.n_layers
        found += [
            Place(kind=kind, layers=range(at + i, end, period))
            for i, kind in enumerate(segment.kinds)
        ]
        at = end
    return tuple(found)


def describe(config: ModelConfig, table: Table | None = None, n_stacked: int | None = None) -> Tree:
    """Every array of a model: `layers` a list of dicts of ArrayInfo, `outer` one dict.

    Args:
        config: the model.
        table: over whose chips a vocabulary is filled up to a multiple.
        n_stacked: what stacked arrays have room for on the stages of a pipeline, if not for as many
            layers as there are.
    """

    def info(weight: Weight, layers: int = 0) -> ArrayInfo:
        return ArrayInfo(
            weight=weight if table is None else _filled(weight, table),
            layers=layers,
            start=_start(config, weight),
        )

    return {
        "layers": [
            {
                w.name: info(w, n_stacked or len(place.layers))
                for w in layer_arrays(config, config.groups[place.kind].layer)
            }
            for place in places(config)
        ],
        "outer": {w.name: info(w) for w in outer_weights(config)},
    }


def _filled(weight: Weight, table: Table) -> Weight:
    """The weight with a vocabulary that its chips divide."""
    shards = table.mesh.size(table.roles("weights", weight.dims).get("V", ()))
    shape = tuple(
        n + -n % shards if dim == "V" else n
        for dim, n in zip(weight.dims, weight.shape, strict=True)
    )
    return replace(weight, shape=shape)


def _start(config: ModelConfig, weight: Weight) -> float | None:
    """1 for scales of norms as they are multiplied, 0 for biases, None for matrices."""
    if weight.matmul or (weight.part in ("embedding", "unembedding") and len(weight.dims) > 1):
        return None
    is_scale = weight.name.endswith("norm") and not weight.name.startswith("b_")
    return 1.0 - config.norm.plus_one if is_scale else 0.0


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
    sharding = NamedSharding(table.mesh.jax_mesh, info.spec(table))
    return jax.ShapeDtypeStruct(info.shape, dtype, sharding=sharding)


def initialised(infos: Tree, key: jax.Array, dtype: Any) -> Tree:
    """Random weights: normal with variance 1 / (summed elements), norms that scale by 1, biases 0.

    Under one key the numbers do not depend on the layout, but where a vocabulary is filled up.
    """
    leaves, treedef = jax.tree.flatten(infos, is_leaf=lambda x: isinstance(x, ArrayInfo))
    keys = jax.random.split(key, len(leaves))
    made = [_initial(info, key, dtype) for info, key in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(treedef, made)


def _initial(info: ArrayInfo, key: jax.Array, dtype: Any) -> jax.Array:
    if info.start is not None:
        return jnp.full(info.shape, info.start, dtype)
    width = info.weight.shape[-1] if info.weight.part == "embedding" else _summed(info.weight)
    return (jax.random.normal(key, info.shape) * width**-0.5).astype(dtype)


def _summed(weight: Weight) -> int:
    """Elements that one output of the product sums over."""
    dims = dict(zip(weight.dims, weight.shape, strict=True))
    if weight.name == "wo":
        return math.prod(weight.shape[:-1])
    return next(n for d, n in dims.items() if d != "E")


def owner(path: tuple[Any, ...], leaves: Mapping[tuple[Any, ...], Any]) -> Any:
    """Of the weights' `leaves`, by path, the one whose path an array's in an optimizer's state ends
    in; None for what belongs to no weight."""
    return next((leaves[path[n:]] for n in range(len(path)) if path[n:] in leaves), None)
