"""The forward pass of an inference engine: new tokens of several sequences, over a paged KV cache.

One program does all work of an engine. A chunk of a prompt is a sequence with many new tokens, a
decode step has one token for each sequence, and drafted tokens are verified as a few tokens each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.arrays import ceil_div
from shardwise.models import Attention, stack
from shardwise.runtime.blocks.head import head
from shardwise.runtime.blocks.layers import LayerSettings, Weights, run_layer
from shardwise.runtime.blocks.model import embed
from shardwise.runtime.blocks.paged_attention import PagedAttention
from shardwise.runtime.blocks.products import OfStack
from shardwise.runtime.dtypes import dtype
from shardwise.runtime.kernels import cpu_rows
from shardwise.runtime.layout.sharding import gather
from shardwise.runtime.serving import sequence_parallel
from shardwise.runtime.serving.engine_state import EngineState, unstacked, without_accumulators
from shardwise.runtime.serving.kv_cache import (
    SCALE_DTYPE,
    CacheArray,
    cached_stacks,
    cached_widths,
    stored_dtype,
)
from shardwise.runtime.serving.kv_layout import cached_heads
from shardwise.runtime.serving.paged_cache import NewTokens
from shardwise.runtime.serving.stages import run_stages
from shardwise.runtime.serving.token_shards import last_of_rows, of_all, of_chip
from shardwise.runtime.weights.descriptions import Tree
from shardwise.runtime.weights.quantized import Grouped, Scaled, is_narrow

Array = jax.Array

BLOCK_TOKENS = 16
LATENT_WEIGHTS = ("w_uk", "w_uv")  # which latent attention multiplies in either order
Caches = list[Tree]
LANES = 128  # of a TPU, see `kernels.paged`


@dataclass(frozen=True, kw_only=True)
class PagedForward:
    """A forward pass over new tokens, with its weights and its cache.

    Args:
        engine: weights, sharding rules and dtypes of the engine.
        n_blocks: blocks of the cache of each of `engine.n_pools`.
        block_tokens: tokens per block; chips that share the tokens of sequences have equal parts.
        by_layer: whether each layer has its own arrays and code, which is faster on one CPU and on
            GPUs: slices of stacks would be copied. Weights are those of `weights_by_layer`.
    """

    engine: EngineState
    n_blocks: int
    block_tokens: int
    by_layer: bool = False

    def init_cache(self) -> list[Tree]:
        """Make an empty cache: keys "k" and values "v" [L*P,K,O,H] of each stack of layers."""
        kv_dtype = stored_dtype(dtype(self.engine.job.kv), self.engine.table.mesh.platform)

        def zeros(a: Attention, n_layers: int, width: int) -> CacheArray:
            n_blocks = n_layers * self.n_blocks * self.engine.n_pools
            shape = (n_blocks, cached_heads(a), self.block_tokens)
            values = jnp.zeros((*shape, width), kv_dtype)
            if is_narrow(kv_dtype):
                return Scaled(values, jnp.zeros(shape, SCALE_DTYPE))
            return values

        caches: list[Any] = []
        for a, n_layers in cached_stacks(self.engine.config):
            widths = cached_widths(a)
            sizes = [self.engine.padded_layers(n_layers)]
            if self.by_layer:
                sizes = [1] * n_layers
            stack_caches = []
            for size in sizes:
                stack_caches.append({name: zeros(a, size, w) for name, w in widths.items()})
            caches.append(stack_caches if self.by_layer else stack_caches[0])
        return caches

    def weights_by_layer(self, weights: Tree) -> Tree:
        """Weights of a forward pass `by_layer`, from those of `EngineState.quantize_weights`.

        The weights of a stack become a list of those of its layers. On GPUs its arrays are freed.
        """
        if self.engine.table.mesh.platform == "cpu":
            return jax.jit(self._rows_by_layer)(weights)
        return {**weights, "layers": [unstacked(arrays) for arrays in weights["layers"]]}

    def _rows_by_layer(self, weights: Tree) -> Tree:
        """Weights by layer for CPUs: matrices are stored by output, but not those of experts.

        Embedding and head of a quantized model are in 16 bits, although products are in fp32.
        """
        layers = []
        dims = self.engine.contracted_dims["layers"]
        infos = self.engine.infos["layers"]
        for stack_dims, stack_infos, stacked in zip(dims, infos, weights["layers"], strict=True):
            n_layers = jax.tree.leaves(stacked)[0].shape[0]
            by_layer = []
            for i in range(n_layers):
                layer = jax.tree.map(lambda x, i=i: x[i], stacked)
                for name, contracted in stack_dims.items():
                    is_of_expert = "E" in stack_infos[name].weight.dims
                    is_matrix = contracted and not isinstance(layer[name], Grouped)
                    if is_matrix and not is_of_expert and name not in LATENT_WEIGHTS:
                        layer[name] = cpu_rows.rows(layer[name], contracted)
                by_layer.append(layer)
            layers.append(by_layer)
        outer = dict(weights["outer"])
        if is_narrow(dtype(self.engine.job.weights)):
            tables = ("embedding", "unembedding")
            outer |= {x: outer[x].astype(jnp.bfloat16) for x in tables if x in outer}
        outer["embedding"] = cpu_rows.rows(outer["embedding"], (-1,), is_embedding=True)
        if "unembedding" in outer:
            outer["unembedding"] = cpu_rows.rows(outer["unembedding"], (-2,))
        return {"layers": layers, "outer": outer}

    def cache_specs(self) -> list[Tree]:
        """Partition specs of the cache."""
        kv = self.engine.kv
        pool_axes = self.engine.table.mesh.axis_names(self.engine.row_roles)
        blocks = (*pool_axes, *self.engine.stage_axes)
        scale_spec = (blocks, kv.heads or None, kv.token_axes or None)
        spec: Any = PartitionSpec(*scale_spec, None)
        if is_narrow(dtype(self.engine.job.kv)):
            spec = Scaled(spec, PartitionSpec(*scale_spec))  # type: ignore[arg-type]
        stacks = cached_stacks(self.engine.config)
        return [dict.fromkeys(cached_widths(a), spec) for a, _ in stacks]

    def cache_shapes(self) -> list[Tree]:
        """Shapes, dtypes and shardings of the cache."""
        shapes: list[Tree]
        specs = self._of_layers(self.cache_specs())
        shapes = self.engine.sharded(jax.eval_shape(self.init_cache), specs)
        return shapes

    def block_shardings(self) -> list[Any]:
        """Shardings of blocks [n,L,K,O,..], which all pools have; a tree like that of the cache."""
        mesh = self.engine.table.mesh.jax_mesh
        stages = self.engine.stage_axes or None
        specs = self._of_layers(self.cache_specs())
        shardings: list[Any] = jax.tree.map(
            lambda spec: NamedSharding(mesh, PartitionSpec(None, stages, *spec[1:])),
            specs,
            is_leaf=lambda spec: isinstance(spec, PartitionSpec),
        )
        return shardings

    def cache_formats(self) -> list[Any] | None:
        """Memory layouts of the cache, or only its shardings; None by layer on one device.

        On TPUs slots and width are the last two dims also in memory, as the kernels need them: with
        a width that is no multiple of a tile, the default would be the order that pads least.
        """

        def format_of(x: jax.ShapeDtypeStruct) -> Format | NamedSharding:
            if self.engine.table.mesh.platform != "tpu":
                return x.sharding
            return Format(Layout(tuple(range(x.ndim))), x.sharding)

        if self.by_layer and self.engine.table.mesh.jax_mesh.size == 1:
            return None
        stacked = replace(self, by_layer=False)
        formats: list[Any] = jax.tree.map(format_of, stacked.cache_shapes())
        return self._of_layers(formats)

    def _of_layers(self, of_stacks: list[Any]) -> list[Any]:
        """What the cache of each layer has as its stack; of stacks as it is, if not `by_layer`."""
        if not self.by_layer:
            return of_stacks
        layers = [n for _, n in cached_stacks(self.engine.config)]
        return [[of_stack] * n for of_stack, n in zip(of_stacks, layers, strict=True)]

    def batch_shapes(
        self, n: int, n_tokens: int, n_blocks: int
    ) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Shapes of `function`'s arguments after the cache.

        Args:
            n: number of sequences of each of the engine's pools.
            n_tokens: number of new tokens of each.
            n_blocks: number of blocks of each.
        """
        rows = n * self.engine.n_pools
        sharding = NamedSharding(self.engine.table.mesh.jax_mesh, self.engine.row_spec)
        shapes = ((rows, n_tokens), (rows,), (rows,), (rows, n_blocks))
        return tuple(jax.ShapeDtypeStruct(x, jnp.int32, sharding=sharding) for x in shapes)

    def function(
        self, *, all_logits: bool = False
    ) -> Callable[[Tree, list[Tree], Array, Array, Array, Array], tuple[list[Tree], Array]]:
        """The function `(weights, cache, tokens_BT, past_B, new_B, tables_BM) -> (cache, logits)`.

        Logits are those of the last new token of each sequence, [B,V] in fp32.

        Args:
            all_logits: whether to return those of all new tokens, [B,T,V].
        """
        engine = self.engine
        rows = engine.row_spec
        vocab_axes = engine.table.mesh.axis_names(("tensor",)) or None
        logits_spec = PartitionSpec(*rows, *[None] * all_logits, vocab_axes)

        def local(
            weights: Tree,
            cache: list[Tree],
            tokens_BT: Array,
            past_B: Array,
            new_B: Array,
            tables_BM: Array,
        ) -> tuple[list[Tree], Array]:
            tokens = NewTokens(
                past_B=past_B,
                new_B=new_B,
                tables_BM=tables_BM,
                n_tokens=tokens_BT.shape[1],
                block_tokens=self.block_tokens,
                kv_layout=engine.kv,
            )
            return self._local(weights, cache, tokens_BT, tokens, all_logits)

        weight_specs: Any = engine.weight_specs()
        cache_specs: Any = self.cache_specs()
        if self.by_layer and engine.table.mesh.platform == "cpu":  # on one device
            weight_specs = cache_specs = PartitionSpec()
        elif self.by_layer:
            weight_specs = engine.weight_specs_by_layer()
            cache_specs = self._of_layers(cache_specs)
        return jax.shard_map(
            local,
            mesh=engine.table.mesh.jax_mesh,
            in_specs=(weight_specs, cache_specs, rows, rows, rows, rows),
            out_specs=(cache_specs, logits_spec),
            check_vma=False,
        )

    def _local(
        self,
        weights: Tree,
        cache: list[Tree],
        tokens_BT: Array,
        tokens: NewTokens,
        all_logits: bool,
    ) -> tuple[list[Tree], Array]:
        """Run the pass on the shards of one chip, inside `shard_map`."""
        engine = self.engine
        kv = engine.kv
        settings = head_settings = engine.settings(engine.job.context)
        shards_tokens = sequence_parallel.shards_tokens(engine, tokens.n_tokens)
        if shards_tokens:
            settings = sequence_parallel.sharded(settings)
        outer = without_accumulators(weights["outer"])
        x_BTD = self._embedded(settings, of_chip(kv, tokens_BT), outer, tokens)

        def run_layers(x_BTD: Array, cache: Caches, tokens: NewTokens) -> tuple[Array, Caches]:
            of_pass = replace(settings, is_token_BT=of_chip(kv, tokens.is_token_BT))
            return self._run_layers(of_pass, x_BTD, weights["layers"], cache, tokens)

        if engine.n_stages > 1:
            x_BTD, cache = run_stages(run_layers, engine.stage_axes, x_BTD, cache, tokens)
        else:
            x_BTD, cache = run_layers(x_BTD, cache, tokens)
        if shards_tokens:
            new_B = None if all_logits else tokens.new_B
            x_BTD = sequence_parallel.on_all_chips(settings, x_BTD, new_B)
        elif all_logits:
            x_BTD = of_all(kv, x_BTD, *tokens_BT.shape)
        else:
            x_BTD = last_of_rows(kv, x_BTD, tokens.new_B, tokens.n_tokens)
        if engine.n_stages > 1:
            x_BTD = lax.psum(x_BTD, engine.stage_axes)
        logits_BTV = head(head_settings, x_BTD, outer, {})
        return cache, logits_BTV if all_logits else logits_BTV[:, 0]

    def _embedded(
        self, settings: LayerSettings, tokens_BT: Array, outer: Weights, tokens: NewTokens
    ) -> Array:
        """The residual before the first layer.

        Weights "gathered" shard D of the embedding over the chips that share the sequences. They
        gather the tokens instead: each looks up its part of D for all tokens, and gets D of its own
        tokens by an AllToAll.
        """
        first = jnp.zeros((), jnp.int32)
        if self.engine.layout.weights != "gathered":
            return embed(settings, self._core(tokens, {}, first), tokens_BT, outer, {})
        table = settings.table
        axes = table.mesh.axis_names(("fsdp",))
        rules = {row: roles for row, roles in table.rules.items() if not row.endswith(".B")}
        by_width = replace(table, rules={**rules, "residual.D": ("fsdp",)})
        of_all = replace(tokens, past_B=gather(tokens.past_B, axes, 0))
        x_BTD = embed(
            replace(settings, table=by_width),
            self._core(of_all, {}, first),
            gather(tokens_BT, axes, 0),
            outer,
            {},
        )
        return lax.all_to_all(x_BTD, axes, split_axis=0, concat_axis=2, tiled=True)

    def _core(self, tokens: NewTokens, cache: Tree, layer: Array) -> PagedAttention:
        """The attention of the layer with index `layer` in its stack."""
        return PagedAttention(
            table=self.engine.table,
            tokens=tokens,
            cache=cache,
            first_block=layer * self.n_blocks,
            dtype=dtype(self.engine.job.kv),
        )

    def _run_layers(
        self,
        settings: LayerSettings,
        x_BTD: Array,
        layers: list[Any],
        cache: list[Any],
        tokens: NewTokens,
    ) -> tuple[Array, list[Any]]:
        """Run the layers of a chip: one scan for each segment of layers that repeats a period."""
        config = self.engine.config
        cache = list(cache)
        start = 0
        for segment in stack(config):
            stacks = slice(start, start + len(segment.kinds))
            start = stacks.stop
            period = [config.groups[kind].layer for kind in segment.kinds]
            sliced, whole = self._by_slicing(stacks, layers)
            n_repeats = int(ceil_div(segment.repeats, self.engine.n_stages))

            def run_period(
                carry: tuple[Array, list[Tree]],
                xs: tuple[Array, list[Tree]],
                period: list[Any] = period,
                whole: list[Tree] = whole,
            ) -> tuple[tuple[Array, list[Tree]], None]:
                x_BTD, caches = carry
                index, weights = xs
                written = []
                for layer, layer_weights, stacked, layer_cache in zip(
                    period, weights, whole, caches, strict=True
                ):
                    core = self._core(tokens, layer_cache, index)
                    kernel = self.engine.has_expert_kernel
                    of_stack = {n: OfStack(w, index, kernel) for n, w in stacked.items()}
                    pairs = without_accumulators(layer_weights | of_stack)
                    x_BTD = run_layer(settings, layer, core, x_BTD, pairs, {})
                    written.append(core.cache)
                return (x_BTD, written), None

            if not self.by_layer:
                xs = (jnp.arange(n_repeats), sliced)
                (x_BTD, cache[stacks]), _ = lax.scan(run_period, (x_BTD, cache[stacks]), xs)
                continue
            cache[stacks] = [list(stack_caches) for stack_caches in cache[stacks]]
            run_once_traced = jax.jit(run_period)  # layers of equal shapes are traced once
            for i in range(n_repeats):
                weights = [stack_weights[i] for stack_weights in layers[stacks]]
                caches = [stack_caches[i] for stack_caches in cache[stacks]]
                (x_BTD, caches), _ = run_once_traced(
                    (x_BTD, caches), (jnp.zeros((), jnp.int32), weights)
                )
                for stack_caches, layer_cache in zip(cache[stacks], caches, strict=True):
                    stack_caches[i] = layer_cache
        return x_BTD, cache

    def _by_slicing(self, stacks: slice, layers: list[Any]) -> tuple[list[Any], list[Tree]]:
        """Weights of stacks that a scan slices, and matrices of experts, read in their stacks."""
        engine = self.engine
        if self.by_layer or not (engine.gathers_tokens or engine.has_expert_kernel):
            return layers[stacks], [{} for _ in layers[stacks]]
        dims = self.engine.contracted_dims["layers"][stacks]
        infos = self.engine.infos["layers"][stacks]
        sliced, whole = [], []
        for stack_dims, stack_infos, weights in zip(dims, infos, layers[stacks], strict=True):
            names = {n for n in weights if stack_dims[n] and "E" in stack_infos[n].weight.dims}
            sliced.append({n: w for n, w in weights.items() if n not in names})
            whole.append({n: w for n, w in weights.items() if n in names})
        return sliced, whole


def block_tokens(engine: EngineState) -> int:
    """Tokens of a block: those that the kernels of the platform read best."""
    if engine.table.mesh.platform == "tpu":
        return LANES * engine.kv.n_parts
    return math.lcm(BLOCK_TOKENS, engine.kv.n_parts)
