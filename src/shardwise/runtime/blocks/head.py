"""The end of the model on what a chip holds: logits, and the loss of its tokens.

x_BTD is the residual after the last layer, n_BTD what the unembedding multiplies. With
`loss_chunks` the loss is that of some tokens after the other: C chunks of M tokens, each of which
has its logits, its loss and its gradients before the next begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.ops.layers import outer_terms
from shardwise.runtime.blocks.elementwise import capped
from shardwise.runtime.blocks.layers import Deals, Stack, Weights, norm
from shardwise.runtime.blocks.products import Block
from shardwise.runtime.kernels import cpu
from shardwise.strategy.layout import Form

Array = jax.Array
Given = Mapping[str, Any]  # the unembedding, and its bias where it has one, as products take them
Loss = Callable[[Given, Array, Array], Array]  # of n_BTD and targets_BT


def outer_block(stack: Stack, name: str, weights: Weights, deals: Deals) -> Block:
    """The embedding (`embed`) or the unembedding (`unembed`)."""
    return stack.block(name, {t.name: t for t in outer_terms(stack.config)}, weights, deals)


def head(stack: Stack, x_BTD: Array, weights: Weights, deals: Deals) -> Array:
    """The residual after the last layer -> logits_BTV in fp32, V over `tensor`.

    Columns that only fill up the last chip's part of the vocabulary are minus infinity.
    """
    block = outer_block(stack, "unembed", weights, deals)
    return _logits(stack, block, _entered(stack, block, x_BTD), _unembedding(block))


def loss_at_end(
    stack: Stack, form: Form, x_BTD: Array, targets_BT: Array, weights: Weights, deals: Deals
) -> Array:
    """Sum over this chip's tokens of its part of the loss: over all chips they add up to the loss.

    What is sent is sent once, whatever the number of chunks: the unembedding is gathered before the
    first, and its gradient summed over chips after the last.
    """
    block = outer_block(stack, "unembed", weights, deals)
    name = block.program("unembed").einsum.right.name
    array, holder = weights[name]
    x_BTD, holder = together(x_BTD, holder)
    block = replace(block, weights={**weights, name: (array, holder)})
    n_BTD, given = _entered(stack, block, x_BTD), _unembedding(block)

    def loss(given: Given, n_BTD: Array, targets_BT: Array) -> Array:
        return cross_entropy(stack, _logits(stack, block, n_BTD, given), targets_BT)

    if form.loss_chunks == 1:
        return loss(given, n_BTD, targets_BT)
    return in_chunks(loss, form.loss_chunks, stack.precision.reduce)(given, n_BTD, targets_BT)


@jax.custom_vjp
def together(x_BTD: Array, holder: Array) -> tuple[Array, Array]:
    """Both as they are; neither gradient goes on before the other is there. XLA would leave that of
    the unembedding until after all layers, and keep the gradients of all logits for it."""
    return x_BTD, holder


together.defvjp(
    lambda x_BTD, holder: ((x_BTD, holder), None), lambda _, found: lax.optimization_barrier(found)
)


def _entered(stack: Stack, block: Block, x_BTD: Array) -> Array:
    """The residual, normed, with all tokens that the chip's columns are multiplied with."""
    if stack.config.final_norm:
        x_BTD = norm(stack, block, x_BTD, "final_norm")
    return block.enter(x_BTD, "unembed")


def _unembedding(block: Block) -> Given:
    found = {"w": block.operand("unembed")}
    if "b_unembedding" in block.weights:
        with jax.named_scope("unembed"):
            found["b"] = block.weight("b_unembedding")
    return found


def _logits(stack: Stack, block: Block, n_BTD: Array, given: Given) -> Array:
    logits_BTV = block.times("unembed", n_BTD, given["w"])
    if "b" in given:
        with jax.named_scope("unembed"):
            logits_BTV = logits_BTV + given["b"]
    logits_BTV = capped(logits_BTV.astype(jnp.float32), stack.config.logit_softcap)
    roles = stack.table.roles("activations", ("V",)).get("V", ())
    size, vocab = logits_BTV.shape[-1], stack.config.vocab
    if size * stack.table.on.size(roles) == vocab:
        return logits_BTV
    columns = stack.table.index(roles) * size + jnp.arange(size)
    return jnp.where(columns < vocab, logits_BTV, -jnp.inf)


def cross_entropy(stack: Stack, logits_BTV: Array, targets_BT: Array) -> Array:
    """Sum over these tokens of this chip's part of the loss.

    Chips of `tensor` share the tokens; each has its columns of the logits.
    """
    table = stack.table
    roles = ("tensor",) if table.roles("activations", ("V",)) else ()
    if table.on.platform == "cpu" and table.on.size(("tensor",)) == 1:
        with jax.named_scope("loss"):
            return cpu.cross_entropy(logits_BTV, targets_BT)
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


def in_chunks(loss: Loss, n: int, wide: Any) -> Loss:
    """The same sum over tokens, `n`-th by `n`-th part of them.

    A loss is a sum, so that what flows back to it is one number: gradients are computed with each
    chunk, and no product of the forward pass runs again. Those of weights are added in `wide`.
    """

    def cut(n_BTD: Array, targets_BT: Array) -> tuple[Array, Array]:
        return n_BTD.reshape(n, 1, -1, n_BTD.shape[-1]), targets_BT.reshape(n, 1, -1)

    @jax.custom_vjp
    def total(given: Given, n_BTD: Array, targets_BT: Array) -> Array:
        def one(before: Array, chunk: tuple[Array, Array]) -> tuple[Array, None]:
            return before + loss(given, *chunk), None

        return lax.scan(one, jnp.zeros((), jnp.float32), cut(n_BTD, targets_BT))[0]

    def forward(given: Given, n_BTD: Array, targets_BT: Array) -> tuple[Array, Any]:
        differentiate = jax.value_and_grad(loss, argnums=(0, 1))

        def one(before: Any, chunk: tuple[Array, Array]) -> tuple[Any, Array]:
            found, (d_given, dn_1MD) = differentiate(given, *chunk)
            return jax.tree.map(
                lambda s, x: s + x.astype(s.dtype), before, (found, d_given)
            ), dn_1MD

        start = (jnp.zeros((), jnp.float32), jax.tree.map(lambda w: jnp.zeros_like(w, wide), given))
        (found, d_given), dn_C1MD = lax.scan(one, start, cut(n_BTD, targets_BT))
        d_given = jax.tree.map(lambda d, w: d.astype(w.dtype), d_given, given)
        return found, (d_given, dn_C1MD.reshape(n_BTD.shape))

    def backward(kept: Any, d: Array) -> tuple[Any, Array, None]:
        d_given, dn_BTD = jax.tree.map(lambda x: x * d.astype(x.dtype), kept)
        return d_given, dn_BTD, None

    total.defvjp(forward, backward)
    return total
