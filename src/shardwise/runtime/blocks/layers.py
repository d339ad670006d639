"""One layer of the Transformer, on the arrays of one chip.

x_BTD is the residual, sharded by the rules for `residual`, n_BTD the normalized input of a block,
and y_BTD its output. Arrays that the backward pass may read get the checkpoint names of
`models.activations`, by which remat saves or recomputes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from shardwise.models import Layer, Mlp, ModelConfig, Moe
from shardwise.ops.layers import Term, collective_matmul_blocks, layer_terms
from shardwise.runtime.blocks import elementwise
from shardwise.runtime.blocks.attention import AttentionCore, attention
from shardwise.runtime.blocks.collective_matmul import CollectiveMatmul
from shardwise.runtime.blocks.mla import latent_attention
from shardwise.runtime.blocks.mlp import mlp
from shardwise.runtime.blocks.products import BlockProducts, Precision
from shardwise.runtime.experts.moe import moe
from shardwise.runtime.kernels import cpu
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.training.gradient_sync import UpdatePartition

Array = jax.Array
Partitions = Mapping[str, UpdatePartition]  # name of a weight -> how its copies share its update
Weights = Mapping[str, tuple[Array, Array]]  # name -> (array, accumulator of its gradient)
Blocks = Callable[[str], BlockProducts]  # name of a block -> its products, without an output yet


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSettings:
    """The model, its sharding rules and the options that all layers of a step share.

    Args:
        table: sharding rules on the mesh.
        precision: dtypes of the step.
        seq: number of tokens of a sequence.
        capacity_factor: capacity factor of experts, see `routing.capacity`.
        ragged_dispatch: whether to use `experts.ragged` if there is no capacity factor.
        is_token_BT: which of the chip's tokens are no padding. If it is given, chips with other
            experts gather all tokens, see `experts.gathered`; otherwise they exchange them.
        use_collective_matmul: whether transfers over `tensor` overlap with products, see
            `collective_matmul`.
    """

    config: ModelConfig
    table: Table
    precision: Precision
    seq: int
    capacity_factor: float | None = None
    ragged_dispatch: bool = False
    is_token_BT: Array | None = None
    use_collective_matmul: bool = False

    def block(
        self,
        name: str,
        terms: Mapping[str, Term],
        weights: Weights,
        partitions: Partitions,
        ring: CollectiveMatmul | None = None,
    ) -> BlockProducts:
        """Make the products of one block.

        Args:
            name: name of the block; it has those of the terms with this name.
            terms: name -> term of the layer.
            weights: weights of the layer.
            partitions: update partitions of the weights.
            ring: ring of collective matmuls; None for collectives before and after products.
        """
        return BlockProducts(
            table=self.table,
            terms={key: term for key, term in terms.items() if term.block == name},
            weights=weights,
            partitions=partitions,
            precision=self.precision,
            ring=ring,
        )

    def ring(self, layer: Layer, name: str) -> CollectiveMatmul | None:
        """The ring of chips for a block's collective matmuls; None for a block without them."""
        mesh = self.table.mesh
        if not self.use_collective_matmul or name not in collective_matmul_blocks(layer):
            return None
        # On CPUs a permute waits for all devices of the program, also for those of other pipeline
        # stages, which may be running a branch without it.
        if mesh.platform == "cpu" and mesh.sizes["pipe"] > 1:
            return None
        axes = mesh.axis_names(("tensor",))
        return CollectiveMatmul(axes=axes, order=mesh.ring_order(axes))


def run_layer(
    settings: LayerSettings,
    layer: Layer,
    core: AttentionCore,
    x_BTD: Array,
    weights: Weights,
    partitions: Partitions,
) -> Array:
    """Run one layer; return the residual after it.

    Args:
        settings: model, sharding rules and options that all layers share.
        core: computes attention between the projections.
        x_BTD: the residual before the layer.
        weights: weights of the layer.
        partitions: update partitions of the weights.
    """
    terms = {term.name: term for term in layer_terms(settings.config, layer, settings.seq)}

    def blocks(name: str) -> BlockProducts:
        return settings.block(name, terms, weights, partitions, settings.ring(layer, name))

    x_BTD = checkpoint_name(x_BTD, "layer_input")
    if layer.parallel and layer.norms in ("pre", "shared"):
        y_BTD = _parallel_blocks(settings, layer, core, x_BTD, blocks)
        return _add_residual(settings, x_BTD, y_BTD)
    layer_input = x_BTD
    if layer.attention:
        y_BTD = _attention_block(settings, layer, core, x_BTD, blocks)
        x_BTD = checkpoint_name(_add_residual(settings, x_BTD, y_BTD), "middle")
    if layer.ffn:
        if layer.parallel:
            y_BTD = _ffn_block(settings, layer, layer_input, blocks("attn"))
        else:
            y_BTD = _ffn_block(settings, layer, x_BTD, blocks("mlp"))
        x_BTD = _add_residual(settings, x_BTD, y_BTD)
    return x_BTD


def _add_residual(settings: LayerSettings, x_BTD: Array, y_BTD: Array) -> Array:
    """Add the output of a block to the residual."""
    with jax.named_scope("residual"):
        y_BTD = elementwise.multiply(y_BTD, settings.config.residual_scale)
        if settings.table.mesh.platform == "cpu":
            return cpu.add_residual(x_BTD, y_BTD)
        return x_BTD + y_BTD


