"""Attention over keys and values that go round a ring of chips (arXiv 2310.01889).

Every chip attends its own keys, then in n - 1 steps those of the chips before it, which arrive one
step ahead, and joins the softmax sums. The backward pass is a second round: keys and values once
more, and beside them their gradients, to which each chip adds its part until they are home. They
travel in the dtype of keys. Nothing of another chip is kept from one round to the other.

Under a causal mask a chip has an early chunk of the sequence and a late one (`order`). Of a chip
whose early chunk comes before its own, both its chunks see the early one; of any other its late
chunk sees both. Either is two squares of scores of half the tokens, one of which is the same: the
other is chosen on the chip, so all chips compute as much, and nothing that is masked.

q_BNTH queries, k_BKTH v_BKTH keys and values of T tokens of a chip, o_BNTH what is attended, l_BNT
the logarithm of the sum that its softmax divides by.
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
from shardwise.runtime.kernels.blockwise import Sums, merged

Array = jax.Array
KeysValues = tuple[Array, Array]
Kept = tuple[Array, Array, Array, Array, Array]  # q k v o l


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """Attention over chips in a ring.

    Args:
        names: mesh axes of the ring.
        n: chips, two or more.
        causal: whether tokens see earlier ones only; chips then have paired chunks.
        platform: `tpu`, `gpu` or `cpu`.
        staged: whether chips of other stages do other things at the same time.
    """

    names: tuple[str, ...]
    n: int
    causal: bool
    platform: str
    staged: bool = False

    def attend(self, q_BNTH: Array, k_BKTH: Array, v_BKTH: Array) -> Array:
        """o_BNTH of queries that carry the scale of their scores."""

        @jax.custom_vjp
        def attended(q: Array, k: Array, v: Array) -> Array:
            return self._round(q, k, v)[0].astype(q.dtype)

        def forward(q: Array, k: Array, v: Array) -> tuple[Array, Kept]:
            o, l = self._round(q, k, v)
            o = checkpoint_name(o.astype(q.dtype), attention.SAVED)
            return o, (q, k, v, o, checkpoint_name(l, attention.SAVED))

        def backward(kept: Kept, do: Array) -> tuple[Array, Array, Array]:
            return self._round_back(kept, do)

        attended.defvjp(forward, backward)
        return attended(q_BNTH, k_BKTH, v_BKTH)

    def _next(self, arrays: KeysValues) -> KeysValues:
        """What the chip before has."""
        if self.staged and self.platform == "cpu":
            # There all devices of a program meet in a permute, those of other stages too, which
            # may not come; in a gather only those that it joins.
            before = (lax.axis_index(self.names) - 1) % self.n
            k, v = (lax.all_gather(x, self.names)[before] for x in arrays)
            return k, v
        to = [(i, (i + 1) % self.n) for i in range(self.n)]
        k, v = (lax.ppermute(x, self.names, to) for x in arrays)
        return k, v

    def _round(self, q: Array, k: Array, v: Array) -> Sums:
        """Attention of the chip's queries over the keys of all chips."""
        sums = attention.forward(q, k, v, platform=self.platform, causal=self.causal)
        step = self._step(q)

        def one(at: tuple[Sums, KeysValues], j: Array) -> tuple[tuple[Sums, KeysValues], None]:
            ahead = self._next(at[1])
            return (step(*at, j), ahead), None

        start = (sums, self._next((k, v)))
        (sums, kv), _ = lax.scan(one, start, jnp.arange(1, self.n - 1))
        return step(sums, kv, self.n - 1)

    def _part(self, q: Array, k: Array, v: Array) -> Sums:
        return attention.forward(q, k, v, platform=self.platform, causal=False)

    def _step(self, q: Array) -> Callable[[Sums, KeysValues, Any], Sums]:
        """What the keys of the chip `j` places before add to the sums."""

        def whole(sums: Sums, kv: KeysValues, j: Any) -> Sums:
            return merged(sums, self._part(q, *kv))

        def paired(sums: Sums, kv: KeysValues, j: Any) -> Sums:
            earlier = self._earlier(j)
            k2, v2 = (_of_keys(x, earlier) for x in kv)
            o, l = self._part(_of_queries(q, earlier), k2, v2)
            (o_late, o_chosen), (l_late, l_chosen) = jnp.split(o, 2), jnp.split(l, 2)
            (o0, o1), (l0, l1) = _halves(sums[0]), _halves(sums[1])
            o1, l1 = merged((o1, l1), (o_late, l_late))
            chosen = jnp.where(earlier, o0, o1), jnp.where(earlier, l0, l1)
            o, l = merged(chosen, (o_chosen, l_chosen))
            o0, l0 = jnp.where(earlier, o, o0), jnp.where(earlier, l, l0)
            o1, l1 = jnp.where(earlier, o1, o), jnp.where(earlier, l1, l)
            return jnp.concatenate([o0, o1], axis=2), jnp.concatenate([l0, l1], axis=2)

        return paired if self.causal else whole

    def _earlier(self, j: Any) -> Array:
        """Whether the early chunk of the chip `j` places before comes before that of this chip."""
        return lax.axis_index(self.names) >= j

    def _round_back(self, kept: Kept, do: Array) -> tuple[Array, Array, Array]:
        """Gradients of queries, keys and values of the chip.

        Those of keys start on the chip after their own, where the first part is added, and arrive
        after n - 1 steps.
        """
        q, k, v, o, l = kept
        own = self._back(kept, do, causal=self.causal)
        dq, *home = (x.astype(jnp.float32) for x in own)
        step = self._step_back(q, o, l, do)

        def one(
            at: tuple[Array, KeysValues, KeysValues], j: Any
        ) -> tuple[tuple[Array, KeysValues, KeysValues], None]:
            dq, kv, sums = at
            ahead, sums = self._next(kv), self._next(sums)
            more, parts = step(kv, j)
            return (dq + more, ahead, _added(sums, parts)), None

        kv = self._next((k, v))
        ahead = self._next(kv) if self.n > 2 else kv
        more, sums = step(kv, 1)
        (dq, kv, sums), _ = lax.scan(one, (dq + more, ahead, sums), jnp.arange(2, self.n - 1))
        if self.n > 2:
            more, parts = step(kv, self.n - 1)
            dq, sums = dq + more, _added(self._next(sums), parts)
        dk, dv = (a + b.astype(jnp.float32) for a, b in zip(home, self._next(sums), strict=True))
        return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype)

    def _back(self, kept: Kept, do: Array, *, causal: bool = False) -> tuple[Array, Array, Array]:
        return attention.backward(*kept, do, platform=self.platform, causal=causal)

    def _step_back(
        self, q: Array, o: Array, l: Array, do: Array
    ) -> Callable[[KeysValues, Any], tuple[Array, KeysValues]]:
        """(part of dq in fp32, parts of dk dv) of the keys of the chip `j` places before."""

        def whole(kv: KeysValues, j: Any) -> tuple[Array, KeysValues]:
            dq, dk, dv = self._back((q, *kv, o, l), do)
            return dq.astype(jnp.float32), (dk.astype(kv[0].dtype), dv.astype(kv[1].dtype))

        def paired(kv: KeysValues, j: Any) -> tuple[Array, KeysValues]:
            earlier = self._earlier(j)
            q2, o2, l2, do2 = (_of_queries(x, earlier) for x in (q, o, l, do))
            k2, v2 = (_of_keys(x, earlier) for x in kv)
            dq, dk, dv = self._back((q2, k2, v2, o2, l2), do2)
            late, chosen = jnp.split(dq.astype(jnp.float32), 2)
            dq = _placed(chosen, late, earlier)
            early = [jnp.split(x.astype(jnp.float32), 2) for x in (dk, dv)]
            dk, dv = (_placed(b, jnp.zeros_like(a), earlier, a) for a, b in early)
            return dq, (dk.astype(kv[0].dtype), dv.astype(kv[1].dtype))

        return paired if self.causal else whole


