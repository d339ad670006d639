"""The core of attention in training: every chip has its sequences, or its part of them.

q_BTNH are queries of the chip, k_BTKH v_BTKH its own keys and values, k_BSKH v_BSKH those that its
queries attend.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from shardwise.models import Attention
from shardwise.runtime import kernels
from shardwise.runtime.positions import slopes
from shardwise.runtime.products import Block
from shardwise.runtime.table import Table

Array = jax.Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """Attention among the tokens of a batch of sequences.

    Args:
        table: rules on the mesh.
    """

    table: Table

    def positions(self, n_tokens: int) -> Array:
        """Places in the sequence of a chip's tokens, [1, T]."""
        return jnp.arange(n_tokens)[None]

    def attend(self, block: Block, a: Attention, q: Array, k: Array, v: Array) -> Array:
        """What each query of the chip attends among the keys of its sequence."""
        k_BSKH = block.enter(k, "attn.scores", right=True)
        v_BSKH = block.enter(v, "attn.values", right=True)
        sinks_N = block.weight("sinks") if a.sinks else None
        slopes_N = self.slopes(a) if a.alibi else None
        with jax.named_scope("attn.core"):
            return kernels.attend(
                q, k_BSKH, v_BSKH, a, self.table.on.platform, a.score_scale, sinks_N, slopes_N
            )

    def slopes(self, a: Attention) -> Array:
        """By how much scores of this chip's heads fall per token."""
        heads = self.table.roles("activations", ("N",)).get("N", ())
        return self.table.slice(jnp.asarray(slopes(a.n_heads), jnp.float32), heads, 0)
