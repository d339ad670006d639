"""Blockwise attention in plain JAX: the scores of one block of keys at a time.

q_BNTH are queries (already multiplied by the scale of the scores), k_BKSH keys, v_BKSH values,
o_BNTH the attention output and l_BNT the logsumexp of the scores. N is a multiple of K; G = N / K
query heads share a KV head. s_BKGTS are scores, p_BKGTS probabilities, and a leading d stands for a
gradient (dq_BKGTH).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array
PartialAttention = tuple[Array, Array]  # (o_BNTH in fp32, l_BNT), over some of the keys
KeyBlock = tuple[Array, Array, Array]  # (position of the first key, k_BKSH, v_BKSH)

BLOCK = 512  # keys per block
MASKED_SCORE = -1e30  # finite, with exponential 0


def merge(left: PartialAttention, right: PartialAttention) -> PartialAttention:
    """Combine attention over two sets of keys into attention over their union."""
    left_o, left_l = left
    right_o, right_l = right
    total_l = jnp.logaddexp(left_l, right_l)
    return left_o * _share(left_l, total_l) + right_o * _share(right_l, total_l), total_l


def _share(l: Array, total_l: Array) -> Array:
    """Share of the softmax's denominator that some of the keys have, [..., 1]."""
    return jnp.exp(l - total_l)[..., None]


def forward(q_BNTH: Array, k_BKSH: Array, v_BKSH: Array, *, causal: bool) -> PartialAttention:
    """Attention output in fp32 and logsumexp of the scores.

    `causal` requires queries and keys of the same tokens, in order.
    """
    q_BKGTH = _group_heads(q_BNTH, k_BKSH.shape[1])

    def attend(partial: PartialAttention | None, block: KeyBlock) -> tuple[PartialAttention, None]:
        start, k_BKSH, v_BKSH = block
        s_BKGTS = _scores(q_BKGTH, k_BKSH, start, causal)
        l_BKGT = jax.nn.logsumexp(s_BKGTS, axis=-1)
        p_BKGTS = jnp.exp(s_BKGTS - l_BKGT[..., None])
        o_BKGTH = jnp.einsum("bkgts,bksh->bkgth", p_BKGTS, v_BKSH.astype(jnp.float32))
        block_attention = (o_BKGTH, l_BKGT)
        if partial is None:
            return block_attention, None
        return merge(partial, block_attention), None

    first, remaining = _key_blocks(k_BKSH, v_BKSH)
    (o_BKGTH, l_BKGT), _ = lax.scan(attend, attend(None, first)[0], remaining)
    shape = q_BNTH.shape[:3]
    return o_BKGTH.reshape(*shape, -1), l_BKGT.reshape(shape)


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
    """Gradients of queries, keys and values in fp32.

    Args:
        k_BKSH: keys; may be only some of those over which `o_BNTH` and `l_BNT` were computed.
        v_BKSH: values of these keys.
        o_BNTH: attention output over all keys.
        l_BNT: logsumexp of the scores of all keys.
        do_BNTH: gradient of `o_BNTH`.
        causal: whether queries and keys are the same tokens, and attend to earlier ones only.
    """
    n_kv_heads = k_BKSH.shape[1]
    q_BKGTH = _group_heads(q_BNTH, n_kv_heads)
    do_BKGTH = _group_heads(do_BNTH, n_kv_heads).astype(jnp.float32)
    l_BKGT1 = l_BNT.reshape(q_BKGTH.shape[:4])[..., None]
    o_BKGTH = _group_heads(o_BNTH, n_kv_heads).astype(jnp.float32)
    do_o_BKGT1 = (do_BKGTH * o_BKGTH).sum(axis=-1, keepdims=True)

    def differentiate(dq_BKGTH: Array, block: KeyBlock) -> tuple[Array, tuple[Array, Array]]:
        start, k_BKSH, v_BKSH = block
        p_BKGTS = jnp.exp(_scores(q_BKGTH, k_BKSH, start, causal) - l_BKGT1)
        dp_BKGTS = jnp.einsum("bkgth,bksh->bkgts", do_BKGTH, v_BKSH.astype(jnp.float32))
        ds_BKGTS = p_BKGTS * (dp_BKGTS - do_o_BKGT1)
        dq_BKGTH = dq_BKGTH + jnp.einsum("bkgts,bksh->bkgth", ds_BKGTS, k_BKSH.astype(jnp.float32))
        dk_BKSH = jnp.einsum("bkgts,bkgth->bksh", ds_BKGTS, q_BKGTH.astype(jnp.float32))
        return dq_BKGTH, (dk_BKSH, jnp.einsum("bkgts,bkgth->bksh", p_BKGTS, do_BKGTH))

    first, remaining = _key_blocks(k_BKSH, v_BKSH)
    dq_BKGTH, (first_dk, first_dv) = differentiate(jnp.zeros(q_BKGTH.shape, jnp.float32), first)
    dq_BKGTH, (remaining_dk, remaining_dv) = lax.scan(differentiate, dq_BKGTH, remaining)
    dk_BKSH = _join_blocks(first_dk, remaining_dk)
    dv_BKSH = _join_blocks(first_dv, remaining_dv)
    return dq_BKGTH.reshape(q_BNTH.shape), dk_BKSH, dv_BKSH


def _group_heads(x_BNTH: Array, n_kv_heads: int) -> Array:
    """Split dim N into [K, G]."""
    shape = x_BNTH.shape
    return x_BNTH.reshape(shape[0], n_kv_heads, shape[1] // n_kv_heads, *shape[2:])


def _scores(q_BKGTH: Array, k_BKSH: Array, start: Array, causal: bool) -> Array:
    """Scores of a block of keys, the first of which has the position `start`."""
    s_BKGTS = jnp.einsum("bkgth,bksh->bkgts", q_BKGTH, k_BKSH, preferred_element_type=jnp.float32)
    if not causal:
        return s_BKGTS
    rows = jnp.arange(s_BKGTS.shape[-2])
    columns = start + jnp.arange(s_BKGTS.shape[-1])
    return jnp.where(rows[:, None] >= columns, s_BKGTS, MASKED_SCORE)


def _key_blocks(k_BKSH: Array, v_BKSH: Array) -> tuple[KeyBlock, KeyBlock]:
    """Split keys and values: return (first block, remaining blocks stacked along a new dim 0)."""
    length = k_BKSH.shape[2]
    size = BLOCK if length % BLOCK == 0 else length
    starts = jnp.arange(length // size) * size
    keys = _split_blocks(k_BKSH, size)
    values = _split_blocks(v_BKSH, size)
    return (starts[0], keys[0], values[0]), (starts[1:], keys[1:], values[1:])


def _split_blocks(x_BKSH: Array, size: int) -> Array:
    """Split dim S into blocks of `size`, which become dim 0."""
    blocks = x_BKSH.reshape(*x_BKSH.shape[:2], -1, size, x_BKSH.shape[-1])
    return jnp.moveaxis(blocks, 2, 0)


def _join_blocks(first: Array, remaining: Array) -> Array:
    """Undo `_split_blocks`: concatenate the first block and the stacked remaining blocks."""
    blocks = jnp.moveaxis(jnp.concatenate([first[None], remaining]), 0, 2)
    return blocks.reshape(*first.shape[:2], -1, first.shape[-1])
