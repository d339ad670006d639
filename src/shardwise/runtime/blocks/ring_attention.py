"""Ring attention: keys and values travel around a ring of chips (arXiv 2310.01889).

Every chip attends to its own keys, then in n - 1 steps to those of its predecessors, which arrive
one step ahead, and merges the softmax sums. The backward pass is a second round: keys and values
travel again, followed by their gradients, to which each chip adds its part until they are back.
They travel in the dtype of keys. Nothing of another chip is saved between the two rounds.

Under a causal mask a chip has an early chunk of the sequence and a late one (`ContextOrder`). If
the early chunk of another chip comes before the own one, both own chunks attend to it; otherwise
the own late chunk attends to both chunks of the other chip. Each case is two square blocks of
scores of half the tokens, and one of the two blocks is common to both cases: the other is selected
on the chip, so that all chips compute the same number of scores, and none that is masked.

q_BNTH are queries, k_BKTH v_BKTH keys and values of the T tokens of a chip, o_BNTH is the attention
output, l_BNT the logsumexp of the scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from shardwise.runtime.kernels import attention
from shardwise.runtime.kernels.blockwise import PartialAttention, merge

Array = jax.Array
KeysValues = tuple[Array, Array]
Residuals = tuple[Array, Array, Array, Array, Array]  # q k v o l
BackwardCarry = tuple[Array, KeysValues, KeysValues]  # dq, keys and values, their gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class RingAttention:
    """Attention over the chips of a ring.

    Args:
        axes: mesh axes of the ring.
        n: chips, two or more.
        causal: whether tokens attend to earlier ones only; chips then have paired chunks.
        platform: `tpu`, `gpu` or `cpu`.
        pipelined: whether chips of other pipeline stages run other operations at the same time.
    """

    axes: tuple[str, ...]
    n: int
    causal: bool
    platform: str
    pipelined: bool = False

    def attend(self, q_BNTH: Array, k_BKTH: Array, v_BKTH: Array) -> Array:
        """o_BNTH of queries that carry the scale of their scores."""

        @jax.custom_vjp
        def attend(q: Array, k: Array, v: Array) -> Array:
            return self._forward(q, k, v)[0].astype(q.dtype)

        def forward(q: Array, k: Array, v: Array) -> tuple[Array, Residuals]:
            o, l = self._forward(q, k, v)
            o = checkpoint_name(o.astype(q.dtype), attention.SAVED)
            return o, (q, k, v, o, checkpoint_name(l, attention.SAVED))

        def backward(residuals: Residuals, do: Array) -> tuple[Array, Array, Array]:
            return self._backward(residuals, do)

        attend.defvjp(forward, backward)
        return attend(q_BNTH, k_BKTH, v_BKTH)

    def _receive(self, arrays: KeysValues) -> KeysValues:
        """The arrays of the predecessor, in exchange for those of this chip."""
        keys, values = arrays
        if self.pipelined and self.platform == "cpu":
            # A permute on the CPU waits for all devices of the program, also those of other stages,
            # which may not run it; a gather waits only for its own.
            predecessor = (lax.axis_index(self.axes) - 1) % self.n
            received_keys = lax.all_gather(keys, self.axes)[predecessor]
            return received_keys, lax.all_gather(values, self.axes)[predecessor]
        pairs = [(chip, (chip + 1) % self.n) for chip in range(self.n)]
        return lax.ppermute(keys, self.axes, pairs), lax.ppermute(values, self.axes, pairs)

    def _forward(self, q: Array, k: Array, v: Array) -> PartialAttention:
        """Attention of the chip's queries over the keys of all chips."""
        partial = attention.forward(q, k, v, platform=self.platform, causal=self.causal)
        add_keys = self._forward_step(q)

        def step(
            carry: tuple[PartialAttention, KeysValues], distance: Array
        ) -> tuple[tuple[PartialAttention, KeysValues], None]:
            partial, kv = carry
            arriving = self._receive(kv)
            return (add_keys(partial, kv, distance), arriving), None

        start = (partial, self._receive((k, v)))
        (partial, kv), _ = lax.scan(step, start, jnp.arange(1, self.n - 1))
        return add_keys(partial, kv, self.n - 1)

    def _attend_unmasked(self, q: Array, k: Array, v: Array) -> PartialAttention:
        return attention.forward(q, k, v, platform=self.platform, causal=False)

    def _forward_step(
        self, q: Array
    ) -> Callable[[PartialAttention, KeysValues, Any], PartialAttention]:
        """The function that adds the keys of the chip `distance` places before."""

        def unmasked(partial: PartialAttention, kv: KeysValues, distance: Any) -> PartialAttention:
            return merge(partial, self._attend_unmasked(q, *kv))

        def causal(partial: PartialAttention, kv: KeysValues, distance: Any) -> PartialAttention:
            is_earlier = self._is_earlier(distance)
            k2, v2 = (_key_blocks(x, is_earlier) for x in kv)
            o2, l2 = self._attend_unmasked(_query_blocks(q, is_earlier), k2, v2)
            o_common, o_selected = jnp.split(o2, 2)
            l_common, l_selected = jnp.split(l2, 2)
            o_early, o_late = _chunks(partial[0])
            l_early, l_late = _chunks(partial[1])
            early = (o_early, l_early)
            late = merge((o_late, l_late), (o_common, l_common))
            merged = merge(_select(is_earlier, early, late), (o_selected, l_selected))
            early = _select(is_earlier, merged, early)
            late = _select(is_earlier, late, merged)
            o = jnp.concatenate([early[0], late[0]], axis=2)
            return o, jnp.concatenate([early[1], late[1]], axis=2)

        return causal if self.causal else unmasked

    def _is_earlier(self, distance: Any) -> Array:
        """Whether the early chunk of the chip `distance` places before precedes the own one."""
        return lax.axis_index(self.axes) >= distance

    def _backward(self, residuals: Residuals, do: Array) -> tuple[Array, Array, Array]:
        """Gradients of queries, keys and values of the chip.

        Gradients of keys start on the successor of their chip, which adds the first part, and are
        back after n - 1 steps.
        """
        q, k, v, o, l = residuals
        own_gradients = self._differentiate(residuals, do, causal=self.causal)
        dq_BNTH, own_dk, own_dv = (x.astype(jnp.float32) for x in own_gradients)
        differentiate = self._backward_step(q, o, l, do)

        def step(carry: BackwardCarry, distance: Any) -> tuple[BackwardCarry, None]:
            dq_BNTH, kv, gradients = carry
            arriving = self._receive(kv)
            gradients = self._receive(gradients)
            dq_part, parts = differentiate(kv, distance)
            return (dq_BNTH + dq_part, arriving, _add(gradients, parts)), None

        kv = self._receive((k, v))
        arriving = self._receive(kv) if self.n > 2 else kv
        dq_part, gradients = differentiate(kv, 1)
        start = (dq_BNTH + dq_part, arriving, gradients)
        (dq_BNTH, kv, gradients), _ = lax.scan(step, start, jnp.arange(2, self.n - 1))
        if self.n > 2:
            dq_part, parts = differentiate(kv, self.n - 1)
            dq_BNTH = dq_BNTH + dq_part
            gradients = _add(self._receive(gradients), parts)
        dk_BKTH, dv_BKTH = self._receive(gradients)
        dk_BKTH = own_dk + dk_BKTH.astype(jnp.float32)
        dv_BKTH = own_dv + dv_BKTH.astype(jnp.float32)
        return dq_BNTH.astype(q.dtype), dk_BKTH.astype(k.dtype), dv_BKTH.astype(v.dtype)

    def _differentiate(
        self, residuals: Residuals, do: Array, *, causal: bool = False
    ) -> tuple[Array, Array, Array]:
        return attention.backward(*residuals, do, platform=self.platform, causal=causal)

    def _backward_step(
        self, q: Array, o: Array, l: Array, do: Array
    ) -> Callable[[KeysValues, Any], tuple[Array, KeysValues]]:
        """The function that returns parts of dq (in fp32), dk and dv, from the keys of the chip
        `distance` places before."""

        def unmasked(kv: KeysValues, distance: Any) -> tuple[Array, KeysValues]:
            k, v = kv
            dq_BNTH, dk_BKTH, dv_BKTH = self._differentiate((q, k, v, o, l), do)
            return dq_BNTH.astype(jnp.float32), (dk_BKTH.astype(k.dtype), dv_BKTH.astype(v.dtype))

        def causal(kv: KeysValues, distance: Any) -> tuple[Array, KeysValues]:
            k, v = kv
            is_earlier = self._is_earlier(distance)
            q2, o2, l2, do2 = (_query_blocks(x, is_earlier) for x in (q, o, l, do))
            k2, v2 = (_key_blocks(x, is_earlier) for x in kv)
            dq_BNTH, dk_BKTH, dv_BKTH = self._differentiate((q2, k2, v2, o2, l2), do2)
            late_dq, selected_dq = jnp.split(dq_BNTH.astype(jnp.float32), 2)
            dq_BNTH = _add_selected(selected_dq, late_dq, is_earlier)
            early_dk, selected_dk = jnp.split(dk_BKTH.astype(jnp.float32), 2)
            early_dv, selected_dv = jnp.split(dv_BKTH.astype(jnp.float32), 2)
            dk_BKTH = _add_selected(selected_dk, jnp.zeros_like(early_dk), is_earlier, early_dk)
            dv_BKTH = _add_selected(selected_dv, jnp.zeros_like(early_dv), is_earlier, early_dv)
            return dq_BNTH, (dk_BKTH.astype(k.dtype), dv_BKTH.astype(v.dtype))

        return causal if self.causal else unmasked


