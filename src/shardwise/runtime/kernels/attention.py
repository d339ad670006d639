"""Attention of this chip's queries over the keys on the chip, by the kernel of the platform.

q_BTNH are queries, k_BSKH keys, v_BSKH values and o_BTNH the attention output, for B sequences, T
queries, S keys, N query heads and K KV heads of width H; N is a multiple of K. The kernels for TPUs
(splash attention) and for GPUs (cuDNN, in 16 bits) do not write scores to memory.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from shardwise.models import Attention
from shardwise.runtime.blocks.elementwise import softcap
from shardwise.runtime.kernels import attention_sinks, blockwise, cpu, cudnn, paired_chunks
from shardwise.runtime.kernels.attention_mask import attention_mask
from shardwise.runtime.kernels.blockwise import PartialAttention
from shardwise.runtime.layout.context_order import ContextOrder

Array = jax.Array
SAVED = "attended"  # checkpoint name of the output and its logsumexp
UNSPLIT = ContextOrder()  # each chip has whole sequences


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
    order: ContextOrder = UNSPLIT,
    index: Any = 0,
) -> Array:
    """o_BTNH of a chip's queries over the keys of whole sequences; keys are in sequence order.

    No kernel supports ALiBi: with `slopes_N` all scores are in memory.

    Args:
        q_BTNH: queries of the chip's tokens.
        k_BSKH: keys of all tokens.
        v_BSKH: values of all tokens.
        attention: its mask, window or chunks, and softcap.
        platform: `RoleMesh.platform` of the chips.
        scale: factor of the scores before the softmax.
        sinks_N: attention sinks: per head a logit that adds to the denominator of the softmax and
            has no value.
        slopes_N: ALiBi slopes: slope times position of the key is added to a score before scaling.
        order: how the tokens of a sequence are split over chips.
        index: index of the chip in `order`.
    """
    if platform == "tpu" and slopes_N is None:
        from shardwise.runtime.kernels import splash

        if splash.supports(q_BTNH.shape[1], order):
            q_BNTH = (q_BTNH * scale).astype(q_BTNH.dtype).swapaxes(1, 2)
            k_BKSH = k_BSKH.swapaxes(1, 2)
            v_BKSH = v_BSKH.swapaxes(1, 2)
            o_BNTH = splash.attend(
                q_BNTH, k_BKSH, v_BKSH, attention, order, index, sinks_N=sinks_N, name=SAVED
            )
            return o_BNTH.swapaxes(1, 2)
    if platform == "gpu" and slopes_N is None:
        o_BTNH = _by_calls_of_cudnn(q_BTNH, k_BSKH, v_BSKH, attention, scale, sinks_N, order, index)
        if o_BTNH is not None:
            return o_BTNH
    if platform == "cpu" and order.n == 1 and cpu.supports_attention(attention, q_BTNH, k_BSKH):
        return checkpoint_name(cpu.attend(q_BTNH, k_BSKH, v_BSKH, scale), SAVED)
    mask_TS: Any = None
    if attention.causal:
        rows = order.positions(index, q_BTNH.shape[1], jnp)
        mask_TS = attention_mask(attention, rows[:, None], jnp.arange(k_BSKH.shape[1]))
    if sinks_N is not None or slopes_N is not None or attention.softcap is not None:
        o_BTNH = _unfused(q_BTNH, k_BSKH, v_BSKH, attention, scale, sinks_N, slopes_N, mask_TS)
    else:
        mask = None
        if mask_TS is not None and (order.n > 1 or attention.chunked):
            mask = mask_TS[None, None]
        o_BTNH = _by_jax(q_BTNH, k_BSKH, v_BSKH, attention, scale, mask, platform)
    return checkpoint_name(o_BTNH, SAVED)


def _by_calls_of_cudnn(
    q_BTNH: Array,
    k_BSKH: Array,
    v_BSKH: Array,
    a: Attention,
    scale: float,
    sinks_N: Array | None,
    order: ContextOrder,
    index: Any,
) -> Array | None:
    """Attention over chunks, or with sinks, which JAX's function has not; None for any other."""
    heads_first = (
        (q_BTNH * scale).astype(q_BTNH.dtype).swapaxes(1, 2),
        k_BSKH.swapaxes(1, 2),
        v_BSKH.swapaxes(1, 2),
    )
    if paired_chunks.supports(a, q_BTNH, v_BSKH, order):
        kernel = partial(forward, platform="gpu"), partial(backward, platform="gpu")
        o_BNTH = paired_chunks.attend(*heads_first, index, order.n, kernel, name=SAVED)
    elif sinks_N is not None and attention_sinks.supports(a, q_BTNH, v_BSKH, order):
        of_all_keys: dict[str, Any] = {"causal": True, "window": a.window}
        kernel = partial(cudnn.forward, **of_all_keys), partial(cudnn.backward, **of_all_keys)
        o_BNTH = attention_sinks.attend(*heads_first, sinks_N, kernel, name=SAVED)
    else:
        return None
    return o_BNTH.swapaxes(1, 2)