def _attention_block(
    settings: LayerSettings, layer: Layer, core: AttentionCore, x_BTD: Array, blocks: Blocks
) -> Array:
    """Output of the attention block, in the layout of the residual."""
    block = blocks("attn")
    n_BTD = x_BTD
    if layer.norms != "post":
        n_BTD = norm(settings, block, x_BTD, "attention_norm")
    if layer.attention and layer.attention.mla:
        mla = layer.attention.mla
        latent_attention(layer.attention, mla, block, blocks("core"), core, n_BTD, seq=settings.seq)
    else:
        n_BTD = checkpoint_name(block.move_input(n_BTD, "attn.q"), "attention_input")
        _attend(settings, layer, core, block, blocks("core"), n_BTD)
    y_BTD = checkpoint_name(_output(block, "bo"), "attention_output")
    return _post_norm(settings, layer, block, y_BTD, "post_attention_norm")


def _ffn_block(settings: LayerSettings, layer: Layer, x_BTD: Array, block: BlockProducts) -> Array:
    """Output of the feed-forward block, in the layout of the residual."""
    n_BTD = x_BTD
    if layer.norms != "post":
        n_BTD = norm(settings, block, x_BTD, _ffn_norm_name(layer))
    if isinstance(layer.ffn, Moe):
        y_BTD = moe(
            layer.ffn,
            block,
            n_BTD,
            settings.capacity_factor,
            ragged_dispatch=settings.ragged_dispatch,
            is_token_BT=settings.is_token_BT,
        )
    elif isinstance(layer.ffn, Mlp):
        n_BTD = checkpoint_name(block.move_input(n_BTD, "mlp.up"), "ffn_input")
        mlp(layer.ffn, block, n_BTD)
        y_BTD = _output(block, "b_down")
    y_BTD = checkpoint_name(y_BTD, "ffn_output")
    return _post_norm(settings, layer, block, y_BTD, "post_ffn_norm")


def _parallel_blocks(
    settings: LayerSettings, layer: Layer, core: AttentionCore, x_BTD: Array, blocks: Blocks
) -> Array:
    """Sum of the outputs of attention and feed-forward blocks that read the same residual.

    The residual is normalized and gathered once. If the blocks have different norms, these differ
    in their scales and biases only, which are applied to the gathered tokens.
    """
    block = blocks("attn")
    n_BTD = block.move_input(_normalized(settings, x_BTD).astype(x_BTD.dtype), "attn.q")
    n_BTD = checkpoint_name(n_BTD, "attention_input")
    roles = block.program("attn.q").local.left.dims[-1].axes
    attention_input = _scale_and_shift(settings, block, n_BTD, "attention_norm", roles)
    _attend(settings, layer, core, block, blocks("core"), attention_input)
    if isinstance(layer.ffn, Mlp):
        ffn_input = _scale_and_shift(settings, block, n_BTD, _ffn_norm_name(layer), roles)
        mlp(layer.ffn, block, ffn_input)
    return _output(block, "bo", "b_down")


def _ffn_norm_name(layer: Layer) -> str:
    """Name of the norm before the feed-forward block, which parallel blocks may share."""
    return "attention_norm" if layer.norms == "shared" else "ffn_norm"


def _attend(
    settings: LayerSettings,
    layer: Layer,
    core: AttentionCore,
    block: BlockProducts,
    core_block: BlockProducts,
    n_BTD: Array,
) -> None:
    """Add the attention of n_BTD to the block's output."""
    if layer.attention:
        norm_kind = settings.config.norm
        attention(layer.attention, block, core_block, core, n_BTD, norm=norm_kind, seq=settings.seq)


def _output(block: BlockProducts, *biases: str) -> Array:
    """Output of a block plus its biases of width D.

    The biases are replicated, so each chip adds its part to its own tokens after the reduction.
    """
    y_BTD = block.output()
    for name in biases:
        if name in block.weights:
            with jax.named_scope(name):
                table = block.table
                y_BTD = y_BTD + table.slice(block.weight(name), table.width_roles, 0)
    return y_BTD


def _post_norm(
    settings: LayerSettings, layer: Layer, block: BlockProducts, y_BTD: Array, name: str
) -> Array:
    """Apply the norm after a block, if the layer has one."""
    if layer.norms not in ("post", "both"):
        return y_BTD
    return norm(settings, block, y_BTD, name)


def norm(settings: LayerSettings, block: BlockProducts, x_BTD: Array, name: str) -> Array:
    """Apply the norm with the weights of `name` to the chip's tokens of the residual."""
    roles = settings.table.width_roles

    def apply(x_BTD: Array) -> Array:
        normalized = _normalized(settings, x_BTD)
        return _scale_and_shift(settings, block, normalized, name, roles, x_BTD.dtype)

    with jax.named_scope(name):
        return cpu.recomputed(settings.table.mesh, apply)(x_BTD)


def _normalized(settings: LayerSettings, x_BTD: Array) -> Array:
    """The residual divided by the root mean square of each token, in fp32."""
    table = settings.table
    return elementwise.normalize(
        settings.config.norm,
        x_BTD.astype(jnp.float32),
        n_chips=table.mesh.size(table.width_roles),
        all_reduce=lambda x: table.sum(x, table.width_roles),
    )


def _scale_and_shift(
    settings: LayerSettings,
    block: BlockProducts,
    normalized: Array,
    name: str,
    roles: tuple[str, ...],
    dtype: Any = None,
) -> Array:
    """Apply the scale of a norm (the weight `name`) and its bias, if it has them.

    Args:
        roles: those that shard the normalized dim.
    """

    def part(name: str) -> Array | None:
        return settings.table.slice(block.weight(name), roles, 0) if name in block.weights else None

    norm_kind = settings.config.norm
    return elementwise.scale_and_shift(norm_kind, normalized, part(name), part(f"b_{name}"), dtype)
