"""Attention of a chip's early and late chunk of a sequence over the gathered keys of all chips.

Kernels without offsets know two masks only: none, and the causal one of a square. The queries of a
chip in a paired `ContextOrder` attend to keys in three calls of such a kernel:

- *diagonal*: each of its two chunks over its own keys, causal;
- *late*: the late chunk over the early chunks of all chips, without a mask;
- *selected*: n - 1 blocks of one chunk over another, without a mask: the early chunk over the early
  chunks before it, and the late chunk over the late chunks before it. How many are of the first
  kind depends on the chip.

So no masked score is computed but on the diagonal, and all chips compute the same number of them.
The three results are merged by the logsumexp of their scores.

q_BNTH are queries of T = 2 C tokens, k_BKSH keys and v_BKSH values of all S = 2 n C tokens in
sequence order, o_BNTH is the attention output, l_BNT the logsumexp of the scores. X is any
remaining shape.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from shardwise.models import Attention
from shardwise.runtime.kernels import cudnn
from shardwise.runtime.layout.context_order import ContextOrder

Array = jax.Array
Blocks = tuple[Array, Array, Array]  # of the three calls: diagonal, late, selected
Kernel = tuple[Callable[..., Any], Callable[..., Any]]  # `attention.forward`, `attention.backward`
IS_CAUSAL = (True, False, False)  # the mask of each call


def supports(a: Attention, q_BTNH: Array, v_BSKH: Array, order: ContextOrder) -> bool:
    """Whether chunks are paired, and cuDNN's kernel computes attention over some of the keys."""
    plain = a.causal and a.window is None and a.softcap is None and not (a.sinks or a.alibi)
    return order.paired and plain and cudnn.supports_some_keys(q_BTNH, v_BSKH)


def attend(
    q_BNTH: Array, k_BKSH: Array, v_BKSH: Array, index: Any, n: int, kernel: Kernel, *, name: str
) -> Array:
    """Compute o_BNTH; queries are multiplied by the scale of the scores already.

    Args:
        q_BNTH: queries of the chip's two chunks.
        k_BKSH: keys of all chips.
        v_BKSH: values of all chips.
        index: index of the chip in the order.
        n: number of chips.
        kernel: attention over some of the keys, and its gradients.
        name: checkpoint name of the output and its logsumexp.
    """

    @jax.custom_vjp
    def attend(index: Array, q: Array, k: Array, v: Array) -> Array:
        return forward(index, q, k, v)[0]

    def forward(index: Array, q: Array, k: Array, v: Array) -> tuple[Array, Any]:
        o_BNTH, l_BNT = _forward(index, n, kernel[0], q, k, v)
        o_BNTH = checkpoint_name(o_BNTH, name)
        return o_BNTH, (index, q, k, v, o_BNTH, checkpoint_name(l_BNT, name))

    def backward(residuals: Any, do_BNTH: Array) -> tuple[None, Array, Array, Array]:
        index, *arrays = residuals
        return None, *_backward(index, n, kernel[1], arrays, do_BNTH)

    attend.defvjp(forward, backward)
    return attend(jnp.asarray(index), q_BNTH, k_BKSH, v_BKSH)


def _forward(
    index: Array, n: int, kernel: Callable[..., Any], q: Array, k: Array, v: Array
) -> tuple[Array, Array]:
    """Attention output in the dtype of queries, and logsumexp."""
    key_blocks = zip(_key_blocks(k, index, n), _key_blocks(v, index, n), strict=True)
    parts = [
        kernel(queries, keys, values, causal=causal)
        for queries, (keys, values), causal in zip(
            _query_blocks(q, index, n), key_blocks, IS_CAUSAL, strict=True
        )
    ]
    (o_diagonal, l_diagonal), late, (o_selected, l_selected) = parts
    shape = (n - 1, -1, *o_selected.shape[1:])
    o_selected, l_selected = o_selected.reshape(shape), l_selected.reshape(shape[:-1])
    outputs, diagonals = jnp.split(o_diagonal, 2), jnp.split(l_diagonal, 2)
    is_early = _is_early(index, n)[:, None, None, None]
    early = _merge(outputs[0], diagonals[0], o_selected, jnp.where(is_early, l_selected, -jnp.inf))
    others = jnp.concatenate([late[0][None], o_selected])
    l_others = jnp.concatenate([late[1][None], jnp.where(is_early, -jnp.inf, l_selected)])
    late = _merge(outputs[1], diagonals[1], others, l_others)
    o_BNTH = jnp.concatenate([early[0], late[0]], axis=2).astype(q.dtype)
    return o_BNTH, jnp.concatenate([early[1], late[1]], axis=2)


