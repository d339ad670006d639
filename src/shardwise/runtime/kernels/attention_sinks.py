"""Attention with sinks by a kernel that has none, as cuDNN's.

A sink s is one more score, without a value: it adds exp(s) to the denominator of the softmax. With
the logsumexp l of the other scores, l' = log(exp(l) + exp(s)) is that of all, and the kernel's
output o becomes o' = o exp(l - l'). Given o' and l', the kernel's backward pass has the gradients
of queries, keys and values: it computes probabilities as exp(score - l'), and the gradient of a
score as p (dp - do . o'). That of s is the sum of -exp(s - l') do . o' over queries: its dp is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from shardwise.models import Attention
from shardwise.runtime.kernels import cudnn
from shardwise.runtime.layout.context_order import ContextOrder

Array = jax.Array
Kernel = tuple[Callable[..., Any], Callable[..., Any]]  # as `cudnn.forward` and `backward`


def supports(a: Attention, q_BTNH: Array, v_BSKH: Array, order: ContextOrder) -> bool:
    """Whether cuDNN's kernel computes the attention beside the sinks, over whole sequences."""
    plain = a.causal and a.softcap is None and not (a.chunked or a.alibi)
    return order.n == 1 and plain and cudnn.supports_some_keys(q_BTNH, v_BSKH)


def attend(
    q_BNTH: Array, k_BKSH: Array, v_BKSH: Array, sinks_N: Array, kernel: Kernel, *, name: str
) -> Array:
    """Compute o_BNTH; queries are multiplied by the scale of the scores already.

    Args:
        sinks_N: a logit of each head.
        kernel: attention without sinks, which returns the logsumexp too, and its gradients.
        name: checkpoint name of the output and its logsumexp.
    """

    @jax.custom_vjp
    def attend(q: Array, k: Array, v: Array, sinks_N: Array) -> Array:
        return forward(q, k, v, sinks_N)[0]

    def forward(q: Array, k: Array, v: Array, sinks_N: Array) -> tuple[Array, Any]:
        o_BNTH, l_BNT = kernel[0](q, k, v)
        total_BNT = jnp.logaddexp(l_BNT, _of_heads(sinks_N))
        o_BNTH = (o_BNTH * jnp.exp(l_BNT - total_BNT)[..., None]).astype(q.dtype)
        o_BNTH = checkpoint_name(o_BNTH, name)
        return o_BNTH, (q, k, v, sinks_N, o_BNTH, checkpoint_name(total_BNT, name))

    def backward(residuals: Any, do_BNTH: Array) -> tuple[Array, Array, Array, Array]:
        q, k, v, sinks_N, o_BNTH, total_BNT = residuals
        dq, dk, dv = kernel[1](q, k, v, o_BNTH, total_BNT, do_BNTH)
        do_o_BNT = jnp.einsum("bnth,bnth->bnt", do_BNTH, o_BNTH, preferred_element_type=jnp.float32)
        shares_BNT = jnp.exp(_of_heads(sinks_N) - total_BNT)
        dsinks_N = -(shares_BNT * do_o_BNT).sum(axis=(0, 2))
        gradients = (dq, dk, dv, dsinks_N)
        return tuple(g.astype(x.dtype) for g, x in zip(gradients, residuals[:4], strict=True))

    attend.defvjp(forward, backward)
    return attend(q_BNTH, k_BKSH, v_BKSH, sinks_N)


def _of_heads(sinks_N: Array) -> Array:
    return sinks_N.astype(jnp.float32)[:, None]
