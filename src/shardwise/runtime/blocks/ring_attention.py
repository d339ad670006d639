"""Ring attention: keys and values travel around a ring of chips (arXiv 2310.01889).

In the forward pass every chip attends to its own keys, then in n - 1 steps to the keys of its
predecessors, which arrive one step before they are needed, and merges the results. In the backward
pass keys and values travel around the ring again. Their gradients follow them; each chip adds its
part to the gradients, until they are back on the chip of their keys. Gradients travel in the dtype
of keys. No keys or values of another chip are saved between the two passes.

Under a causal mask each chip has an early and a late chunk of the sequence (`ContextOrder`). A chip
that receives the keys of another chip computes two square blocks of scores, each of one chunk of
queries over one chunk of keys:

- Its late queries attend to the early keys of the other chip. This block is always needed.
- If the other chip's early chunk comes before its own, its early queries attend to these keys too;
  otherwise its late queries attend to the other chip's late keys. This block is selected on the
  chip.

So all chips compute the same number of scores, and none that is masked.

q_BNTH are queries, k_BKTH keys and v_BKTH values of the T tokens of a chip, o_BNTH is the attention
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
Residuals = tuple[Array, Array, Array, Array, Array]  # (q, k, v, o, l)
BackwardCarry = tuple[Array, KeysValues, KeysValues]  # (dq, (k, v), (dk, dv))


@dataclass(frozen=True, slots=True, kw_only=True)
class RingAttention:
    """Attention over the chips of a ring.

    Args:
        axes: mesh axes of the ring.
        n: number of chips, at least 2.
        causal: whether tokens attend to earlier ones only; chips then have paired chunks.
        platform: `RoleMesh.platform` of the chips.
        pipelined: whether the mesh has pipeline stages, which may run other operations meanwhile.
    """

    axes: tuple[str, ...]
    n: int
    causal: bool
    platform: str
    pipelined: bool = False

    def attend(self, q_BNTH: Array, k_BKTH: Array, v_BKTH: Array) -> Array:
        """Compute o_BNTH; queries are multiplied by the scale of the scores already."""

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
        """Send two arrays to the successor on the ring; return those of the predecessor."""
        keys, values = arrays
        if self.pipelined and self.platform == "cpu":
            # On CPUs a permute waits for all devices of the program, also for those of other
            # pipeline stages, which may be running a branch without it. A gather waits only for the
            # devices of its ring.
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
        """Attention without a mask: all keys come before the queries, or no mask is causal."""
        return attention.forward(q, k, v, platform=self.platform, causal=False)

    def _forward_step(
        self, q: Array
    ) -> Callable[[PartialAttention, KeysValues, Any], PartialAttention]:
        """Make the function that merges in attention over the keys of another chip.

        The other chip is the one that is `distance` places before this chip on the ring.
        """

        def unmasked(partial: PartialAttention, kv: KeysValues, distance: Any) -> PartialAttention:
            return merge(partial, self._attend_unmasked(q, *kv))

        def causal(partial: PartialAttention, kv: KeysValues, distance: Any) -> PartialAttention:
            is_earlier = self._is_earlier(distance)
            k_both, v_both = (_key_blocks(x, is_earlier) for x in kv)
            o_both, l_both = self._attend_unmasked(_query_blocks(q, is_earlier), k_both, v_both)
            o_common, o_selected = jnp.split(o_both, 2)
            l_common, l_selected = jnp.split(l_both, 2)
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
        """Whether the chip `distance` places before has an earlier early chunk than this chip."""
        return lax.axis_index(self.axes) >= distance

    def _backward(self, residuals: Residuals, do: Array) -> tuple[Array, Array, Array]:
        """Gradients of the chip's queries, keys and values.

        The gradients of keys and values start on the successor of their chip, which computes their
        first part, and are back after n - 1 steps.
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
        """Parts of (dq, dk, dv) from the keys and values in `residuals`."""
        return attention.backward(*residuals, do, platform=self.platform, causal=causal)

    def _backward_step(
        self, q: Array, o: Array, l: Array, do: Array
    ) -> Callable[[KeysValues, Any], tuple[Array, KeysValues]]:
        """Make the function that returns parts of the gradients, from the keys of another chip.

        The other chip is the one that is `distance` places before this chip on the ring. The parts
        are those of dq (in fp32), and of dk and dv (in the dtype of keys).
        """

        def unmasked(kv: KeysValues, distance: Any) -> tuple[Array, KeysValues]:
            k, v = kv
            dq_BNTH, dk_BKTH, dv_BKTH = self._differentiate((q, k, v, o, l), do)
            return dq_BNTH.astype(jnp.float32), (dk_BKTH.astype(k.dtype), dv_BKTH.astype(v.dtype))

        def causal(kv: KeysValues, distance: Any) -> tuple[Array, KeysValues]:
            k, v = kv
            is_earlier = self._is_earlier(distance)
            q_both, o_both, l_both, do_both = (_query_blocks(x, is_earlier) for x in (q, o, l, do))
            k_both, v_both = (_key_blocks(x, is_earlier) for x in kv)
            dq_BNTH, dk_BKTH, dv_BKTH = self._differentiate(
                (q_both, k_both, v_both, o_both, l_both), do_both
            )
            late_dq, selected_dq = jnp.split(dq_BNTH.astype(jnp.float32), 2)
            dq_BNTH = _add_selected(selected_dq, late_dq, is_earlier)
            early_dk, selected_dk = jnp.split(dk_BKTH.astype(jnp.float32), 2)
            early_dv, selected_dv = jnp.split(dv_BKTH.astype(jnp.float32), 2)
            dk_BKTH = _add_selected(selected_dk, jnp.zeros_like(early_dk), is_earlier, early_dk)
            dv_BKTH = _add_selected(selected_dv, jnp.zeros_like(early_dv), is_earlier, early_dv)
            return dq_BNTH, (dk_BKTH.astype(k.dtype), dv_BKTH.astype(v.dtype))

        return causal if self.causal else unmasked


