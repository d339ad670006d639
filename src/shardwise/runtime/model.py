"""The whole model on what a chip holds: embedding, layers in a scan, and the loss at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.estimate.activations_held import runs_again
from shardwise.models import Layer
from shardwise.models.activations import layer_activations
from shardwise.ops.layers import outer_terms
from shardwise.runtime.core import sequences
from shardwise.runtime.layers import Deals, Stack, Weights, norm, run_layer
from shardwise.runtime.products import Block
from shardwise.runtime.weights import Tree
from shardwise.strategy.layout import Form

Array = jax.Array


def paired(weights: Tree, holders: Tree) -> Tree:
    """Every array with the place of its gradient."""
    return jax.tree.map(lambda w, g: (w, g), weights, holders)


def outer_block(stack: Stack, name: str, weights: Weights, deals: Deals) -> Block:
    """The embedding (`embed`) or the unembedding (`unembed`)."""
    return stack.block(name, {t.name: t for t in outer_terms(stack.config)}, weights, deals)


def embed(stack: Stack, tokens_BT: Array, weights: Weights, deals: Deals) -> Array:
    """Rows of the embedding; each chip looks up what its part of the vocabulary has."""
    block = outer_block(stack, "embed", weights, deals)
    program = block.program("embed")
    with jax.named_scope("embed"):
        moves = tuple(m for m in program.before if m.before.name == "embedding")
        rows_VD = block.weight("embedding", moves)
        x_BTD = rows_VD[tokens_BT]
        if stack.table.roles("activations", ("V",)):
            local = tokens_BT - stack.table.index(("tensor",)) * rows_VD.shape[0]
            here = (local >= 0) & (local < rows_VD.shape[0])
            x_BTD = rows_VD[jnp.where(here, local, 0)] * here[..., None].astype(rows_VD.dtype)
        for move in program.after:
            x_BTD = stack.table.apply(move, x_BTD)
    return x_BTD


def run_layers(
    stack: Stack, form: Form, x_BTD: Array, layers: Sequence[Tree], deals: Sequence[Deals]
) -> Array:
    """All layers, kind by kind; each keeps for its backward pass what remat leaves."""
    core = sequences(stack.config, form, stack.table, stack.seq)
    for group, stacked, dealt in zip(stack.config.groups, layers, deals, strict=True):

        def body(
            x_BTD: Array, weights: Weights, layer: Layer = group.layer, deals: Deals = dealt
        ) -> tuple[Array, None]:
            return run_layer(stack, layer, core, x_BTD, weights, deals), None

        rows = layer_activations(stack.config, group.layer)
        kept = [row.name for row in rows if not runs_again(form, row.name, group.layer)]
        policy = jax.checkpoint_policies.save_only_these_names(*kept)
        x_BTD, _ = lax.scan(jax.checkpoint(body, policy=policy), x_BTD, stacked)
    return x_BTD


def head(stack: Stack, x_BTD: Array, weights: Weights, deals: Deals) -> Array:
    """The residual after the last layer -> logits_BTV in fp32, V over `tensor`."""
    block = outer_block(stack, "unembed", weights, deals)
    if stack.config.final_norm:
        x_BTD = norm(stack, block, x_BTD, "final_norm")
    n_BTD = block.enter(x_BTD, "unembed")
    return block.product("unembed", n_BTD).astype(jnp.float32)


def cross_entropy(stack: Stack, logits_BTV: Array, targets_BT: Array) -> Array:
    """Sum over this chip's tokens of its part of the loss: over all chips they add up to the loss.

    Chips of `tensor` share the tokens; each has its columns of the logits.
    """
    table = stack.table
    roles = ("tensor",) if table.roles("activations", ("V",)) else ()
    with jax.named_scope("loss"):
        highest = lax.stop_gradient(logits_BTV).max(axis=-1)
        if roles:
            highest = lax.pmax(highest, table.on.names(roles))
        total = table.sum(jnp.exp(logits_BTV - highest[..., None]).sum(axis=-1), roles)
        local = targets_BT - table.index(roles) * logits_BTV.shape[-1]
        columns = jnp.arange(logits_BTV.shape[-1])
        own = jnp.where(columns == local[..., None], logits_BTV, 0.0).sum(axis=-1)
        # Chips that compute the same tokens share what does not depend on their columns.
        again = table.on.size(("tensor",))
        if not roles:
            own = own / again
        return ((jnp.log(total) + highest) / again - own).sum()


def loss_of(stack: Stack, form: Form, deals: Tree) -> Callable[[Tree, Tree, Array, Array], Array]:
    """`(weights, holders, tokens_BT, targets_BT) -> this chip's part of the summed loss`."""

    def loss(weights: Tree, holders: Tree, tokens_BT: Array, targets_BT: Array) -> Array:
        both = paired(weights, holders)
        outer = both["outer"], deals["outer"]
        x_BTD = embed(stack, tokens_BT, *outer)
        x_BTD = run_layers(stack, form, x_BTD, both["layers"], deals["layers"])
        return cross_entropy(stack, head(stack, x_BTD, *outer), targets_BT)

    return loss
