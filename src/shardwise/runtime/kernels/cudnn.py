"""Flash attention on NVIDIA GPUs: cuDNN's kernel, through JAX's function for it.

q_BTNH queries, v_BSKH values.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from shardwise.models import Attention

Array = jax.Array

OLDEST = 8  # major compute capability that the kernel is for: not V100 (7.0) and T4 (7.5)
WIDEST = 128  # dims of a head; on newer chips more, which JAX asks of a GPU that is there


def attends(a: Attention, q_BTNH: Array, v_BSKH: Array, mask: Array | None) -> bool:
    """Whether the kernel computes this attention, and is installed."""
    width = q_BTNH.shape[-1]
    narrow = q_BTNH.dtype in (jnp.bfloat16, jnp.float16)
    fits = narrow and mask is None and width % 8 == 0 and width <= WIDEST
    return bool(fits and v_BSKH.shape[-1] == width and (a.causal or a.window is None) and found())


@functools.cache
def found() -> bool:
    """Whether JAX finds cuDNN, for which it has no public question."""
    try:
        from jax._src.cudnn.fused_attention_stablehlo import check_cudnn_version

        return int(check_cudnn_version()) > 0
    except (ImportError, RuntimeError):
        return False


def too_old(device: Any) -> bool:
    """Whether the kernel is not for this GPU; one that is only compiled for may not say."""
    major = str(getattr(device, "compute_capability", "")).partition(".")[0]
    return major.isdecimal() and int(major) < OLDEST


def kept(primitive: Any, *_: Any, **__: Any) -> bool:
    """Of checkpoint policies: the result of the kernel and the sums of its softmax, without which
    the backward pass would run it again."""
    return str(primitive.name).startswith("dot_product_attention_fwd")
