"""The weights of a serving engine, with their dtypes and shardings.

The tree of weights is like that of training, but the matrices of layers may be quantized (`Scaled`
or `Grouped`); embedding and head stay in 16 bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.arrays import ceil_div
from shardwise.errors import BadInput
from shardwise.models import ModelConfig, stack
from shardwise.ops.layers import layer_terms
from shardwise.runtime.blocks.layers import LayerSettings
from shardwise.runtime.blocks.products import Precision
from shardwise.runtime.dtypes import dtype
from shardwise.runtime.experts import ragged
from shardwise.runtime.kernels.grouped_matmul import stored_transposed, takes_stacks
from shardwise.runtime.layout.mesh import RoleMesh
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.serving.kv_layout import KvLayout, kv_layout
from shardwise.runtime.weights.descriptions import (
    ArrayInfo,
    Tree,
    describe,
    layer_stacks,
    map_infos,
)
from shardwise.runtime.weights.quantized import (
    UNSIGNED,
    Grouped,
    Scaled,
    group_extents,
    is_narrow,
    quantize,
    quantize_groups,
)
from shardwise.strategy.rules import only
from shardwise.strategy.serving_layout import ServeLayout, serve_rules
from shardwise.workload import Serve

Array = jax.Array


@dataclass(frozen=True, kw_only=True)
class EngineState:
    """Shapes, dtypes and shardings of the arrays of one engine, or of several independent ones.

    Args:
        job: context length and dtypes.
        layout: the strategy; its `data` is the number of engines.
        table: the sharding rules of the layout, on a mesh of `split_tensor`.
        batch: number of sequences in the cache of one engine.
        group: the most inputs of a product whose weights share a scale, in int8 or int4; None for
            one scale per output column.
    """

    config: ModelConfig
    job: Serve
    layout: ServeLayout
    table: Table
    batch: int
    group: int | None = None

    def __post_init__(self) -> None:
        if self.group is not None and self.job.weights not in UNSIGNED:
            raise BadInput(
                f"{self.job.weights} weights in groups of {self.group}: groups have "
                f"{' or '.join(UNSIGNED)} weights."
            )

    @functools.cached_property
    def kv(self) -> KvLayout:
        """How chips share the KV caches."""
        return kv_layout(self.table.mesh, self.layout.kv)

    @functools.cached_property
    def infos(self) -> Tree:
        """Descriptions of the weights, with padding where chips do not divide them.

        Stages have equally many layers. A layer of padding has weights of zero, which leave the
        residual as it is.
        """
        n_stacked = None
        if self.n_stages > 1:
            (segment,) = stack(self.config)
            n_stacked = self.padded_layers(segment.repeats)
        return describe(self.config, self.table, n_stacked)

    def padded_layers(self, n_layers: int) -> int:
        """Length of the layer dim of a stack of layers, with padding."""
        return int(ceil_div(n_layers, self.n_stages)) * self.n_stages

    @property
    def row_roles(self) -> tuple[str, ...]:
        """Roles over which sequences are distributed, to engines and to groups of their chips.

        The rules count all tokens of a pass as B; those of `context` share each sequence.
        """
        roles = self.table.roles("activations", ("B",)).get("B", ())
        return ("data", *(role for role in roles if role != "context"))

    @property
    def n_pools(self) -> int:
        """Number of groups of chips with sequences and a cache of their own."""
        return self.table.mesh.size(self.row_roles)

    @property
    def gathers_tokens(self) -> bool:
        """Whether chips have different experts, see `experts.gathered`."""
        return self.table.mesh.size(self.table.rules.get("weights.E", ())) > 1

    @property
    def has_expert_kernel(self) -> bool:
        """Whether a kernel multiplies by the experts of a chip, in the stack of all layers."""
        weights = dtype(self.job.weights)
        if self.gathers_tokens or weights != self.activation_dtype:
            return False
        return takes_stacks(self.table.mesh.platform, weights)

    @property
    def activation_dtype(self) -> Any:
        """The dtype of activations, embedding, head and norms."""
        compute = dtype(self.job.compute)
        if is_narrow(compute):
            return jnp.bfloat16
        return compute

    @property
    def _is_quantized(self) -> bool:
        """Whether matrices of layers are quantized."""
        return is_narrow(dtype(self.job.weights))

    def settings(self, seq: int) -> LayerSettings:
        """Settings of all layers in a forward pass over `seq` tokens of each sequence."""
        narrow = None
        compute = dtype(self.job.compute)
        if self._is_quantized and is_narrow(compute):
            narrow = compute
        precision = Precision(compute=self.activation_dtype, narrow=narrow)
        return LayerSettings(
            config=self.config,
            table=self.table,
            precision=precision,
            seq=seq,
            ragged_dispatch=self.table.mesh.platform in ragged.PLATFORMS,
        )

    @functools.cached_property
    def contracted_dims(self) -> Tree:
        """For each weight, the dims that its product contracts, counted from the last (-1).

        They are empty for vectors, routers, embedding and head, which are not quantized.
        """
        layers = []
        for of_kind, infos in zip(layer_stacks(self.config), self.infos["layers"], strict=True):
            terms = layer_terms(self.config, self.config.groups[of_kind.kind].layer, 1)
            contracting = {
                term.einsum.right.name: term.einsum.contracting
                for term in terms
                if term.block != "core" and term.name != "moe.router"
            }
            dims = {}
            for name, info in infos.items():
                names = info.weight.dims
                summed = contracting.get(info.weight.name, ())
                dims[name] = tuple(
                    i - len(names) for i, dim in enumerate(names) if dim in summed and dim != "E"
                )
            layers.append(dims)
        return {"layers": layers, "outer": dict.fromkeys(self.infos["outer"], ())}

    def quantize_weights(self, weights: Tree) -> Tree:
        """Cast or quantize weights to the dtypes of the engine."""
        return map_infos(self.quantize_weight, self.infos, weights, self.contracted_dims)

    def quantize_weight(
        self, info: ArrayInfo, array: Array, dims: tuple[int, ...]
    ) -> Array | Scaled | Grouped:
        """Cast or quantize one weight.

        Args:
            info: its description.
            dims: the dims that its product contracts, as in `contracted_dims`.
        """
        weight_dtype = dtype(self.job.weights)
        if not self._is_quantized:
            return array.astype(weight_dtype)
        if not dims:
            return array.astype(self.activation_dtype)
        if self.group is None:
            return quantize(array, weight_dtype, dims)
        return quantize_groups(array, weight_dtype, self.extents(info, dims))

    def extents(self, info: ArrayInfo, dims: Sequence[int]) -> tuple[int, ...]:
        """Elements of a group of weights along each dim; chips have whole groups.

        Args:
            dims: the dims that the product contracts, as in `contracted_dims`.
        """
        return group_extents(info.local_shape(self.table), dims, self.group or 1)

    def weight_specs(self) -> Tree:
        """Partition specs of the weights."""
        mesh = self.table.mesh
        kv = self.kv

        def spec_of(info: ArrayInfo, dims: tuple[int, ...]) -> Any:
            roles = info.roles(self.table)
            names = [mesh.axis_names(roles.get(dim, ())) for dim in info.dims]
            if "K" in roles and kv.copy_axes:
                names[info.dims.index("K")] = kv.heads
            spec = [axes or None for axes in names]
            if not (dims and self._is_quantized):
                return PartitionSpec(*spec)
            if self.group is not None:
                return Grouped(*[PartitionSpec(*spec)] * 3)  # type: ignore[arg-type]
            scale_spec = [axes for i, axes in enumerate(spec) if i - len(spec) not in dims]
            return _scaled_spec(PartitionSpec(*spec), PartitionSpec(*scale_spec))

        return map_infos(spec_of, self.infos, self.contracted_dims)

    def weight_specs_by_layer(self) -> Tree:
        """Partition specs of weights whose layers have arrays of their own."""
        specs = self.weight_specs()
        layers = self._by_layer(specs["layers"], lambda spec: PartitionSpec(*spec[1:]))
        return {**specs, "layers": layers}

    @property
    def splits_stacks(self) -> bool:
        """Whether layers have arrays and code of their own: GPUs would copy slices of stacks."""
        return self.table.mesh.platform == "gpu" and self.n_stages == 1

    @property
    def n_stages(self) -> int:
        """Number of stages of the pipeline."""
        return self.table.mesh.sizes["pipe"]

    @property
    def stage_axes(self) -> tuple[str, ...]:
        """Mesh axes that shard the layers."""
        return self.table.mesh.axis_names(("pipe",)) if self.n_stages > 1 else ()

    @property
    def row_spec(self) -> PartitionSpec:
        """Partition spec of arrays [sequence, ..]."""
        return PartitionSpec(self.table.mesh.axis_names(self.row_roles))

    def weight_shapes(self) -> Tree:
        """Shapes, dtypes and shardings of the weights, as JAX takes them for lowering."""
        wide_dtype = self.activation_dtype
        weights = map_infos(lambda info: jax.ShapeDtypeStruct(info.shape, wide_dtype), self.infos)
        return self.sharded(jax.eval_shape(self.quantize_weights, weights), self.weight_specs())

    def weight_shapes_by_layer(self) -> Tree:
        """Shapes, dtypes and shardings of weights whose layers have arrays of their own."""
        shapes = self.weight_shapes()
        mesh = self.table.mesh.jax_mesh

        def of_layer(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            sharding = NamedSharding(mesh, PartitionSpec(*x.sharding.spec[1:]))
            return jax.ShapeDtypeStruct(x.shape[1:], x.dtype, sharding=sharding)

        return {**shapes, "layers": self._by_layer(shapes["layers"], of_layer)}

    def _by_layer(self, stacks: list[Tree], of_layer: Callable[[Any], Any]) -> list[list[Tree]]:
        """What each layer has, in lists, of what the stacks have: shapes or partition specs."""
        is_spec = lambda x: isinstance(x, PartitionSpec)
        return [
            [jax.tree.map(of_layer, of_stack, is_leaf=is_spec)] * len(of_kind.layers)
            for of_kind, of_stack in zip(layer_stacks(self.config), stacks, strict=True)
        ]

    def formats(self) -> Tree:
        """Memory layouts of the weights (the order of dims in memory), or only their shardings.

        Some weights of TPUs have a layout of their own. The query weights [L,D,N,H] have N before
        D: a TPU multiplies tiles of the last two dims in memory, and these weights are read head by
        head. The experts' matrices [L,E,I,J] are as their kernel reads them. Each use in another
        layout would transpose all of them.
        """

        def format_of(info: ArrayInfo, x: jax.ShapeDtypeStruct) -> Format | NamedSharding:
            if self.table.mesh.platform != "tpu":
                return x.sharding
            is_query = info.weight.name == "wq"
            if not is_query and not (self.has_expert_kernel and "E" in info.dims):
                return x.sharding
            order = tuple(range(x.ndim))
            if is_query and x.ndim == 4:
                order = (0, 2, 1, 3)
            elif x.ndim == 4 and stored_transposed(x.sharding.shard_shape(x.shape)):
                order = (0, 1, 3, 2)
            return Format(Layout(order), x.sharding)

        def formats_of(info: ArrayInfo, weight: Any) -> Any:
            return jax.tree.map(lambda x: format_of(info, x), weight)

        return map_infos(formats_of, self.infos, self.weight_shapes())

    def sharded(self, arrays: Any, specs: Any) -> Any:
        """Add shardings to the shapes in a tree of arrays."""
        mesh = self.table.mesh.jax_mesh

        def with_sharding(x: Any, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))

        return jax.tree.map(with_sharding, arrays, specs)


def engine_table(layout: ServeLayout, mesh: RoleMesh) -> Table:
    """The sharding rules of an engine; `expert` shards whole experts, and `tensor` may do so."""
    roles = ("tensor", "expert") if layout.expert_tensor == 1 else ("expert",)
    rules = {"weights.E": roles, **serve_rules(layout)}
    return Table(rules=only(rules, layout.sizes), mesh=mesh)


def without_accumulators(weights: Tree) -> dict[str, tuple[Any, Any]]:
    """Pair every weight with None, because a forward pass needs no gradient accumulators."""
    return {name: (array, None) for name, array in weights.items()}


def unstacked(arrays: Tree) -> list[Tree]:
    """Weights [L,..] of a stack by layer; each array is freed, as two copies may not fit."""
    n_layers = jax.tree.leaves(arrays)[0].shape[0]

    def split(x: Array) -> list[Array]:
        shardings = None
        if isinstance(x.sharding, NamedSharding):
            of_layer = NamedSharding(x.sharding.mesh, PartitionSpec(*x.sharding.spec[1:]))
            shardings = [of_layer] * n_layers
        slices: list[Array] = jax.jit(lambda x: list(x), out_shardings=shardings)(x)
        return slices

    layers: list[Tree] = [{} for _ in range(n_layers)]
    for name, weight in arrays.items():
        parts, structure = jax.tree.flatten(weight)
        by_layer = zip(*map(split, parts), strict=True)
        for layer, slices in zip(layers, by_layer, strict=True):
            layer[name] = jax.tree.unflatten(structure, slices)
        for part in parts:
            part.delete()
    return layers


def _scaled_spec(values: PartitionSpec, scale: PartitionSpec) -> Scaled:
    return Scaled(values, scale)  # type: ignore[arg-type]
