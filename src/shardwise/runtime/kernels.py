"""Attention of this chip's queries over keys that it has, by the platform's kernel.

q_BTNH queries, k_BSKH v_BSKH keys and values, o_BTNH what is attended; N is a multiple of K.
Scores never lie in memory on a TPU (splash attention) and on a GPU (cuDNN).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from shardwise.models.config import Attention
from shardwise.runtime.elementwise import capped

Array = jax.Array

# Rows of queries and of keys that the TPU kernel takes at once. Larger ones waste more of the
# diagonal of causal attention; smaller ones read keys more often.
BLOCK = 512
SAVED = "attended"  # name under which remat finds the result and its softmax sums


def attend(
    q_BTNH: Array,
    k_BSKH: Array,
    v_BSKH: Array,
    attention: Attention,
    platform: str,
    scale: float,
    sinks_N: Array | None = None,
    slopes_N: Array | None = None,
) -> Array:
    """Causal (or full) attention over whole sequences: T and S are the same tokens.

    Scores that fall with distance (ALiBi) no kernel computes: they lie in memory then.

    Args:
        platform: `tpu`, `gpu` or `cpu`.
        scale: of scores, before the softmax.
        sinks_N: one logit a head that takes attention from no token.
        slopes_N: what is added to a score, before it is scaled, per token of the key's position.
    """
    if platform == "tpu" and q_BTNH.shape[1] % 128 == 0 and slopes_N is None:
        return _splash(q_BTNH, k_BSKH, v_BSKH, attention, scale, sinks_N)
    window = attention.window
    told = (sinks_N is not None, slopes_N is not None, attention.softcap is not None)
    if any(told) or (attention.chunked and window is not None):
        return _plain(q_BTNH, k_BSKH, v_BSKH, attention, scale, sinks_N, slopes_N)
    return jax.nn.dot_product_attention(
        q_BTNH,
        k_BSKH,
        v_BSKH,
        scale=scale,
        is_causal=attention.causal,
        local_window_size=None if window is None else (window - 1, 0),
    )


def _plain(
    q_BTNH: Array,
    k_BSKH: Array,
    v_BSKH: Array,
    a: Attention,
    scale: float,
    sinks_N: Array | None,
    slopes_N: Array | None,
) -> Array:
    """Every score in memory, in fp32; G query heads have the same keys."""
    B, T, N, H = q_BTNH.shape
    K = k_BSKH.shape[2]
    q_BTKGH = q_BTNH.reshape(B, T, K, N // K, H)
    s_BKGTS = jnp.einsum("btkgh,bskh->bkgts", q_BTKGH, k_BSKH, preferred_element_type=jnp.float32)
    if slopes_N is not None:
        s_BKGTS += slopes_N.reshape(K, -1, 1, 1) * jnp.arange(T, dtype=jnp.float32)
    s_BKGTS = capped(s_BKGTS * scale, a.softcap)
    s_BKGTS = jnp.where(_seen(a, T), s_BKGTS, -jnp.inf)
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


def _seen(a: Attention, length: int) -> Array:
    """Which keys S each query T sees."""
    at_T, at_S = jnp.arange(length)[:, None], jnp.arange(length)
    seen = at_S <= at_T if a.causal else jnp.ones((length, length), bool)
    if a.window is None:
        return seen
    if a.chunked:
        return seen & (at_T // a.window == at_S // a.window)
    return seen & (at_T - at_S < a.window)


def _splash(
    q_BTNH: Array, k_BSKH: Array, v_BSKH: Array, a: Attention, scale: float, sinks_N: Array | None
) -> Array:
    n_heads, length = q_BTNH.shape[2], q_BTNH.shape[1]
    kernel = _kernel(n_heads, length, a.causal, a.window, a.chunked, a.softcap)
    q, k, v = (x.swapaxes(1, 2) for x in (q_BTNH, k_BSKH, v_BSKH))
    attended = functools.partial(kernel, segment_ids=None, sinks=sinks_N)
    o_BNTH = jax.vmap(attended)((q * scale).astype(q.dtype), k, v)
    return o_BNTH.swapaxes(1, 2)


def _kernel(
    n_heads: int,
    length: int,
    causal: bool,
    window: int | None,
    chunked: bool,
    softcap: float | None,
) -> Any:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash

    block = next(b for b in (BLOCK, 256, 128) if length % b == 0)
    sizes = splash.BlockSizes(
        block_q=block,
        block_kv=block,
        block_kv_compute=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_kv_dkv_compute=block,
        use_fused_bwd_kernel=True,
    )
    return splash.make_splash_mha(
        mask=_mask(n_heads, length, causal, window, chunked),
        head_shards=1,
        q_seq_shards=1,
        block_sizes=sizes,
        attn_logits_soft_cap=softcap,
        residual_checkpoint_name=SAVED,
    )


@functools.lru_cache(maxsize=32)
def _mask(n_heads: int, length: int, causal: bool, window: int | None, chunked: bool) -> Any:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    shape = (length, length)
    one: Any
    if not causal:
        one = masks.FullMask(shape)
    elif window is None or window >= length:
        one = masks.CausalMask(shape)
    elif chunked:
        one = masks.ChunkedCausalMask(shape, window)
    else:
        one = masks.LocalMask(shape, (window - 1, 0), 0)
    return masks.MultiHeadMask([one] * n_heads)
