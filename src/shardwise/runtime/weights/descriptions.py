"""Descriptions of the arrays of a model: their shapes and shardings, before the arrays exist.

The layers of a model repeat a period (`models.stack`): Gemma 2 repeats a local and a global layer
13 times. Layers at the same position of the period are stacked along a first dim L, over which a
scan runs. A tree of arrays is a dict: `layers` is a list with one dict per stack, `outer` is a dict
of the arrays outside of layers, such as the embedding.
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

ZERO_DIMS = ("D", "Q", "C", "C'")  # dims of weights that ZeRO-3 shards
# Name of an array without a gradient, which is added to the scores that choose experts
# (`models.numerics.Routing.correction`).
CORRECTION = "router_correction"

# {"layers": [{name: array}], "outer": {name: array}}
Tree = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayInfo:
    """Description of one array of parameters.

    Args:
        weight: name, dims and shape without the layer dim; dim V is padded to a multiple of the
            chips that shard it.
        n_layers: number of layers stacked along dim 0; 0 for an array outside of layers.
        init_value: initial value of all elements; None for random ones.
    """

    weight: Weight
    n_layers: int = 0
    init_value: float | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array, with the layer dim."""
        return (self.n_layers, *self.weight.shape) if self.n_layers else self.weight.shape

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dims, with L for the layers."""
        return ("L", *self.weight.dims) if self.n_layers else self.weight.dims

    @property
    def is_matrix(self) -> bool:
        """Whether it is a matrix or an embedding, not the scale of a norm or a bias."""
        return self.weight.is_matmul or self.weight.part in ("embedding", "unembedding")

    @property
    def is_trained(self) -> bool:
        """Whether the optimizer updates it."""
        return self.weight.name != CORRECTION

    def roles(self, table: Table) -> dict[str, tuple[str, ...]]:
        """Dim -> roles that shard it. ZeRO-3 shards no scales or biases: they are too small."""
        roles = dict(table.roles("weights", self.weight.dims))
        if not self.is_matrix:
            for dim in ZERO_DIMS:
                roles.pop(dim, None)
        if self.n_layers and table.mesh.sizes["pipe"] > 1:
            return {"L": ("pipe",), **roles}
        return roles

    def axes(self, table: Table) -> dict[str, tuple[str, ...]]:
        """Dim -> mesh axes that shard it.

        If there are fewer KV heads than chips of `tensor`, the major axes of `tensor` shard the
        heads, and chips along its other axes have copies.
        """
        axes = {dim: table.mesh.axis_names(roles) for dim, roles in self.roles(table).items()}
        if "K" in axes:
            n_heads = self.shape[self.dims.index("K")]
            axes["K"] = table.mesh.dividing_axes(axes["K"], n_heads)
        return {dim: names for dim, names in axes.items() if names}

    def spec(self, table: Table) -> PartitionSpec:
        """Partition spec of the array."""
        axes = self.axes(table)
        return PartitionSpec(*(axes.get(dim) for dim in self.dims))

    def local_shape(self, table: Table) -> tuple[int, ...]:
        """Shape of the shard of one chip."""
        axes = self.axes(table)
        axis_sizes = table.mesh.jax_mesh.shape
        shape = list(self.shape)
        for i, dim in enumerate(self.dims):
            shape[i] //= math.prod(axis_sizes[axis] for axis in axes.get(dim, ()))
        return tuple(shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerStack:
    """The layers at one position of the period, whose arrays are stacked.

    Args:
        kind: index in `ModelConfig.groups` of the group that describes these layers.
        layers: indices of the layers in the model, from 0.
    """

    kind: int
    layers: range


def layer_stacks(config: ModelConfig) -> tuple[LayerStack, ...]:
    """The stacks of a model, in the order of `layers` in a tree.

    >>> from shardwise.models import load
    >>> [(s.kind, s.layers) for s in layer_stacks(load("gemma2-2b"))]
    [(0, range(0, 26, 2)), (1, range(1, 26, 2))]
    """
    stacks = []
    first = 0
    for segment in stack(config):
        stop = first + segment.n_layers
        period = len(segment.kinds)
        for position, kind in enumerate(segment.kinds):
            stacks.append(LayerStack(kind=kind, layers=range(first + position, stop, period)))
        first = stop
    return tuple(stacks)


def describe(config: ModelConfig, table: Table | None = None, n_stacked: int | None = None) -> Tree:
    """Describe every array of a model, as a tree of `ArrayInfo`.

    Args:
        table: sharding rules; the vocabulary is padded to a multiple of the chips that shard it.
            None for no padding.
        n_stacked: length of the layer dim on the stages of a pipeline, with empty positions; None
            for the number of layers.
    """

    def info(weight: Weight, n_layers: int = 0) -> ArrayInfo:
        init_value = _init_value(config, weight)
        if table is not None:
            weight = _padded(weight, table)
        return ArrayInfo(weight=weight, n_layers=n_layers, init_value=init_value)

    layers = []
    for layer_stack in layer_stacks(config):
        n_slots = n_stacked or len(layer_stack.layers)
        weights = layer_arrays(config, config.groups[layer_stack.kind].layer)
        layers.append({weight.name: info(weight, n_slots) for weight in weights})
    outer = {weight.name: info(weight) for weight in outer_weights(config)}
    return {"layers": layers, "outer": outer}


def _padded(weight: Weight, table: Table) -> Weight:
    """The weight with dim V padded to a multiple of the chips that shard it."""
    if "V" not in weight.dims:
        return weight
    n_shards = table.mesh.size(table.roles("weights", weight.dims).get("V", ()))
    shape = list(weight.shape)
    dim = weight.dims.index("V")
    shape[dim] += -shape[dim] % n_shards
    return replace(weight, shape=tuple(shape))


def _init_value(config: ModelConfig, weight: Weight) -> float | None:
    """Initial value of a weight: scale 1 for a norm, 0 for biases, None (random) for matrices."""
    if weight.is_matmul or (weight.part in ("embedding", "unembedding") and len(weight.dims) > 1):
        return None
    if weight.name.endswith("norm") and not weight.name.startswith("b_"):
        return 1.0 - config.norm.plus_one
    return 0.0


def layer_arrays(config: ModelConfig, layer: Layer) -> tuple[Weight, ...]:
    """The arrays of a layer: its weights, and `CORRECTION` if the layer has one."""
    weights = layer_weights(config, layer)
    ffn = layer.ffn
    if not (isinstance(ffn, Moe) and ffn.routing.correction):
        return weights
    shape = (ffn.n_experts,)
    correction = Weight(name=CORRECTION, dims=("E",), shape=shape, part="moe", is_matmul=False)
    return (*weights, correction)


def map_infos(function: Callable[..., Any], infos: Tree, *trees: Tree) -> Tree:
    """Call a function of every description and of the values of `trees` at the same path."""
    return jax.tree.map(function, infos, *trees, is_leaf=lambda x: isinstance(x, ArrayInfo))


def shape_struct(info: ArrayInfo, table: Table, dtype: Any) -> jax.ShapeDtypeStruct:
    """Shape, dtype and sharding of an array, as JAX takes them for lowering."""
    sharding = NamedSharding(table.mesh.jax_mesh, info.spec(table))
    return jax.ShapeDtypeStruct(info.shape, dtype, sharding=sharding)


def init_weights(infos: Tree, key: jax.Array, dtype: Any) -> Tree:
    """Initialize weights: matrices normal with variance 1 / fan-in, norms with scale 1, biases 0.

    With the same key the numbers do not depend on the layout, except where it pads the vocabulary.
    """
    leaves, treedef = jax.tree.flatten(infos, is_leaf=lambda x: isinstance(x, ArrayInfo))
    keys = jax.random.split(key, len(leaves))
    arrays = [_init_array(info, key, dtype) for info, key in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(treedef, arrays)


def _init_array(info: ArrayInfo, key: jax.Array, dtype: Any) -> jax.Array:
    """Initial values of one array."""
    if info.init_value is not None:
        return jnp.full(info.shape, info.init_value, dtype)
    return (jax.random.normal(key, info.shape) * _fan_in(info.weight) ** -0.5).astype(dtype)


def _fan_in(weight: Weight) -> int:
    """Number of products that each output of a weight sums; the width of an embedding."""
    if weight.part == "embedding":
        return weight.shape[-1]
    if weight.name == "wo":
        return math.prod(weight.shape[:-1])
    dims = dict(zip(weight.dims, weight.shape, strict=True))
    return next(n for dim, n in dims.items() if dim != "E")


def weight_of_state(path: tuple[Any, ...], leaves: Mapping[tuple[Any, ...], Any]) -> Any:
    """Find the weight to which an array in an optimizer's state belongs.

    Args:
        path: path of the array in the state; it ends with the path of its weight.
        leaves: path of a weight -> value to return for it.

    Returns:
        The value of the weight; None if the array belongs to no weight.
    """
    for n in range(len(path)):
        if path[n:] in leaves:
            return leaves[path[n:]]
    return None
