"""Attention over blocks of keys in plain JAX: scores of one block at a time, and never all of them.

q_BNTH queries, k_BKSH v_BKSH keys and values, o_BNTH what is attended, l_BNT the logarithm of the
sum that its softmax divides by. N is a multiple of K; G = N / K queries share a key. Scores are
products of q and k as they are: their scale is in q.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array
Sums = tuple[Array, Array]  # (o_BNTH in fp32, l_BNT): attention over some of the keys

BLOCK = 512  # keys
HIDDEN = -1e30  # a score that counts for nothing, and is a number yet


def merged(one: Sums, other: Sums) -> Sums:
    """Attention over the keys of both."""
    (o, l), (more_o, more_l) = one, other
    both = jnp.logaddexp(l, more_l)
    return o * _share(l, both) + more_o * _share(more_l, both), both


def _share(l: Array, both: Array) -> Array:
    return jnp.exp(l - both)[..., None]


def forward(q_BNTH: Array, k_BKSH: Array, v_BKSH: Array, *, causal: bool) -> Sums:
    """Attention and its sums; `causal`: T and S are the same tokens in order."""
    q_BKGTH = _grouped(q_BNTH, k_BKSH.shape[1])

    def one(sums: Sums | None, block: tuple[Array, Array, Array]) -> tuple[Sums, None]:
        start, k, v = block
        s = _scores(q_BKGTH, k, start, causal)
        l = jax.nn.logsumexp(s, axis=-1)
        o = jnp.einsum("bkgts,bksh->bkgth", jnp.exp(s - l[..., None]), v.astype(jnp.float32))
        return ((o, l) if sums is None else merged(sums, (o, l))), None

    first, rest = _blocks(k_BKSH, v_BKSH)
    (o, l), _ = lax.scan(one, one(None, first)[0], rest)
    shape = q_BNTH.shape[:3]
    return o.reshape(*shape, -1), l.reshape(shape)


def backward(
    q_BNTH: Array,
    k_BKSH: Array,
    v_BKSH: Array,
    o_BNTH: Array,
    l_BNT: Array,
    do_BNTH: Array,
    *,
    causal: bool,
) -> tuple[Array, Array, Array]:
    """Gradients in fp32 of queries, keys and values, when these keys are some of those that o and l
    are over."""
    n = k_BKSH.shape[1]
    q, do = _grouped(q_BNTH, n), _grouped(do_BNTH, n).astype(jnp.float32)
    l = l_BNT.reshape(q.shape[:4])[..., None]
    own = (do * _grouped(o_BNTH, n).astype(jnp.float32)).sum(axis=-1, keepdims=True)

    def one(dq: Array, block: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        start, k, v = block
        p = jnp.exp(_scores(q, k, start, causal) - l)
        dp = jnp.einsum("bkgth,bksh->bkgts", do, v.astype(jnp.float32))
        ds = p * (dp - own)
        dq = dq + jnp.einsum("bkgts,bksh->bkgth", ds, k.astype(jnp.float32))
        dk = jnp.einsum("bkgts,bkgth->bksh", ds, q.astype(jnp.float32))
        return dq, (dk, jnp.einsum("bkgts,bkgth->bksh", p, do))

    first, rest = _blocks(k_BKSH, v_BKSH)
    dq, started = one(jnp.zeros(q.shape, jnp.float32), first)
    dq, found = lax.scan(one, dq, rest)
    dk, dv = (_joined(a, b) for a, b in zip(started, found, strict=True))
    return dq.reshape(q_BNTH.shape), dk, dv


def _grouped(x_BNTH: Array, n_kv_heads: int) -> Array:
    shape = x_BNTH.shape
    return x_BNTH.reshape(shape[0], n_kv_heads, shape[1] // n_kv_heads, *shape[2:])


def _scores(q_BKGTH: Array, k_BKSH: Array, start: Array, causal: bool) -> Array:
    wide = jnp.float32
    s = jnp.einsum("bkgth,bksh->bkgts", q_BKGTH, k_BKSH, preferred_element_type=wide)
    if not causal:
        return s
    rows, columns = jnp.arange(s.shape[-2]), start + jnp.arange(s.shape[-1])
    return jnp.where(rows[:, None] >= columns, s, HIDDEN)


def _blocks(k_BKSH: Array, v_BKSH: Array) -> tuple[tuple[Array, Array, Array], ...]:
    """(place of the first key, keys, values) of the first block, and stacked of the others."""
    length = k_BKSH.shape[2]
    size = BLOCK if length % BLOCK == 0 else length
    starts = jnp.arange(length // size) * size
    cut = [
        jnp.moveaxis(x.reshape(*x.shape[:2], -1, size, x.shape[-1]), 2, 0) for x in (k_BKSH, v_BKSH)
    ]
    return (starts[0], cut[0][0], cut[1][0]), (starts[1:], cut[0][1:], cut[1][1:])


def _joined(first: Array, rest: Array) -> Array:
    """Blocks of keys in a row again."""
    every = jnp.moveaxis(jnp.concatenate([first[None], rest]), 0, 2)
    return every.reshape(*first.shape[:2], -1, first.shape[-1])
