"""Attention of this chip's queries over keys that it has, by the platform's kernel.

q_BTNH queries, k_BSKH v_BSKH keys and values, o_BTNH what is attended; N is a multiple of K.
Scores never lie in memory on a TPU (splash attention).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from shardwise.models import Attention
from shardwise.runtime import blockwise
from shardwise.runtime.blockwise import Sums
from shardwise.runtime.order import Order
from shardwise.runtime.visible import visible

Array = jax.Array
SAVED = "attended"  # name under which remat finds the result and its softmax sums
WHOLE = Order()


def attend(
    q_BTNH: Array,
    k_BSKH: Array,
    v_BSKH: Array,
    attention: Attention,
    platform: str,
    scale: float,
    order: Order = WHOLE,
    index: Any = 0,
) -> Array:
    """Attention of a chip's tokens over the keys of whole sequences, which lie in their order.

    Args:
        platform: `tpu`, `gpu` or `cpu`.
        scale: of scores, before the softmax.
        order: which tokens chips have, where they have parts of a sequence.
        index: the chip's place among those.
    """
    if platform == "tpu":
        from shardwise.runtime import splash

        if splash.fits(q_BTNH.shape[1], order):
            q_BTNH = (q_BTNH * scale).astype(q_BTNH.dtype)
            q, k, v = (x.swapaxes(1, 2) for x in (q_BTNH, k_BSKH, v_BSKH))
            return splash.attend(q, k, v, attention, order, index, name=SAVED).swapaxes(1, 2)
    if attention.causal and (order.n > 1 or attention.chunked):
        rows = order.positions(index, q_BTNH.shape[1], jnp)
        mask = visible(attention, rows[:, None], jnp.arange(k_BSKH.shape[1]))
        return jax.nn.dot_product_attention(
            q_BTNH, k_BSKH, v_BSKH, scale=scale, mask=mask[None, None]
        )
    window = attention.window
    return jax.nn.dot_product_attention(
        q_BTNH,
        k_BSKH,
        v_BSKH,
        scale=scale,
        is_causal=attention.causal,
        local_window_size=None if window is None else (window - 1, 0),
    )


def forward(q_BNTH: Array, k_BKSH: Array, v_BKSH: Array, *, platform: str, causal: bool) -> Sums:
    """Attention over some of the keys, in fp32, and its sums; see `blockwise.forward`."""
    if _by_splash(q_BNTH, k_BKSH, platform):
        from shardwise.runtime import splash

        o, l = splash.forward(q_BNTH, k_BKSH, v_BKSH, causal=causal)
        return o.astype(jnp.float32), l
    return blockwise.forward(q_BNTH, k_BKSH, v_BKSH, causal=causal)


def backward(
    q_BNTH: Array,
    k_BKSH: Array,
    v_BKSH: Array,
    o_BNTH: Array,
    l_BNT: Array,
    do_BNTH: Array,
    *,
    platform: str,
    causal: bool,
) -> tuple[Array, Array, Array]:
    """Gradients of queries, keys and values from some of the keys; see `blockwise.backward`."""
    arrays = (q_BNTH, k_BKSH, v_BKSH, o_BNTH, l_BNT, do_BNTH)
    if _by_splash(q_BNTH, k_BKSH, platform):
        from shardwise.runtime import splash

        return splash.backward(*arrays, causal=causal)
    return blockwise.backward(*arrays, causal=causal)


def _by_splash(q_BNTH: Array, k_BKSH: Array, platform: str) -> bool:
    return platform == "tpu" and q_BNTH.shape[2] % 128 == 0 == k_BKSH.shape[2] % 128