def _merge(o: Array, l: Array, others: Array, l_others: Array) -> tuple[Array, Array]:
    """Combine attention over one set of keys with that over others, stacked along dim 0.

    A logsumexp of -inf leaves a set out.
    """
    total = jnp.logaddexp(l, jax.nn.logsumexp(l_others, axis=0))
    shares = jnp.exp(l_others - total)[..., None]
    return o * jnp.exp(l - total)[..., None] + (others * shares).sum(axis=0), total


def _backward(
    index: Array, n: int, kernel: Callable[..., Any], residuals: Any, do_BNTH: Array
) -> tuple[Array, Array, Array]:
    """Gradients of queries, keys and values; each is a sum over blocks, in fp32."""
    q, k, v, o, l = residuals
    queries = zip(*(_query_blocks(x, index, n) for x in (q, o, l, do_BNTH)), strict=True)
    keys = zip(*(_key_blocks(x, index, n) for x in (k, v)), strict=True)
    gradients = [
        kernel(q, k, v, o, l, do, causal=causal)
        for (q, o, l, do), (k, v), causal in zip(queries, keys, IS_CAUSAL, strict=True)
    ]
    dq, dk, dv = zip(*gradients, strict=True)
    return (
        _transposed(partial(_query_blocks, index=index, n=n), q, dq),
        _transposed(partial(_key_blocks, index=index, n=n), k, dk),
        _transposed(partial(_key_blocks, index=index, n=n), v, dv),
    )


def _transposed(blocks: Callable[[Array], Blocks], x: Array, gradients: Any) -> Array:
    """The gradient of `x` from those of its blocks, which are added in fp32."""
    in_fp32 = jax.ShapeDtypeStruct(x.shape, jnp.float32)
    transpose = jax.linear_transpose(blocks, in_fp32)
    total: Array = transpose(tuple(g.astype(jnp.float32) for g in gradients))[0]
    return total.astype(x.dtype)


def _is_early(index: Array, n: int) -> Array:
    """Which of the n - 1 selected blocks are of the early chunk."""
    return jnp.arange(n - 1) < index


def _query_blocks(x_BNTX: Array, index: Array, n: int) -> Blocks:
    """Queries of each call, or what belongs to them; blocks are concatenated along B."""
    early, late = jnp.split(x_BNTX, 2, axis=2)
    is_early = _is_early(index, n).reshape(-1, *(1,) * early.ndim)
    selected = jnp.where(is_early, early, late).reshape(-1, *early.shape[1:])
    return jnp.concatenate([early, late]), late, selected


def _key_blocks(x_BKSX: Array, index: Array, n: int) -> Blocks:
    """Keys or values of each call: see `_query_blocks`."""
    B, K, S, *rest = x_BKSX.shape
    chunks = jnp.moveaxis(x_BKSX.reshape(B, K, 2 * n, -1, *rest), 2, 0)
    own = [lax.dynamic_index_in_dim(chunks, i, keepdims=False) for i in (index, 2 * n - 1 - index)]
    early, late = chunks[: n - 1], chunks[n:-1]
    # The late chunks begin where the early ones end: those before are moved out of the window.
    shifted = jnp.concatenate([jnp.zeros_like(late), late])
    shifted = lax.dynamic_slice_in_dim(shifted, n - 1 - index, n - 1)
    is_early = _is_early(index, n).reshape(-1, *(1,) * (chunks.ndim - 1))
    selected = jnp.where(is_early, early, shifted).reshape(-1, *chunks.shape[2:])
    return jnp.concatenate(own), x_BKSX[:, :, : S // 2], selected