def _halves(x: Array) -> tuple[Array, Array]:
    early, late = jnp.split(x, 2, axis=2)
    return early, late


def _of_queries(x: Array, earlier: Array) -> Array:
    """The rows of both squares, one after the other along B: the late chunk, and the chosen one."""
    early, late = _halves(x)
    return jnp.concatenate([late, jnp.where(earlier, early, late)])


def _of_keys(x: Array, earlier: Array) -> Array:
    """The keys of both squares along B: the early chunk, and the chosen one."""
    early, late = _halves(x)
    return jnp.concatenate([early, jnp.where(earlier, early, late)])


def _placed(chosen: Array, late: Array, earlier: Array, early: Array | float = 0.0) -> Array:
    """Both chunks of a gradient, the chosen square's added to the chunk that it is of."""
    none = jnp.zeros_like(chosen)
    first = early + jnp.where(earlier, chosen, none)
    return jnp.concatenate([first, late + jnp.where(earlier, none, chosen)], axis=2)


def _added(sums: KeysValues, parts: KeysValues) -> KeysValues:
    """In fp32, back in the dtype that travels."""
    (k, v), (more_k, more_v), wide = sums, parts, jnp.float32
    k = (k.astype(wide) + more_k.astype(wide)).astype(k.dtype)
    return k, (v.astype(wide) + more_v.astype(wide)).astype(v.dtype)
