"""One layer of the Transformer on what a chip holds.

x_BTD is the residual, laid out over chips as the table says (`residual`); n_BTD is the input of a
block, y_BTD what it adds. Arrays that the backward pass may read carry the names of
`models.activations`, by which remat keeps or drops them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from shardwise.models import Layer, Mlp, ModelConfig, Moe
from shardwise.ops.layers import Term, layer_terms, passing
from shardwise.runtime.blocks import elementwise
from shardwise.runtime.blocks.attention import Core, attention
from shardwise.runtime.blocks.collective_matmul import Round
from shardwise.runtime.blocks.mla import latent
from shardwise.runtime.blocks.mlp import mlp
from shardwise.runtime.blocks.products import Block, Precision
from shardwise.runtime.experts.moe import moe
from shardwise.runtime.kernels import cpu
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.training.gradient_sync import UpdatePartition

Array = jax.Array
Deals = Mapping[str, UpdatePartition]
Weights = Mapping[str, tuple[Array, Array]]  # name -> (array, where its gradient is held)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What every layer of a step knows.

    Args:
        config: the model.
        table: rules on the mesh.
        precision: dtypes.
        seq: tokens of a sequence.
        capacity: room of an expert, over what experts receive that are used alike; None for as
            much as there are tokens.
        by_count: without a capacity, experts get as many rows as tokens chose them, see `ragged`.
        passes_on: whether tokens travel over `tensor` while products run, see `pieces`.
    """

    config: ModelConfig
    table: Table
    precision: Precision
    seq: int
    capacity: float | None = None
    by_count: bool = False
    passes_on: bool = False

    def block(
        self,
        name: str,
        terms: Mapping[str, Term],
        weights: Weights,
        deals: Deals,
        chips: Round | None = None,
    ) -> Block:
        """The products of one block."""
        return Block(
            table=self.table,
            terms={n: t for n, t in terms.items() if t.block == name},
            weights=weights,
            deals=deals,
            precision=self.precision,
            chips=chips,
        )

    def chips(self, layer: Layer, name: str) -> Round | None:
        """Chips that pass tokens on to a block: to a dense one, whose input it shares with none."""
        on = self.table.on
        if not self.passes_on or name not in passing(layer):
            return None
        # On a CPU all devices of a program meet in a permute: those of other stages may not come.
        if on.platform == "cpu" and on.sizes["pipe"] > 1:
            return None
        return Round(names=on.names(("tensor",)), n=on.sizes["tensor"])


def run_layer(
    stack: Stack, layer: Layer, core: Core, x_BTD: Array, weights: Weights, deals: Deals
) -> Array:
    """Residual in, residual out."""
    terms = {t.name: t for t in layer_terms(stack.config, layer, stack.seq)}

    def block(name: str) -> Block:
        return stack.block(name, terms, weights, deals, stack.chips(layer, name))

    x_BTD = checkpoint_name(x_BTD, "layer_input")
    if layer.parallel and layer.norms in ("pre", "shared"):
        y_BTD = _beside(stack, layer, core, x_BTD, block("attn"), block("core"))
        return _added(stack, x_BTD, y_BTD)
    read_BTD = x_BTD
    if layer.attention:
        y_BTD = _mixed(stack, layer, core, x_BTD, block("attn"), block("core"))
        x_BTD = checkpoint_name(_added(stack, x_BTD, y_BTD), "middle")
    if layer.ffn:
        name, read_BTD = ("attn", read_BTD) if layer.parallel else ("mlp", x_BTD)
        x_BTD = _added(stack, x_BTD, _fed(stack, layer, read_BTD, block(name)))
    return x_BTD


def _added(stack: Stack, x_BTD: Array, y_BTD: Array) -> Array:
    """The residual with what a block adds."""
    return cpu.added(x_BTD, y_BTD) if stack.table.on.platform == "cpu" else x_BTD + y_BTD


