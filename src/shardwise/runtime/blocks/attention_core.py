"""Attention over whole sequences, each on one chip or split over the chips of `context`.

q_BTNH are the chip's queries, k_BTKH and v_BTKH the keys and values of its T tokens, k_BSKH and
v_BSKH those of all S tokens to which its queries attend.
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
from shardwise.runtime.blocks.positions import RotaryAngles, alibi_slopes, rotary_angles
from shardwise.runtime.blocks.products import BlockProducts
from shardwise.runtime.blocks.ring_attention import RingAttention
from shardwise.runtime.kernels import attention, cpu
from shardwise.runtime.layout.context_order import ContextOrder, context_order
from shardwise.runtime.layout.sharding import Table
from shardwise.strategy.layout import Form

Array = jax.Array
CONTEXT = ("context",)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceAttention:
    """Attention among the tokens of a batch of sequences.

    Args:
        table: sharding rules on the mesh.
        context_kind: how chips of `context` exchange tokens, one of
            `strategy.layout.CONTEXT_KINDS`.
        order: which tokens of a sequence each chip has.
        angles: rotary angles that were computed once for all layers; other angles are computed by
            each layer.
    """

    table: Table
    context_kind: str = "gather"
    order: ContextOrder = attention.UNSPLIT
    angles: Mapping[Attention, RotaryAngles] = field(default_factory=dict)

    def positions(self, n_tokens: int) -> Array:
        """Positions in the sequence of the chip's tokens, [1, T]."""
        positions_T: Array = self.order.positions(self._index, n_tokens, jnp)
        return positions_T[None]

    def rotary_angles(self, a: Attention, n_tokens: int, seq: int) -> RotaryAngles:
        """Rotary angles of the chip's tokens, in sequences of `seq` tokens."""
        return self.angles.get(a) or rotary_angles(a, self.positions(n_tokens), seq)

    @property
    def _index(self) -> Any:
        """The chip's index among the chips that share a sequence."""
        return self.table.index(CONTEXT) if self.order.n > 1 else 0

    def attend(self, block: BlockProducts, a: Attention, q: Array, k: Array, v: Array) -> Array:
        """Compute o_BTNH of the chip's queries over all keys of their sequence."""
        if self.order.n > 1 and self.context_kind == "ring":
            return self._ring(a, q, k, v)
        if self.order.n > 1 and self.context_kind == "ulysses":
            return self._ulysses(a, q, k, v)
        k_BSKH = self._to_sequence_order(block.move_input(k, "attn.scores", right=True))
        v_BSKH = self._to_sequence_order(block.move_input(v, "attn.values", right=True))
        sinks_N = block.weight("sinks") if a.sinks else None
        slopes_N = self.slopes(a) if a.alibi else None

        def kernel(table: Table, q: Array, k: Array, v: Array, sinks: Any, slopes: Any) -> Array:
            order = replace(self.order, n=table.mesh.size(CONTEXT))
            local = replace(self, table=table, order=order)
            return attention.attend(
                q,
                k,
                v,
                a,
                table.mesh.platform,
                a.score_scale,
                sinks_N=sinks,
                slopes_N=slopes,
                order=local.order,
                index=local._index,
            )

        arrays = (q, k_BSKH, v_BSKH, sinks_N, slopes_N)
        with jax.named_scope("attn.core"):
            return self.table.on_chips(kernel, arrays, ("BTNH", "B*KH", "B*KH", "N", "N"))

    def slopes(self, a: Attention) -> Array:
        """ALiBi slopes of this chip's heads."""
        roles = self.table.roles("activations", ("N",)).get("N", ())
        return self.table.slice(jnp.asarray(alibi_slopes(a.n_heads), jnp.float32), roles, 0)

    def _to_sequence_order(self, x_BSKH: Array) -> Array:
        """Reorder gathered chunks to sequence order.

        That is the early chunks of all chips, then the late chunks from the last chip to the first.
        """
        if not self.order.paired:
            return x_BSKH
        B, S, *head_shape = x_BSKH.shape
        chunks = x_BSKH.reshape(B, self.order.n, 2, -1, *head_shape)
        ordered = jnp.concatenate([chunks[:, :, 0], chunks[:, ::-1, 1]], axis=1)
        return ordered.reshape(B, S, *head_shape)

    def _ring(self, a: Attention, q: Array, k: Array, v: Array) -> Array:
        """Attention over keys and values that travel around the ring of chips."""
        mesh = self.table.mesh
        ring = RingAttention(
            axes=mesh.axis_names(CONTEXT),
            n=self.order.n,
            causal=a.causal,
            platform=mesh.platform,
            pipelined=mesh.sizes["pipe"] > 1,
        )
        with jax.named_scope("attn.core"):
            q_BNTH = (q * a.score_scale).astype(q.dtype).swapaxes(1, 2)
            k_BKTH = k.swapaxes(1, 2)
            v_BKTH = v.swapaxes(1, 2)
            return ring.attend(q_BNTH, k_BKTH, v_BKTH).swapaxes(1, 2)

    def _ulysses(self, a: Attention, q: Array, k: Array, v: Array) -> Array:
        """Exchange heads for tokens, attend over whole sequences, and exchange back.

        If there are more chips than KV heads, several chips receive the same KV head.
        """
        axes = self.table.mesh.axis_names(CONTEXT)
        n = self.order.n

        def exchange(heads: Array, name: str, scope: str) -> Array:
            with jax.named_scope(scope):
                heads = jnp.repeat(heads, max(1, n // heads.shape[2]), axis=2)
                heads = lax.all_to_all(heads, axes, split_axis=2, concat_axis=1, tiled=True)
                return checkpoint_name(heads, name)

        q_BSNH = exchange(q, "q", "attn.queries")
        k_BSKH = exchange(k, "k", "attn.keys")
        v_BSKH = exchange(v, "v", "attn.values")
        with jax.named_scope("attn.core"):
            o_BSNH = attention.attend(
                q_BSNH, k_BSKH, v_BSKH, a, self.table.mesh.platform, a.score_scale
            )
        with jax.named_scope("attn.attended"):
            o_BTNH = lax.all_to_all(o_BSNH, axes, split_axis=1, concat_axis=2, tiled=True)
            return checkpoint_name(o_BTNH, attention.SAVED)


def sequence_attention(
    config: ModelConfig, form: Form, table: Table, seq: int
) -> SequenceAttention:
    """Make the attention core of a training step, with the rotary angles of all layers.

    The angles are computed here, outside of the loop over layers: inside the loop every kernel that
    rotates would compute them again, and cosines are slow.
    """
    order = context_order(config, form, table.mesh.size(CONTEXT), seq)
    core = SequenceAttention(table=table, context_kind=form.context_kind, order=order)
    # In model order: every process has to compile the same program.
    attentions = dict.fromkeys(group.layer.attention for group in config.groups)
    with jax.named_scope("rope"):
        angles = {a: _shared_angles(core, a, seq) for a in attentions if a and a.rope}
    return replace(core, angles=angles)


def _shared_angles(core: SequenceAttention, a: Attention, seq: int) -> RotaryAngles:
    """Rotary angles of a chip's tokens, which all layers with this attention share."""
    compute = partial(core.rotary_angles, a, seq // core.order.n, seq)
    if core.table.mesh.platform == "cpu":
        angles: RotaryAngles = cpu.materialized(compute)()
        return angles
    return compute()
