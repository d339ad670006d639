"""Attention of this chip's queries over keys that it has, by the platform's kernel.

q_BTNH queries, k_BSKH v_BSKH keys and values, o_BTNH what is attended; N is a multiple of K.
Scores never lie in memory on a TPU (splash attention), nor on a GPU in 16 bits (cuDNN).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from shardwise.models import Attention
from shardwise.runtime.blocks.elementwise import capped
from shardwise.runtime.kernels import blockwise, cpu, cudnn
from shardwise.runtime.kernels.attention_mask import visible
from shardwise.runtime.kernels.blockwise import Sums
from shardwise.runtime.layout.context_order import Order

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
    *,
    sinks_N: Array | None = None,
    slopes_N: Array | None = None,
    order: Order = WHOLE,
    index: Any = 0,
) -> Array:
    """Attention of a chip's tokens over the keys of whole sequences, which lie in their order.

    Scores that fall with distance (ALiBi) no kernel computes: they lie in memory then.

    Args:
        platform: `tpu`, `gpu` or `cpu`.
        scale: of scores, before the softmax.
        sinks_N: one logit a head that takes attention from no token.
        slopes_N: what is added to a score, before it is scaled, per token of the key's position.
        order: which tokens chips have, where they have parts of a sequence.
        index: the chip's place among those.
    """
    if platform == "tpu" and slopes_N is None:
        from shardwise.runtime.kernels import splash

        if splash.fits(q_BTNH.shape[1], order):
            q_BTNH = (q_BTNH * scale).astype(q_BTNH.dtype)
            q, k, v = (x.swapaxes(1, 2) for x in (q_BTNH, k_BSKH, v_BSKH))
            o = splash.attend(q, k, v, attention, order, index, sinks_N=sinks_N, name=SAVED)
            return o.swapaxes(1, 2)
    if platform == "cpu" and order.n == 1 and cpu.attends(attention, q_BTNH, k_BSKH):
        return checkpoint_name(cpu.attend(q_BTNH, k_BSKH, v_BSKH, scale), SAVED)
    mask_TS: Any = None
    if attention.causal:
        rows = order.positions(index, q_BTNH.shape[1], jnp)
        mask_TS = visible(attention, rows[:, None], jnp.arange(k_BSKH.shape[1]))
    if sinks_N is not None or slopes_N is not None or attention.softcap is not None:
        o = _plain(q_BTNH, k_BSKH, v_BSKH, attention, scale, sinks_N, slopes_N, mask_TS)
    else:
        whole = order.n == 1 and not attention.chunked
        mask = None if whole or mask_TS is None else mask_TS[None, None]
        o = _by_xla(q_BTNH, k_BSKH, v_BSKH, attention, scale, mask, platform)
    return checkpoint_name(o, SAVED)


def _by_xla(
    q_BTNH: Array,
    k_BSKH: Array,
    v_BSKH: Array,
    a: Attention,
    scale: float,
    mask: Array | None,
    platform: str,
) -> Array:
    """By the library's function, which takes a mask where its own causal one does not do."""
    fast = platform == "gpu" and cudnn.attends(a, q_BTNH, v_BSKH, mask)
    width, narrower = v_BSKH.shape[-1], q_BTNH.shape[-1] - v_BSKH.shape[-1]
    window = None if mask is not None or a.window is None else (a.window - 1, 0)
    o_BTNH = jax.nn.dot_product_attention(
        q_BTNH,
        k_BSKH,
        jnp.pad(v_BSKH, [(0, 0)] * 3 + [(0, narrower)]),  # it wants values as wide as keys
        mask=mask,
        scale=scale,
        is_causal=a.causal and mask is None,
        local_window_size=window,
        implementation="cudnn" if fast else "xla",
    )
    return o_BTNH[..., :width]


def _plain(
    q_BTNH: Array,
    k_BSKH: Array,
    v_BSKH: Array,
    a: Attention,
    scale: float,
    sinks_N: Array | None,
    slopes_N: Array | None,
    mask_TS: Array | None,
) -> Array:
    """Every score in memory, in fp32; G query heads have the same keys."""
    B, T, N, H = q_BTNH.shape
    K = k_BSKH.shape[2]
    q_BTKGH = q_BTNH.reshape(B, T, K, N // K, H)
    s_BKGTS = jnp.einsum("btkgh,bskh->bkgts", q_BTKGH, k_BSKH, preferred_element_type=jnp.float32)
    if slopes_N is not None:
        s_BKGTS += slopes_N.reshape(K, -1, 1, 1) * jnp.arange(k_BSKH.shape[1], dtype=jnp.float32)
    s_BKGTS = capped(s_BKGTS * scale, a.softcap)
    if mask_TS is not None:
        s_BKGTS = jnp.where(mask_TS, s_BKGTS, -jnp.inf)
    highest = s_BKGTS.max(axis=-1, keepdims=True)
    if sinks_N is not None:
        sinks = sinks_N.astype(jnp.float32).reshape(K, -1, 1, 1)
        highest = jnp.maximum(highest, sinks)
    highest = jax.lax.stop_gradient(highest)
    p_BKGTS = jnp.exp(s_BKGTS - highest)
    total = p_BKGTS.sum(axis=-1, keepdims=True)
    total = total if sinks_N is None else total + jnp.exp(sinks - highest)
    p_BKGTS = (p_BKGTS / total).astype(v_BSKH.dtype)
    return jnp.einsum("bkgts,bskh->btkgh", p_BKGTS, v_BSKH).reshape(B, T, N, -1)


def forward(q_BNTH: Array, k_BKSH: Array, v_BKSH: Array, *, platform: str, causal: bool) -> Sums:
    """Attention over some of the keys, in fp32, and its sums; see `blockwise.forward`."""
    if _by_splash(q_BNTH, k_BKSH, platform):
        from shardwise.runtime.kernels import splash

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
        from shardwise.runtime.kernels import splash

        return splash.backward(*arrays, causal=causal)
    return blockwise.backward(*arrays, causal=causal)


def _by_splash(q_BNTH: Array, k_BKSH: Array, platform: str) -> bool:
    return platform == "tpu" and q_BNTH.shape[2] % 128 == 0 == k_BKSH.shape[2] % 128