def _mixed(
    stack: Stack, layer: Layer, core: Core, x_BTD: Array, block: Block, scores: Block
) -> Array:
    """What the attention block adds to the residual."""
    n_BTD = x_BTD if layer.norms == "post" else norm(stack, block, x_BTD, "attention_norm")
    if layer.attention and layer.attention.mla:
        latent(layer.attention, layer.attention.mla, block, scores, core, n_BTD, seq=stack.seq)
    else:
        n_BTD = checkpoint_name(block.enter(n_BTD, "attn.q"), "attention_input")
        _attend(stack, layer, core, block, scores, n_BTD)
    y_BTD = checkpoint_name(_left(block, "bo"), "attention_output")
    return _after(stack, layer, block, y_BTD, "post_attention_norm")


def _fed(stack: Stack, layer: Layer, x_BTD: Array, block: Block) -> Array:
    """What the feed-forward block adds to the residual."""
    name = "attention_norm" if layer.norms == "shared" else "ffn_norm"
    n_BTD = x_BTD if layer.norms == "post" else norm(stack, block, x_BTD, name)
    if isinstance(layer.ffn, Moe):
        y_BTD = moe(layer.ffn, block, n_BTD, stack.capacity, by_count=stack.by_count)
    elif isinstance(layer.ffn, Mlp):
        n_BTD = checkpoint_name(block.enter(n_BTD, "mlp.up"), "ffn_input")
        mlp(layer.ffn, block, n_BTD)
        y_BTD = _left(block, "b_down")
    y_BTD = checkpoint_name(y_BTD, "ffn_output")
    return _after(stack, layer, block, y_BTD, "post_ffn_norm")


def _beside(
    stack: Stack, layer: Layer, core: Core, x_BTD: Array, block: Block, scores: Block
) -> Array:
    """What attention and feed-forward add that read the same residual.

    It is normalized and moved once. Norms that differ do so in their scales and biases, which
    follow on the moved tokens.
    """
    wide = elementwise.normalized(stack.config.norm, x_BTD.astype(jnp.float32))
    n_BTD = block.enter(wide.astype(x_BTD.dtype), "attn.q")
    n_BTD = checkpoint_name(n_BTD, "attention_input")
    _attend(stack, layer, core, block, scores, _scaled(stack, block, n_BTD, "attention_norm"))
    name = "attention_norm" if layer.norms == "shared" else "ffn_norm"
    if isinstance(layer.ffn, Mlp):
        mlp(layer.ffn, block, _scaled(stack, block, n_BTD, name))
    return _left(block, "bo", "b_down")


def _attend(
    stack: Stack, layer: Layer, core: Core, block: Block, scores: Block, n_BTD: Array
) -> None:
    if layer.attention:
        norm, seq = stack.config.norm, stack.seq
        attention(layer.attention, block, scores, core, n_BTD, norm=norm, seq=seq)


def _left(block: Block, *biases: str) -> Array:
    """The output of a block with biases of width D, which stand on every chip: so each chip adds
    them to its tokens after products were summed."""
    y_BTD = block.leave()
    for name in biases:
        if name in block.weights:
            with jax.named_scope(name):
                y_BTD = y_BTD + block.weight(name)
    return y_BTD


def _after(stack: Stack, layer: Layer, block: Block, y_BTD: Array, name: str) -> Array:
    """The norm behind a block, where the layer has one."""
    return norm(stack, block, y_BTD, name) if layer.norms in ("post", "both") else y_BTD


def norm(stack: Stack, block: Block, x_BTD: Array, name: str) -> Array:
    """The norm of that name, on the tokens that the chip holds of the residual."""
    with jax.named_scope(name):
        wide = elementwise.normalized(stack.config.norm, x_BTD.astype(jnp.float32))
        return _scaled(stack, block, wide, name, x_BTD.dtype)


def _scaled(stack: Stack, block: Block, wide: Array, name: str, dtype: Any = None) -> Array:
    """What is normalized with the scale of a norm, and its bias where it has one."""
    bias = block.weight(f"b_{name}") if f"b_{name}" in block.weights else None
    return elementwise.scaled(stack.config.norm, wide, block.weight(name), bias, dtype)
