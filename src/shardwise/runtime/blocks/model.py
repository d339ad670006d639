"""The whole model on what a chip holds: embedding, layers in a scan, and the loss (`head`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import Offloadable

from shardwise.estimate.training.memory.activations import is_offloaded, is_recomputed
from shardwise.models import Layer, Segment
from shardwise.models import stack as model_stack
from shardwise.models.activations import layer_activations
from shardwise.ops.einsum import Array as Named
from shardwise.ops.einsum import Dim
from shardwise.ops.sharded import Move
from shardwise.runtime.blocks.attention import Core
from shardwise.runtime.blocks.attention_core import sequences
from shardwise.runtime.blocks.head import loss_at_end, outer_block
from shardwise.runtime.blocks.layers import Deals, Stack, Weights, run_layer
from shardwise.runtime.blocks.products import Block
from shardwise.runtime.kernels import cpu, cudnn
from shardwise.runtime.kernels.attention import SAVED
from shardwise.runtime.training import host_offload
from shardwise.runtime.weights.descriptions import Tree
from shardwise.strategy.layout import Form

Array = jax.Array
Run = Callable[[Array, Weights], Array]
Period = Callable[[Array, Sequence[Weights]], Array]

AWAY = Offloadable(src="device", dst=host_offload.KIND)


def paired(weights: Tree, holders: Tree | None) -> Tree:
    """Every array with the place of its gradient, None where weights have gradients themselves."""
    if holders is None:
        return jax.tree.map(lambda w: (w, None), weights)
    return jax.tree.map(lambda w, g: (w, g), weights, holders)


def embed(stack: Stack, core: Core, tokens_BT: Array, weights: Weights, deals: Deals) -> Array:
    """Rows of the embedding, and of learned positions; each chip looks up what its part of the
    vocabulary has."""
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
        if stack.config.scaled_embeddings:
            x_BTD = x_BTD * jnp.asarray(stack.config.d_model**0.5, x_BTD.dtype)
    if "position" in weights:
        with jax.named_scope("position"):
            x_BTD = x_BTD + _positions(stack, block, core.positions(tokens_BT.shape[1]))
    return x_BTD


def _positions(stack: Stack, block: Block, at_BT: Array) -> Array:
    """Learned positions of the tokens that the chip holds of the residual, of `at_BT`."""
    table = stack.table
    here = Named("position", (Dim("P"), Dim("D", table.roles("weights", ("P", "D")).get("D", ()))))
    whole = Move("all_gather", here.axes, here, here.with_axes({}))
    rows_PD = block.weight("position", (whole,) if here.axes else ())
    held = table.roles("activations", ("T",)).get("T", ())
    among = [r for r in table.roles("residual", ("T",)).get("T", ()) if r not in held]
    return rows_PD[table.slice(at_BT, among, 1)]


def run_layers(
    stack: Stack,
    form: Form,
    core: Core,
    x_BTD: Array,
    layers: Sequence[Tree],
    deals: Sequence[Deals],
) -> Array:
    """All layers, a scan for each run of a period. `layers` and `deals` are those of the places
    (`weights.places`)."""
    at = 0
    for segment in model_stack(stack.config):
        held = slice(at, at + len(segment.kinds))
        at = held.stop
        run = one_period(stack, form, core, segment, deals[held])

        def step(x_BTD: Array, weights: Sequence[Weights], run: Period = run) -> tuple[Array, None]:
            return run(x_BTD, weights), None

        unroll = cpu.unroll(stack.table.on.platform, segment.repeats, x_BTD.size)
        x_BTD, _ = lax.scan(step, x_BTD, tuple(layers[held]), unroll=unroll)
    return x_BTD


def one_period(
    stack: Stack, form: Form, core: Core, segment: Segment, deals: Sequence[Deals]
) -> Period:
    """The layers of a segment's period, one after the other."""
    runs = [
        _checkpointed(stack, form, core, stack.config.groups[kind].layer, dealt)
        for kind, dealt in zip(segment.kinds, deals, strict=True)
    ]

    def period(x_BTD: Array, weights: Sequence[Weights]) -> Array:
        for run, one in zip(runs, weights, strict=True):
            x_BTD = run(x_BTD, one)
        return x_BTD

    return period


def _checkpointed(stack: Stack, form: Form, core: Core, layer: Layer, deals: Deals) -> Run:
    """A layer that keeps for its backward pass what remat leaves, some of it in host memory."""

    def run(x_BTD: Array, weights: Weights) -> Array:
        return run_layer(stack, layer, core, x_BTD, weights, deals)

    rows = layer_activations(stack.config, layer)
    kept = {row.name for row in rows if not is_recomputed(form, row.name, layer)}
    away = {name for name in kept if is_offloaded(form, name)}
    if len(kept) == len(rows) and not away and cpu.keeps(stack.table.on):
        return run

    def policy(primitive: Any, *_: Any, **given: Any) -> Any:
        name = given["name"] if primitive.name == "name" else None
        if cudnn.kept(primitive):
            name = SAVED
        return AWAY if name in away else name in kept

    return jax.checkpoint(run, policy=policy)


def loss_of(
    stack: Stack, form: Form, deals: Tree
) -> Callable[[Tree, Tree | None, Array, Array], Array]:
    """`(weights, holders, tokens_BT, targets_BT) -> this chip's part of the summed loss`."""

    def loss(weights: Tree, holders: Tree | None, tokens_BT: Array, targets_BT: Array) -> Array:
        both = paired(weights, holders)
        outer = both["outer"], deals["outer"]
        core = sequences(stack.config, form, stack.table, stack.seq)
        x_BTD = embed(stack, core, tokens_BT, *outer)
        x_BTD = run_layers(stack, form, core, x_BTD, both["layers"], deals["layers"])
        return loss_at_end(stack, form, x_BTD, targets_BT, *outer)

    return loss
