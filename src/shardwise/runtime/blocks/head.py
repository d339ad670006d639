"""The head of the model on one chip: the logits and the loss of its tokens.

x_BTD is the residual after the last layer, n_BTD the input of the unembedding. With `loss_chunks`
the tokens are split into C chunks of M tokens, and the logits, loss and gradients of a chunk are
computed before those of the next, so that only one chunk of logits is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.ops.layers import outer_terms
from shardwise.runtime.blocks.elementwise import multiply, softcap
from shardwise.runtime.blocks.layers import LayerSettings, Partitions, Weights, norm
from shardwise.runtime.blocks.products import BlockProducts
from shardwise.runtime.kernels import cpu
from shardwise.strategy.layout import Form

Array = jax.Array
Unembedding = Mapping[str, Any]  # weight "w" as `multiply` takes it; bias "b" if the model has one
Loss = Callable[[Unembedding, Array, Array], Array]  # (unembedding, n_BTD, targets_BT) -> loss


def outer_block(
    settings: LayerSettings, name: str, weights: Weights, partitions: Partitions
) -> BlockProducts:
    """Products of the embedding (`embed`) or the unembedding (`unembed`)."""
    terms = {term.name: term for term in outer_terms(settings.config)}
    return settings.block(name, terms, weights, partitions)


def head(settings: LayerSettings, x_BTD: Array, weights: Weights, partitions: Partitions) -> Array:
    """Compute logits_BTV in fp32 from the residual after the last layer; `tensor` shards V.

    Columns that pad the vocabulary to a multiple of the chips are minus infinity.
    """
    block = outer_block(settings, "unembed", weights, partitions)
    return _logits(settings, block, _head_input(settings, block, x_BTD), _unembedding(block))


def head_loss(
    settings: LayerSettings,
    form: Form,
    x_BTD: Array,
    targets_BT: Array,
    weights: Weights,
    partitions: Partitions,
) -> Array:
    """This chip's part of the summed loss of its tokens; the sum over all chips is the loss.

    Every collective runs once, independent of the number of chunks: the unembedding is gathered
    before the first chunk, and its gradient is reduced after the last.
    """
    block = outer_block(settings, "unembed", weights, partitions)
    name = block.program("unembed").einsum.right.name
    array, accumulator = weights[name]
    x_BTD, accumulator = join_gradients(x_BTD, accumulator)
    block = replace(block, weights={**weights, name: (array, accumulator)})
    n_BTD = _head_input(settings, block, x_BTD)
    unembedding = _unembedding(block)

    def loss(unembedding: Unembedding, n_BTD: Array, targets_BT: Array) -> Array:
        return cross_entropy(settings, _logits(settings, block, n_BTD, unembedding), targets_BT)

    if form.loss_chunks == 1:
        return loss(unembedding, n_BTD, targets_BT)
    in_chunks = chunked_loss(loss, form.loss_chunks, settings.precision.reduce)
    return in_chunks(unembedding, n_BTD, targets_BT)


@jax.custom_vjp
def join_gradients(x_BTD: Array, accumulator: Array) -> tuple[Array, Array]:
    """Return both arguments unchanged; both of their gradients are computed before one is used.

    Otherwise XLA would compute the unembedding's gradient after the backward pass of all layers,
    and keep the gradients of all logits until then.
    """
    return x_BTD, accumulator


join_gradients.defvjp(
    lambda x_BTD, accumulator: ((x_BTD, accumulator), None),
    lambda _, gradients: lax.optimization_barrier(gradients),
)


def _head_input(settings: LayerSettings, block: BlockProducts, x_BTD: Array) -> Array:
    """Normalize the residual, and gather the tokens that this chip's columns are multiplied by."""
    if settings.config.final_norm:
        x_BTD = norm(settings, block, x_BTD, "final_norm")
    return block.move_input(x_BTD, "unembed")


def _unembedding(block: BlockProducts) -> Unembedding:
    """The unembedding, gathered for this chip's product."""
    unembedding = {"w": block.operand("unembed")}
    if "b_unembedding" in block.weights:
        with jax.named_scope("unembed"):
            unembedding["b"] = block.weight("b_unembedding")
    return unembedding


