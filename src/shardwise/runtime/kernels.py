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

Array = jax.Array

# Rows of queries and of keys that the TPU kernel takes at once. Larger ones waste more of the
# diagonal of causal attention; smaller ones read keys more often.
BLOCK = 512
SAVED = "attended"  # name under which remat finds the result and its softmax sums


def attend(
    q_BTNH: Array, k_BSKH: Array, v_BSKH: Array, attention: Attention, platform: str, scale: float
) -> Array:
    """Causal (or full) attention over whole sequences: T and S are the same tokens.

    Args:
        platform: `tpu`, `gpu` or `cpu`.
        scale: of scores, before the softmax.
    """
    if platform == "tpu" and q_BTNH.shape[1] % 128 == 0:
        return _splash(q_BTNH, k_BSKH, v_BSKH, attention, scale)
    window = attention.window
    width, narrower = v_BSKH.shape[-1], q_BTNH.shape[-1] - v_BSKH.shape[-1]
    o_BTNH = jax.nn.dot_product_attention(
        q_BTNH,
        k_BSKH,
        jnp.pad(v_BSKH, [(0, 0)] * 3 + [(0, narrower)]),  # it wants values as wide as keys
        scale=scale,
        is_causal=attention.causal,
        local_window_size=None if window is None else (window - 1, 0),
    )
    return o_BTNH[..., :width]


def _splash(q_BTNH: Array, k_BSKH: Array, v_BSKH: Array, a: Attention, scale: float) -> Array:
    n_heads, length = q_BTNH.shape[2], q_BTNH.shape[1]
    kernel = _kernel(n_heads, length, a.causal, a.window, a.chunked)
    q, k, v = (x.swapaxes(1, 2) for x in (q_BTNH, k_BSKH, v_BSKH))
    o_BNTH = jax.vmap(kernel)((q * scale).astype(q.dtype), k, v)
    return o_BNTH.swapaxes(1, 2)


def _kernel(n_heads: int, length: int, causal: bool, window: int | None, chunked: bool) -> Any:
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
