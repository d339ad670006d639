"""A model as an engine holds it: weights in the dtypes of serving, caches, and their layout.

The arrays of an engine are two trees: `weights` as in training, of which matrices of layers may be
`Scaled`, and a cache: `layers` with keys and values [L,B,K,S,H] of each kind of layer, and
`lengths` of its sequences. Both ends of the model stay in 16 bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.models import Attention, Layer, ModelConfig
from shardwise.ops.layers import layer_terms
from shardwise.runtime.blocks.attention import AttentionCore
from shardwise.runtime.blocks.layers import Stack, run_layer
from shardwise.runtime.blocks.products import Precision
from shardwise.runtime.dtypes import dtype
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.serving.kv_cache import SCALES
from shardwise.runtime.serving.kv_layout import KvLayout, kv_layout
from shardwise.runtime.weights.descriptions import ArrayInfo, Tree, describe, each
from shardwise.runtime.weights.quantized import Scaled, is_narrow, scaled
from shardwise.strategy.serving_layout import ServeLayout
from shardwise.workload import Serve

Array = jax.Array


@dataclass(frozen=True, kw_only=True)
class Serving:
    """An engine, or several side by side that share nothing.

    Args:
        config: the model.
        job: context and dtypes.
        layout: the strategy; its `data` counts engines.
        table: its rules on a mesh of `split_tensor`.
        batch: sequences of one engine.
    """

    config: ModelConfig
    job: Serve
    layout: ServeLayout
    table: Table
    batch: int

    @functools.cached_property
    def kv(self) -> KvLayout:
        """How caches lie on chips."""
        return kv_layout(self.table.mesh, self.layout.kv)

    @functools.cached_property
    def infos(self) -> Tree:
        """The weights as descriptions."""
        return describe(self.config)

    @property
    def attentions(self) -> list[Attention]:
        """Of each kind of layer."""
        return [g.layer.attention for g in self.config.groups if g.layer.attention]

    @property
    def engines(self) -> int:
        """Side by side."""
        return self.layout.sizes["data"]

    @property
    def wide(self) -> Any:
        """The dtype of activations, ends and norms."""
        return jnp.bfloat16 if is_narrow(dtype(self.job.compute)) else dtype(self.job.compute)

    def stack(self, seq: int) -> Stack:
        """What every layer knows in a pass over `seq` tokens of each sequence."""
        weights, compute = dtype(self.job.weights), dtype(self.job.compute)
        narrow = compute if is_narrow(weights) and is_narrow(compute) else None
        precision = Precision(compute=self.wide, narrow=narrow)
        return Stack(config=self.config, table=self.table, precision=precision, seq=seq)

    @functools.cached_property
    def summed(self) -> Tree:
        """For every weight the dims that its product sums over, from the last; none of a vector or
        an end, which are not scaled."""
        found = []
        for group in self.config.groups:
            terms = layer_terms(self.config, group.layer, 1)
            dims = {t.einsum.right.name: t.einsum.contracting for t in terms if t.block != "core"}
            found.append(dims)

        def of(info: ArrayInfo, dims: dict[str, tuple[str, ...]]) -> tuple[int, ...]:
            names, over = info.weight.dims, dims.get(info.weight.name, ())
            return tuple(i - len(names) for i, d in enumerate(names) if d in over)

        infos = self.infos
        layers = [
            {name: of(info, dims) for name, info in kind.items()}
            for kind, dims in zip(infos["layers"], found, strict=True)
        ]
        return {"layers": layers, "outer": dict.fromkeys(infos["outer"], ())}

    def held(self, weights: Tree) -> Tree:
        """Weights as the engine holds them, of weights in any wide dtype."""
        narrow = dtype(self.job.weights)

        def one(_: ArrayInfo, array: Array, over: tuple[int, ...]) -> Array | Scaled:
            if over and is_narrow(narrow):
                return scaled(array, narrow, over)
            return array.astype(self.wide if is_narrow(narrow) else narrow)

        return each(one, self.infos, weights, self.summed)

    def weight_specs(self) -> Tree:
        """Layout of the weights."""
        on, kv, narrow = self.table.mesh, self.kv, is_narrow(dtype(self.job.weights))

        def one(info: ArrayInfo, over: tuple[int, ...]) -> Any:
            roles = info.roles(self.table)
            names = [on.axis_names(roles.get(d, ())) for d in info.dims]
            if "K" in roles and kv.rest:
                names[info.dims.index("K")] = kv.heads
            spec = [n or None for n in names]
            if not (over and narrow):
                return PartitionSpec(*spec)
            kept = [s for i, s in enumerate(spec) if i - len(spec) not in over]
            return Scaled(PartitionSpec(*spec), PartitionSpec(*kept))  # type: ignore[arg-type]

        return each(one, self.infos, self.summed)

    def cache_specs(self) -> Tree:
        """Layout of the cache."""
        on, kv = self.table.mesh, self.kv
        rows = (*on.axis_names(("data",)), *kv.batch_axes)
        spec = (None, rows or None, kv.heads or None, kv.token_axes or None)
        whole = PartitionSpec(*spec, None)
        one = Scaled(whole, PartitionSpec(*spec)) if is_narrow(dtype(self.job.kv)) else whole  # type: ignore[arg-type]
        return {
            "layers": [{"k": one, "v": one} for _ in self.config.groups],
            "lengths": self.row_spec,
        }

    @property
    def row_spec(self) -> PartitionSpec:
        """Layout of one number for each sequence: every chip of an engine has all of them."""
        return PartitionSpec(self.table.mesh.axis_names(("data",)))

    @property
    def logits_spec(self) -> PartitionSpec:
        """Layout of logits [sequence, word]."""
        on = self.table.mesh
        return PartitionSpec(on.axis_names(("data",)), on.axis_names(("tensor",)))

    def weight_shapes(self) -> Tree:
        """The weights without their numbers, as JAX takes them for lowering."""
        wide = each(lambda info: jax.ShapeDtypeStruct(info.shape, self.wide), self.infos)
        return self.laid(jax.eval_shape(self.held, wide), self.weight_specs())

    def formats(self) -> Tree:
        """How weights lie in memory. A TPU takes a product by tiles of its last two dims: those of
        queries are read head by head, else each use would turn all of them around."""

        def one(path: Any, x: jax.ShapeDtypeStruct) -> Format | NamedSharding:
            if self.table.mesh.platform != "tpu" or "wq" not in jax.tree_util.keystr(path):
                return x.sharding
            order = (0, 2, 1, 3) if x.ndim == 4 else tuple(range(x.ndim))
            return Format(Layout(order), x.sharding)

        return jax.tree_util.tree_map_with_path(one, self.weight_shapes())

    def cache_shapes(self) -> Tree:
        """The empty cache without its numbers."""
        return self.laid(jax.eval_shape(self.empty), self.cache_specs())

    def laid(self, arrays: Tree, specs: Tree) -> Tree:
        """Arrays without numbers, each with its layout."""
        mesh = self.table.mesh.jax_mesh

        def one(x: Any, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))

        return jax.tree.map(one, arrays, specs)

    def empty(self) -> Tree:
        """A cache without sequences."""
        rows, kv = self.batch * self.engines, dtype(self.job.kv)

        def one(a: Attention, count: int) -> Array | Scaled:
            n_slots = self.kv.held(a, self.job.context) * self.kv.parts
            shape = (count, rows, a.n_kv_heads, n_slots)
            values = jnp.zeros((*shape, a.d_head), kv)
            return Scaled(values, jnp.zeros(shape, SCALES)) if is_narrow(kv) else values

        counts = [group.count for group in self.config.groups]
        layers = [
            {name: one(a, count) for name in ("k", "v")}
            for a, count in zip(self.attentions, counts, strict=True)
        ]
        return {"layers": layers, "lengths": jnp.zeros(rows, jnp.int32)}

    def through(
        self,
        stack: Stack,
        x_BTD: Array,
        weights: Tree,
        caches: list[Tree],
        core_of: Callable[[Layer, Tree], Any],
    ) -> tuple[Array, list[Tree]]:
        """All layers; what each adds to its cache, stacked.

        Args:
            caches: of each kind of layer; read, and not written.
            core_of: the core of one layer, from its cache.
        """
        added = []
        for group, stacked, held in zip(self.config.groups, weights["layers"], caches, strict=True):

            def body(
                x_BTD: Array, given: tuple[Tree, Tree], layer: Layer = group.layer
            ) -> tuple[Array, Tree]:
                own, cache = given
                core: AttentionCore = core_of(layer, cache)
                x_BTD = run_layer(stack, layer, core, x_BTD, paired(own), {})
                return x_BTD, core.cache_update  # type: ignore[attr-defined]

            x_BTD, new = lax.scan(body, x_BTD, (stacked, held))
            added.append(new)
        return x_BTD, added


def paired(weights: Tree) -> dict[str, tuple[Any, Any]]:
    """Weights of a layer as its blocks take them where nothing is differentiated."""
    return {name: (array, None) for name, array in weights.items()}


def greedy(table: Table, logits_BV: Array) -> Array:
    """The likeliest word of each sequence; each chip has its columns of the logits."""
    with jax.named_scope("sample"):
        word_B = jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)
        if not table.roles("activations", ("V",)):
            return word_B
        names = table.mesh.axis_names(("tensor",))
        most_B = logits_BV.max(axis=-1)
        word_B = word_B + table.index(("tensor",)) * logits_BV.shape[-1]
        most_PB, word_PB = (lax.all_gather(x, names) for x in (most_B, word_B))
        best_B = jnp.argmax(most_PB, axis=0)
        return jnp.take_along_axis(word_PB, best_B[None], axis=0)[0]