def _logits(
    settings: LayerSettings, block: BlockProducts, n_BTD: Array, unembedding: Unembedding
) -> Array:
    """This chip's columns of the logits in fp32; columns of padding are minus infinity."""
    logits_BTV = block.reduced("unembed", block.multiply("unembed", n_BTD, unembedding["w"]))
    if "b" in unembedding:
        with jax.named_scope("unembed"):
            logits_BTV = logits_BTV + unembedding["b"]
    logits_BTV = multiply(logits_BTV.astype(jnp.float32), settings.config.logit_scale)
    logits_BTV = softcap(logits_BTV, settings.config.logit_softcap)
    roles = settings.table.roles("activations", ("V",)).get("V", ())
    n_columns = logits_BTV.shape[-1]
    vocab = settings.config.vocab
    if n_columns * settings.table.mesh.size(roles) == vocab:
        return logits_BTV
    columns = settings.table.index(roles) * n_columns + jnp.arange(n_columns)
    return jnp.where(columns < vocab, logits_BTV, -jnp.inf)


def cross_entropy(settings: LayerSettings, logits_BTV: Array, targets_BT: Array) -> Array:
    """This chip's part of the summed loss of its tokens.

    The chips of `tensor` have the same tokens, and different columns of the logits.
    """
    table = settings.table
    n_tensor = table.mesh.size(("tensor",))
    roles = ("tensor",) if table.roles("activations", ("V",)) else ()
    if table.mesh.platform == "cpu" and n_tensor == 1:
        with jax.named_scope("loss"):
            return cpu.cross_entropy(logits_BTV, targets_BT)
    with jax.named_scope("loss"):
        highest = lax.stop_gradient(logits_BTV).max(axis=-1)
        if roles:
            highest = lax.pmax(highest, table.mesh.axis_names(roles))
        total = table.sum(jnp.exp(logits_BTV - highest[..., None]).sum(axis=-1), roles)
        local_targets = targets_BT - table.index(roles) * logits_BTV.shape[-1]
        columns = jnp.arange(logits_BTV.shape[-1])
        is_target = columns == local_targets[..., None]
        target_logits = jnp.where(is_target, logits_BTV, 0.0).sum(axis=-1)
        # The chips of `tensor` compute the same logsumexp, so each adds 1 / n_tensor of it.
        if not roles:
            target_logits = target_logits / n_tensor
        return ((jnp.log(total) + highest) / n_tensor - target_logits).sum()


def chunked_loss(loss: Loss, n_chunks: int, wide: Any) -> Loss:
    """Make a function like `loss` that computes it for one chunk of the tokens after the other.

    The gradients of a chunk are computed together with its loss, so no product of the forward pass
    runs twice. The backward pass only multiplies them by the cotangent, which is one number.

    Args:
        loss: function that returns the summed loss of some tokens.
        wide: dtype in which gradients of the unembedding are summed over chunks.
    """

    def split(n_BTD: Array, targets_BT: Array) -> tuple[Array, Array]:
        n_C1MD = n_BTD.reshape(n_chunks, 1, -1, n_BTD.shape[-1])
        return n_C1MD, targets_BT.reshape(n_chunks, 1, -1)

    @jax.custom_vjp
    def total(unembedding: Unembedding, n_BTD: Array, targets_BT: Array) -> Array:
        def add_chunk(partial_sum: Array, chunk: tuple[Array, Array]) -> tuple[Array, None]:
            return partial_sum + loss(unembedding, *chunk), None

        return lax.scan(add_chunk, jnp.zeros((), jnp.float32), split(n_BTD, targets_BT))[0]

    def forward(unembedding: Unembedding, n_BTD: Array, targets_BT: Array) -> tuple[Array, Any]:
        differentiate = jax.value_and_grad(loss, argnums=(0, 1))

        def add_chunk(partial_sums: Any, chunk: tuple[Array, Array]) -> tuple[Any, Array]:
            chunk_loss, (d_unembedding, dn_1MD) = differentiate(unembedding, *chunk)
            addends = (chunk_loss, d_unembedding)
            return jax.tree.map(lambda s, x: s + x.astype(s.dtype), partial_sums, addends), dn_1MD

        zeros = jax.tree.map(lambda w: jnp.zeros_like(w, wide), unembedding)
        start = (jnp.zeros((), jnp.float32), zeros)
        sums, dn_C1MD = lax.scan(add_chunk, start, split(n_BTD, targets_BT))
        total_loss, d_unembedding = sums
        d_unembedding = jax.tree.map(lambda d, w: d.astype(w.dtype), d_unembedding, unembedding)
        return total_loss, (d_unembedding, dn_C1MD.reshape(n_BTD.shape))

    def backward(gradients: Any, ct: Array) -> tuple[Any, Array, None]:
        d_unembedding, dn_BTD = jax.tree.map(lambda x: x * ct.astype(x.dtype), gradients)
        return d_unembedding, dn_BTD, None

    total.defvjp(forward, backward)
    return total
