"""Layers dealt out to stages: the events of a schedule, in lockstep, inside one program.

Every stage has the same arrays: its chunks of layers, and both ends of the model, of which only the
first stage uses the embedding and only the last the head. In each tick a stage does one event of
its list or none (`ticks`); then all pass results on. Between its forward and its backward event a
chunk keeps what the layers' own backward pass reads, as remat leaves it.

x_BTD is the residual of a microbatch on a chip. Parts of it are sent: ranks of `tensor` that have
the same residual send a part each (arXiv 2104.04473, section 4.1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.models import stack as model_stack
from shardwise.runtime.blocks.attention_core import sequence_attention
from shardwise.runtime.blocks.head import head_loss
from shardwise.runtime.blocks.layers import Stack
from shardwise.runtime.blocks.model import embed, period_function, with_holders
from shardwise.runtime.layout.sharding import gather, scatter
from shardwise.runtime.layout.stages import StageLayers
from shardwise.runtime.training.ticks import Ticks
from shardwise.runtime.weights.descriptions import Tree
from shardwise.strategy.layout import Form

Array = jax.Array
Row = dict[str, Array]


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The gradients of one step under a schedule.

    Args:
        stack: what every layer knows.
        form: words of the layout.
        layers: how they lie on stages.
        ticks: what each stage does when.
        deals: how copies of each weight share its update.
    """

    stack: Stack
    form: Form
    layers: StageLayers
    ticks: Ticks
    deals: Tree

    def gradients(self, weights: Tree, holders: Tree, batch: Tree) -> tuple[Array, Tree]:
        """(this chip's part of the summed loss, gradients), of tokens and targets [m, B, T]."""
        run = _Run(self, self._by_chunk(weights), self._by_chunk(holders), batch)
        carry = run.start()
        rows = {name: jnp.asarray(table) for name, table in self.ticks.rows.items()}
        carry, _ = lax.scan(lambda c, row: (run.tick(c, self._own(row)), None), carry, rows)
        found = carry["gradients"]
        layers = self.layers.merge_chunks(found["layers"])
        return carry["loss"], {"layers": layers, "outer": found["outer"]}

    def _by_chunk(self, tree: Tree) -> Tree:
        return {"layers": self.layers.split_chunks(tree["layers"]), "outer": tree["outer"]}

    def _own(self, row: Row) -> Row:
        return {name: numbers[self.stage] for name, numbers in row.items()}

    @property
    def stage(self) -> Any:
        """Index of this chip's stage."""
        return self.stack.table.index(("pipe",))


