"""One layer of the Transformer on what a chip holds.

x_BTD is the residual, laid out over chips as the table says (`residual`). Inside a block n_BTD is
its input with all tokens of the chip's sequences, q_BTNH k_BTKH v_BTKH are the chip's heads, h_BTF
its columns of the feed-forward. Arrays that the backward pass may read carry the names of
`models.activations`, by which remat keeps or drops them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from shardwise.models import Attention, Layer, Mlp, ModelConfig
from shardwise.ops.layers import Term, layer_terms
from shardwise.runtime import elementwise, kernels
from shardwise.runtime.gradients import Deal
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
    """

    config: ModelConfig
    table: Table
    precision: Precision
    seq: int

    def block(self, name: str, terms: Mapping[str, Term], weights: Weights, deals: Deals) -> Block:
        """The products of one block."""
        return Block(
            table=self.table,
            terms={n: t for n, t in terms.items() if t.block == name},
            weights=weights,
            deals=deals,
            precision=self.precision,
        )


def run_layer(stack: Stack, layer: Layer, x_BTD: Array, weights: Weights, deals: Deals) -> Array:
    """Residual in, residual out."""
    terms = {t.name: t for t in layer_terms(stack.config, layer, stack.seq)}
    x_BTD = checkpoint_name(x_BTD, "layer_input")
    if layer.attention:
        block = stack.block("attn", terms, weights, deals)
        core = stack.block("core", terms, weights, deals)
        n_BTD = norm(stack, block, x_BTD, "attention_norm")
        y_BTD = _attention(stack, layer.attention, block, core, n_BTD)
        x_BTD = checkpoint_name(x_BTD + y_BTD, "middle")
    if isinstance(layer.ffn, Mlp):
        block = stack.block("mlp", terms, weights, deals)
        n_BTD = norm(stack, block, x_BTD, "ffn_norm")
        x_BTD = x_BTD + _mlp(block, n_BTD)
    return x_BTD


def norm(stack: Stack, block: Block, x_BTD: Array, name: str) -> Array:
    """The norm of that name, on the tokens that the chip holds of the residual."""
    with jax.named_scope(name):
        return elementwise.rms_norm(x_BTD, block.weight(name), stack.config.norm.eps)


def _attention(stack: Stack, a: Attention, block: Block, core: Block, n_BTD: Array) -> Array:
    n_BTD = checkpoint_name(block.enter(n_BTD, "attn.q"), "attention_input")
    q_BTNH = block.product("attn.q", n_BTD)
    k_BTKH = block.product("attn.k", n_BTD)
    v_BTKH = checkpoint_name(block.product("attn.v", n_BTD), "v")
    with jax.named_scope("rope"):
        positions = jnp.arange(n_BTD.shape[1])[None]
        turns = elementwise.frequencies(a.rotary, a.d_head)
        q_BTNH = checkpoint_name(elementwise.rotate(q_BTNH, positions, turns), "q")
        k_BTKH = checkpoint_name(elementwise.rotate(k_BTKH, positions, turns), "k")
    k_BSKH = core.enter(k_BTKH, "attn.scores", right=True)
    v_BSKH = core.enter(v_BTKH, "attn.values", right=True)
    with jax.named_scope("attn.core"):
        platform = stack.table.on.platform
        o_BTNH = kernels.attend(q_BTNH, k_BSKH, v_BSKH, a, platform, a.score_scale)
        o_BTNH = checkpoint_name(o_BTNH, "attended")
    block.add("attn.out", o_BTNH)
    return block.leave()


def _mlp(block: Block, n_BTD: Array) -> Array:
    n_BTD = checkpoint_name(block.enter(n_BTD, "mlp.up"), "ffn_input")
    up_BTF = checkpoint_name(block.product("mlp.up", n_BTD), "up")
    gate_BTF = checkpoint_name(block.product("mlp.gate", n_BTD), "gate")
    h_BTF = jax.nn.silu(gate_BTF) * up_BTF
    block.add("mlp.down", checkpoint_name(h_BTF, "hidden"))
    return block.leave()