def _chunks(x: Array) -> tuple[Array, Array]:
    """The early and the late chunk of the tokens."""
    early, late = jnp.split(x, 2, axis=2)
    return early, late


def _select(
    condition: Array, on_true: PartialAttention, on_false: PartialAttention
) -> PartialAttention:
    o = jnp.where(condition, on_true[0], on_false[0])
    return o, jnp.where(condition, on_true[1], on_false[1])


def _query_blocks(x: Array, is_earlier: Array) -> Array:
    """Queries of both blocks of scores, concatenated along B: the late chunk (common to both
    cases), and the selected one."""
    early, late = _chunks(x)
    return jnp.concatenate([late, jnp.where(is_earlier, early, late)])


def _key_blocks(x: Array, is_earlier: Array) -> Array:
    """Keys of both blocks of scores, concatenated along B: the early chunk, the selected one."""
    early, late = _chunks(x)
    return jnp.concatenate([early, jnp.where(is_earlier, early, late)])


def _add_selected(
    selected: Array, late: Array, is_earlier: Array, early: Array | float = 0.0
) -> Array:
    """Both chunks of a gradient, with that of the selected block added to its chunk."""
    zeros = jnp.zeros_like(selected)
    early = early + jnp.where(is_earlier, selected, zeros)
    return jnp.concatenate([early, late + jnp.where(is_earlier, zeros, selected)], axis=2)


def _add(gradients: KeysValues, parts: KeysValues) -> KeysValues:
    """Add parts in fp32, and return the dtype that travels."""

    def add(gradient: Array, part: Array) -> Array:
        return (gradient.astype(jnp.float32) + part.astype(jnp.float32)).astype(gradient.dtype)

    return add(gradients[0], parts[0]), add(gradients[1], parts[1])