class _Run:
    """One step, while it is traced."""

    def __init__(self, plan: Pipeline, weights: Tree, holders: Tree, batch: Tree) -> None:
        self.plan, self.weights, self.holders, self.batch = plan, weights, holders, batch
        self.stack = plan.stack
        self.core = sequence_attention(
            plan.stack.config, plan.form, plan.stack.table, plan.stack.seq
        )
        self.pull: Any = None  # how the layers' backward pass is rebuilt from what is kept

    def start(self) -> Tree:
        """Places of everything that waits, empty."""
        kept, part = jax.eval_shape(lambda: self._layers(jnp.int32(0), self._embedded(0)))
        n_kept, n_inputs = self.plan.ticks.n_kept, self.plan.ticks.n_inputs + 1
        return {
            "kept": [jnp.zeros((n_kept, *x.shape), x.dtype) for x in kept],
            "inputs": jnp.zeros((n_inputs, *part.shape), part.dtype),
            "gradients": self.holders,
            "loss": jnp.zeros((), jnp.float32),
        }

    def tick(self, carry: Tree, row: Row) -> Tree:
        """One event of this chip's stage, and what it gets from others."""
        events: list[Callable[[Tree], tuple[Tree, Array]]] = [
            lambda c: (c, jnp.zeros_like(c["inputs"][0])),
            lambda c: self._forward(c, row),
            lambda c: self._backward(c, row),
        ]
        if self.plan.ticks.splits:
            events.append(lambda c: (self._weights(c, row), jnp.zeros_like(c["inputs"][0])))
        with jax.named_scope("stage"):
            carry, part = lax.switch(row["kind"], events, carry)
        return carry | {"inputs": self._passed_on(carry["inputs"], part, row)}

    def _passed_on(self, inputs: Array, part: Array, row: Row) -> Array:
        table, ticks = self.stack.table, self.plan.ticks
        n = table.mesh.sizes["pipe"]
        (axis,) = table.mesh.axis_names(("pipe",))
        with jax.named_scope("stage.send"):
            inputs = inputs.at[row["stays"]].set(part)
            for moves, by, place in ((ticks.up, 1, "from_below"), (ticks.down, -1, "from_above")):
                if moves:
                    pairs = [(s, (s + by) % n) for s in range(n)]
                    inputs = inputs.at[row[place]].set(lax.ppermute(part, axis, pairs))
        return inputs

    def _forward(self, carry: Tree, row: Row) -> tuple[Tree, Array]:
        with jax.named_scope("stage.embed"):
            x_BTD = lax.cond(
                row["first"],
                lambda: self._embedded(row["microbatch"]),
                lambda: self._whole(carry["inputs"][row["reads"]]),
            )
        kept, part = self._layers(row["chunk"], x_BTD)
        at = row["kept"]
        held = [
            lax.dynamic_update_index_in_dim(places, x, at, 0)
            for places, x in zip(carry["kept"], kept, strict=True)
        ]
        return carry | {"kept": held}, part

    def _layers(self, chunk: Any, x_BTD: Array) -> tuple[list[Array], Array]:
        """Through a chunk: what its backward pass needs beside the weights, and what is sent on."""
        own = self._chunk(chunk)

        def run(holders: Tree, x_BTD: Array) -> Array:
            return self._run_chunk(own, holders, x_BTD)

        y_BTD, pull = jax.vjp(run, own["holders"], x_BTD)
        leaves, tree = jax.tree.flatten(pull)
        known = jax.tree.leaves(own)
        # Weights are the same for every microbatch: they are not kept once for each.
        found = [next((i for i, k in enumerate(known) if k is leaf), None) for leaf in leaves]
        self.pull = (tree, found)
        kept = [leaf for leaf, i in zip(leaves, found, strict=True) if i is None]
        return kept, self._part(y_BTD)

    def _run_chunk(self, own: Tree, holders: Tree, x_BTD: Array) -> Array:
        (segment,) = model_stack(self.stack.config)
        deals = self.plan.deals["layers"]
        period = period_function(self.stack, self.plan.form, self.core, segment, deals)

        def step(x_BTD: Array, one: Tree) -> tuple[Array, None]:
            weights = [
                with_holders(*pair) for pair in zip(one["weights"], one["holders"], strict=True)
            ]
            y_BTD = period(x_BTD, weights)
            # Places that stay empty, where layers do not divide, pass their input on.
            return jnp.where(one["used"], y_BTD, x_BTD), None

        return lax.scan(step, x_BTD, own | {"holders": holders})[0]

    def _chunk(self, chunk: Any) -> Tree:
        """Weights of one chunk of this stage's, with the places of their gradients."""
        layers = self.plan.layers
        used = jnp.asarray(layers.is_filled)[self.plan.stage]
        parts = {
            "weights": self.weights["layers"],
            "holders": self.holders["layers"],
            "used": used,
        }
        return jax.tree.map(lambda x: _at(x, chunk), parts)

    def _backward(self, carry: Tree, row: Row) -> tuple[Tree, Array]:
        at, outer = row["reads"], carry["gradients"]["outer"]
        with jax.named_scope("stage.head"):
            loss, outer, ct_BTD = lax.cond(
                row["last"],
                lambda: self._head(carry["loss"], outer, row, self._whole(carry["inputs"][at])),
                lambda: (carry["loss"], outer, self._whole_gradient(carry["inputs"][at])),
            )
        found, before_BTD = self._pulled(carry["kept"], row, ct_BTD)
        with jax.named_scope("stage.embed"):
            outer = lax.cond(
                row["first"], lambda: self._embedded_back(outer, row, before_BTD), lambda: outer
            )
        if self.plan.ticks.splits:  # its event for the weights reads what was given here
            inputs = carry["inputs"].at[at].set(self._part_of_gradient(ct_BTD))
            carry = carry | {"inputs": inputs}
            layers = carry["gradients"]["layers"]
        else:
            layers = self._added(carry["gradients"]["layers"], row["chunk"], found)
        carry = carry | {"loss": loss, "gradients": {"layers": layers, "outer": outer}}
        return carry, self._part_of_gradient(before_BTD)

    def _weights(self, carry: Tree, row: Row) -> Tree:
        """Gradients of weights that were put off: the backward pass again, for them alone."""
        ct_BTD = self._whole_gradient(carry["inputs"][row["reads"]])
        found, _ = self._pulled(carry["kept"], row, ct_BTD)
        gradients = carry["gradients"]
        layers = self._added(gradients["layers"], row["chunk"], found)
        return carry | {"gradients": gradients | {"layers": layers}}

    def _pulled(self, kept: Sequence[Array], row: Row, ct_BTD: Array) -> tuple[Tree, Array]:
        """(gradients of a chunk, of its input), from what its forward pass kept."""
        tree, found = self.pull
        known = jax.tree.leaves(self._chunk(row["chunk"]))
        places = iter(kept)
        leaves = [known[i] if i is not None else next(places)[row["kept"]] for i in found]
        gradients, before_BTD = jax.tree.unflatten(tree, leaves)(ct_BTD)
        return gradients, before_BTD

    def _added(self, sums: Tree, chunk: Any, found: Tree) -> Tree:
        return jax.tree.map(lambda s, g: s.at[chunk].add(g), sums, found)

    def _embedded(self, microbatch: Any) -> Array:
        tokens_BT = _at(self.batch["tokens"], microbatch)
        return self._embed(self.holders["outer"], tokens_BT)

    def _embed(self, holders: Tree, tokens_BT: Array) -> Array:
        outer = with_holders(self.weights["outer"], holders)
        return embed(self.stack, self.core, tokens_BT, outer, self.plan.deals["outer"])

    def _embedded_back(self, outer: Tree, row: Row, ct_BTD: Array) -> Tree:
        tokens_BT = _at(self.batch["tokens"], row["microbatch"])
        _, pull = jax.vjp(lambda holders: self._embed(holders, tokens_BT), self.holders["outer"])
        return jax.tree.map(jnp.add, outer, pull(ct_BTD)[0])

    def _head(self, loss: Array, outer: Tree, row: Row, x_BTD: Array) -> tuple[Array, Tree, Array]:
        """The loss of a microbatch, and the gradients of the head and of what it reads."""
        targets_BT = _at(self.batch["targets"], row["microbatch"])

        def of(holders: Tree, x_BTD: Array) -> Array:
            weights = with_holders(self.weights["outer"], holders)
            outer = weights, self.plan.deals["outer"]
            return head_loss(self.stack, self.plan.form, x_BTD, targets_BT, *outer)

        own, (found, ct_BTD) = jax.value_and_grad(of, argnums=(0, 1))(self.holders["outer"], x_BTD)
        return loss + own, jax.tree.map(jnp.add, outer, found), ct_BTD

    @property
    def _shared(self) -> int:
        """Ranks of `tensor` that have the same residual."""
        return 1 if self.plan.form.sequence_parallel else self.stack.table.mesh.sizes["tensor"]

    def _part(self, x_BTD: Array) -> Array:
        """What this rank sends of a residual that others have too."""
        return self.stack.table.slice(x_BTD, ("tensor",), 2) if self._shared > 1 else x_BTD

    def _whole(self, x_BTD: Array) -> Array:
        if self._shared == 1:
            return x_BTD
        names = self.stack.table.mesh.axis_names(("tensor",))
        return gather(x_BTD, names, 2)

    def _part_of_gradient(self, ct_BTD: Array) -> Array:
        """Ranks have addends of the gradient of what they share: each sends a part of the sum."""
        if self._shared == 1:
            return ct_BTD
        names = self.stack.table.mesh.axis_names(("tensor",))
        return scatter(ct_BTD, names, 2)

    def _whole_gradient(self, ct_BTD: Array) -> Array:
        if self._shared == 1:
            return ct_BTD
        width = ct_BTD.shape[2]
        whole = jnp.zeros((*ct_BTD.shape[:2], width * self._shared), ct_BTD.dtype)
        at = self.stack.table.index(("tensor",)) * width
        return lax.dynamic_update_slice_in_dim(whole, ct_BTD, at, 2)


def _at(x: Array, index: Any) -> Array:
    return lax.dynamic_index_in_dim(x, index, keepdims=False)