def _chunks(x: Array) -> tuple[Array, Array]:
    """Split the tokens of a chip into the early and the late chunk."""
    early, late = jnp.split(x, 2, axis=2)
    return early, late


def _select(
    condition: Array, on_true: PartialAttention, on_false: PartialAttention
) -> PartialAttention:
    """One of two attention outputs, with its logsumexp."""
    o = jnp.where(condition, on_true[0], on_false[0])
    return o, jnp.where(condition, on_true[1], on_false[1])


def _query_blocks(x: Array, is_earlier: Array) -> Array:
    """Queries of both blocks of scores, concatenated along B: the late chunk, then the selected."""
    early, late = _chunks(x)
    return jnp.concatenate([late, jnp.where(is_earlier, early, late)])


def _key_blocks(x: Array, is_earlier: Array) -> Array:
    """Keys of both blocks of scores, concatenated along B: the early chunk, then the selected."""
    early, late = _chunks(x)
    return jnp.concatenate([early, jnp.where(is_earlier, early, late)])


def _add_selected(
    selected: Array, late: Array, is_earlier: Array, early: Array | float = 0.0
) -> Array:
    """Gradient of both chunks, with the selected block's part added to the chunk it belongs to."""
    zeros = jnp.zeros_like(selected)
    early = early + jnp.where(is_earlier, selected, zeros)
    return jnp.concatenate([early, late + jnp.where(is_earlier, zeros, selected)], axis=2)


def _add(gradients: KeysValues, parts: KeysValues) -> KeysValues:
    """Add parts to gradients in fp32; return the sums in the dtype of the gradients."""

    def add(gradient: Array, part: Array) -> Array:
        return (gradient.astype(jnp.float32) + part.astype(jnp.float32)).astype(gradient.dtype)

    return add(gradients[0], parts[0]), add(gradients[1], parts[1])
