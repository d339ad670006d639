"""One layer of the Transformer on what a chip holds.

x_BTD is the residual, laid out over chips as the table says (`residual`); n_BTD is the input of a
block. Arrays that the backward pass may read carry the names of `models.activations`, by which
remat keeps or drops them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
from jax.ad_checkpoint import checkpoint_name

from shardwise.models import Layer, Mlp, ModelConfig, Moe
from shardwise.ops.layers import Term, layer_terms
from shardwise.runtime import elementwise
from shardwise.runtime.attention import Core, attention
from shardwise.runtime.gradients import Deal
from shardwise.runtime.mla import latent
from shardwise.runtime.mlp import mlp
from shardwise.runtime.moe import moe
from shardwise.runtime.products import Block, Precision
from shardwise.runtime.table import Table

Array = jax.Array
Deals = Mapping[str, Deal]
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
    """

    config: ModelConfig
    table: Table
    precision: Precision
    seq: int
    capacity: float | None = None

    def block(self, name: str, terms: Mapping[str, Term], weights: Weights, deals: Deals) -> Block:
        """The products of one block."""
        return Block(
            table=self.table,
            terms={n: t for n, t in terms.items() if t.block == name},
            weights=weights,
            deals=deals,
            precision=self.precision,
        )


def run_layer(
    stack: Stack, layer: Layer, core: Core, x_BTD: Array, weights: Weights, deals: Deals
) -> Array:
    """Residual in, residual out."""
    terms = {t.name: t for t in layer_terms(stack.config, layer, stack.seq)}
    x_BTD = checkpoint_name(x_BTD, "layer_input")
    if layer.attention:
        block = stack.block("attn", terms, weights, deals)
        scores = stack.block("core", terms, weights, deals)
        n_BTD = norm(stack, block, x_BTD, "attention_norm")
        if layer.attention.mla:
            y_BTD = latent(layer.attention, layer.attention.mla, block, scores, core, n_BTD)
        else:
            y_BTD = attention(layer.attention, block, scores, core, n_BTD)
        x_BTD = checkpoint_name(x_BTD + y_BTD, "middle")
    if isinstance(layer.ffn, Mlp):
        block = stack.block("mlp", terms, weights, deals)
        n_BTD = norm(stack, block, x_BTD, "ffn_norm")
        x_BTD = x_BTD + mlp(block, n_BTD)
    if isinstance(layer.ffn, Moe):
        block = stack.block("mlp", terms, weights, deals)
        n_BTD = norm(stack, block, x_BTD, "ffn_norm")
        x_BTD = x_BTD + moe(layer.ffn, block, n_BTD, stack.capacity)
    return x_BTD


def norm(stack: Stack, block: Block, x_BTD: Array, name: str) -> Array:
    """The norm of that name, on the tokens that the chip holds of the residual."""
    with jax.named_scope(name):
        return elementwise.rms_norm(x_BTD, block.weight(name), stack.config.norm.eps)
