"""The core of attention in training: every chip has its sequences, or its part of them.

q_BTNH are queries of the chip, k_BTKH v_BTKH its own keys and values, k_BSKH v_BSKH those that its
queries attend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from shardwise.models import Attention, ModelConfig
from shardwise.runtime.blocks.positions import Turns, slopes, turns
from shardwise.runtime.blocks.products import Block
from shardwise.runtime.blocks.ring_attention import Ring
from shardwise.runtime.kernels import attention, cpu
from shardwise.runtime.layout.context_order import Order, order_of
from shardwise.runtime.layout.sharding import Table
from shardwise.strategy.layout import Form

Array = jax.Array
CONTEXT = ("context",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """Attention among the tokens of a batch of sequences.

    Args:
        table: rules on the mesh.
        kind: how tokens of other chips are seen, of `strategy.layout.CONTEXT_KINDS`.
        order: which tokens of a sequence each chip has.
        angles: of rotary positions, those that are known before the first layer.
    """

    table: Table
    kind: str = "gather"
    order: Order = attention.WHOLE
    angles: Mapping[Attention, Turns] = field(default_factory=dict)

    def positions(self, n_tokens: int) -> Array:
        """Places in the sequence of a chip's tokens, [1, T]."""
        found: Array = self.order.positions(self._index, n_tokens, jnp)
        return found[None]

    def turns(self, a: Attention, n_tokens: int, seq: int) -> Turns:
        """Rotary positions of a chip's tokens."""
        return self.angles.get(a) or turns(a, self.positions(n_tokens), seq)

    @property
    def _index(self) -> Any:
        """The chip's place among those that share a sequence."""
        return self.table.index(CONTEXT) if self.order.n > 1 else 0

    def attend(self, block: Block, a: Attention, q: Array, k: Array, v: Array) -> Array:
        """What each query of the chip attends among the keys of its sequence."""
        if self.order.n > 1 and self.kind == "ring":
            return self._round(a, q, k, v)
        if self.order.n > 1 and self.kind == "ulysses":
            return self._exchanged(a, q, k, v)
        k_BSKH = self._in_order(block.enter(k, "attn.scores", right=True))
        v_BSKH = self._in_order(block.enter(v, "attn.values", right=True))
        sinks_N = block.weight("sinks") if a.sinks else None
        slopes_N = self.slopes(a) if a.alibi else None

        def kernel(table: Table, q: Array, k: Array, v: Array, sinks: Any, slopes: Any) -> Array:
            here = replace(self, table=table, order=replace(self.order, n=table.on.size(CONTEXT)))
            return attention.attend(
                q,
                k,
                v,
                a,
                table.on.platform,
                a.score_scale,
                sinks_N=sinks,
                slopes_N=slopes,
                order=here.order,
                index=here._index,
            )

        arrays = (q, k_BSKH, v_BSKH, sinks_N, slopes_N)
        with jax.named_scope("attn.core"):
            return self.table.on_chips(kernel, arrays, ("BTNH", "B*KH", "B*KH", "N", "N"))

    def slopes(self, a: Attention) -> Array:
        """By how much scores of this chip's heads fall per token."""
        heads = self.table.roles("activations", ("N",)).get("N", ())
        return self.table.slice(jnp.asarray(slopes(a.n_heads), jnp.float32), heads, 0)

    def _in_order(self, x_BSKH: Array) -> Array:
        """Gathered chunks as they follow in the sequence: early ones, then late ones backwards."""
        if not self.order.paired:
            return x_BSKH
        B, S, *rest = x_BSKH.shape
        chunks = x_BSKH.reshape(B, self.order.n, 2, -1, *rest)
        both = jnp.concatenate([chunks[:, :, 0], chunks[:, ::-1, 1]], axis=1)
        return both.reshape(B, S, *rest)

    def _round(self, a: Attention, q: Array, k: Array, v: Array) -> Array:
        """Keys and values go round the chips."""
        on = self.table.on
        ring = Ring(
            names=on.names(CONTEXT),
            n=self.order.n,
            causal=a.causal,
            platform=on.platform,
            staged=on.sizes["pipe"] > 1,
        )
        with jax.named_scope("attn.core"):
            q_BTNH = (q * a.score_scale).astype(q.dtype)
            q_BNTH, k_BKTH, v_BKTH = (x.swapaxes(1, 2) for x in (q_BTNH, k, v))
            return ring.attend(q_BNTH, k_BKTH, v_BKTH).swapaxes(1, 2)

    def _exchanged(self, a: Attention, q: Array, k: Array, v: Array) -> Array:
        """Heads for tokens, attention over whole sequences, tokens for heads.

        Where chips are more than KV heads, several receive the same one.
        """
        names, n = self.table.on.names(CONTEXT), self.order.n

        def arrived(x: Array, name: str, scope: str) -> Array:
            with jax.named_scope(scope):
                x = jnp.repeat(x, max(1, n // x.shape[2]), axis=2)
                x = lax.all_to_all(x, names, split_axis=2, concat_axis=1, tiled=True)
                return checkpoint_name(x, name)

        q = arrived(q, "q", "attn.queries")
        k, v = arrived(k, "k", "attn.keys"), arrived(v, "v", "attn.values")
        with jax.named_scope("attn.core"):
            o = attention.attend(q, k, v, a, self.table.on.platform, a.score_scale)
        with jax.named_scope("attn.attended"):
            o = lax.all_to_all(o, names, split_axis=1, concat_axis=2, tiled=True)
            return checkpoint_name(o, attention.SAVED)


def sequences(config: ModelConfig, form: Form, table: Table, seq: int) -> Sequences:
    """The core of a layout's training step.

    Angles are made here, once a step: in the loop of layers each kernel that turns would make its
    own, and cosines are dear.
    """
    order = order_of(config, form, table.on.size(CONTEXT), seq)
    core = Sequences(table=table, kind=form.context_kind, order=order)
    # In the order of the model: every process has to compile the same program.
    kinds = dict.fromkeys(group.layer.attention for group in config.groups)
    with jax.named_scope("rope"):
        angles = {a: _angles(core, a, seq) for a in kinds if a and a.rope}
    return replace(core, angles=angles)


def _angles(core: Sequences, a: Attention, seq: int) -> Turns:
    """Rotary positions of a chip's tokens, which every layer reads."""
    made = partial(core.turns, a, seq // core.order.n, seq)
    found: Turns = cpu.once(made)() if core.table.on.platform == "cpu" else made()
    return found