def _by_jax(
    q_BTNH: Array,
    k_BSKH: Array,
    v_BSKH: Array,
    a: Attention,
    scale: float,
    mask: Array | None,
    platform: str,
) -> Array:
    """Attention by `jax.nn.dot_product_attention`; `mask` replaces its causal mask and window."""
    use_cudnn = platform == "gpu" and cudnn.supports(a, q_BTNH, v_BSKH, mask)
    if use_cudnn and cudnn.takes_narrow_values(q_BTNH, v_BSKH):
        return cudnn.attend_narrow_values(q_BTNH, k_BSKH, v_BSKH, a, scale)
    value_width = v_BSKH.shape[-1]
    padding = q_BTNH.shape[-1] - value_width  # JAX requires values as wide as keys
    window = None
    if mask is None and a.window is not None:
        window = (a.window - 1, 0)
    o_BTNH = jax.nn.dot_product_attention(
        q_BTNH,
        k_BSKH,
        jnp.pad(v_BSKH, [(0, 0)] * 3 + [(0, padding)]),
        mask=mask,
        scale=scale,
        is_causal=a.causal and mask is None,
        local_window_size=window,
        implementation="cudnn" if use_cudnn else "xla",
    )
    return o_BTNH[..., :value_width]


def _unfused(
    q_BTNH: Array,
    k_BSKH: Array,
    v_BSKH: Array,
    a: Attention,
    scale: float,
    sinks_N: Array | None,
    slopes_N: Array | None,
    mask_TS: Array | None,
) -> Array:
    """Attention with all scores in memory, in fp32. G = N / K query heads share a KV head."""
    B, T, N, H = q_BTNH.shape
    K = k_BSKH.shape[2]
    q_BTKGH = q_BTNH.reshape(B, T, K, N // K, H)
    s_BKGTS = jnp.einsum("btkgh,bskh->bkgts", q_BTKGH, k_BSKH, preferred_element_type=jnp.float32)
    if slopes_N is not None:
        s_BKGTS += slopes_N.reshape(K, -1, 1, 1) * jnp.arange(k_BSKH.shape[1], dtype=jnp.float32)
    s_BKGTS = softcap(s_BKGTS * scale, a.softcap)
    if mask_TS is not None:
        s_BKGTS = jnp.where(mask_TS, s_BKGTS, -jnp.inf)
    highest = s_BKGTS.max(axis=-1, keepdims=True)
    if sinks_N is not None:
        sinks = sinks_N.astype(jnp.float32).reshape(K, -1, 1, 1)
        highest = jnp.maximum(highest, sinks)
    highest = jax.lax.stop_gradient(highest)
    p_BKGTS = jnp.exp(s_BKGTS - highest)
    total = p_BKGTS.sum(axis=-1, keepdims=True)
    if sinks_N is not None:
        total = total + jnp.exp(sinks - highest)
    p_BKGTS = (p_BKGTS / total).astype(v_BSKH.dtype)
    return jnp.einsum("bkgts,bskh->btkgh", p_BKGTS, v_BSKH).reshape(B, T, N, -1)


def forward(
    q_BNTH: Array, k_BKSH: Array, v_BKSH: Array, *, platform: str, causal: bool
) -> PartialAttention:
    """Attention over some of the keys: (o_BNTH in fp32, logsumexp l_BNT of the scores).

    Args as in `blockwise.forward`.
    """
    kernel = _some_keys_kernel(q_BNTH, k_BKSH, v_BKSH, platform)
    o_BNTH, l_BNT = kernel.forward(q_BNTH, k_BKSH, v_BKSH, causal=causal)
    return o_BNTH.astype(jnp.float32), l_BNT


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
    """Gradients of q_BNTH, k_BKSH and v_BKSH from some of the keys.

    Args as in `blockwise.backward`.
    """
    kernel = _some_keys_kernel(q_BNTH, k_BKSH, v_BKSH, platform)
    gradients: tuple[Array, Array, Array] = kernel.backward(
        q_BNTH, k_BKSH, v_BKSH, o_BNTH, l_BNT, do_BNTH, causal=causal
    )
    return gradients


def _some_keys_kernel(q_BNTH: Array, k_BKSH: Array, v_BKSH: Array, platform: str) -> Any:
    """The module whose `forward` and `backward` compute attention over some of the keys."""
    # The smallest block of splash attention (128) has to divide queries and keys.
    if platform == "tpu" and q_BNTH.shape[2] % 128 == 0 == k_BKSH.shape[2] % 128:
        from shardwise.runtime.kernels import splash

        return splash
    if platform == "gpu" and cudnn.supports_some_keys(q_BNTH, v_BKSH):
        return cudnn
    return blockwise
