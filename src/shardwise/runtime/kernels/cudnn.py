"""Whether cuDNN's flash attention for NVIDIA GPUs, which JAX calls, can be used.

q_BTNH are queries, v_BSKH values.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from shardwise.models import Attention

Array = jax.Array

MIN_COMPUTE_CAPABILITY = 8  # major version; V100 (7.0) and T4 (7.5) have no flash attention
MAX_HEAD_WIDTH = 128  # newer GPUs allow more, but JAX tests that on a local GPU only


def supports(a: Attention, q_BTNH: Array, v_BSKH: Array, mask: Array | None) -> bool:
    """Whether the kernel is installed and supports this attention, with this explicit mask."""
    width = q_BTNH.shape[-1]
    is_16_bit = q_BTNH.dtype in (jnp.bfloat16, jnp.float16)
    fits = is_16_bit and mask is None and width % 8 == 0 and width <= MAX_HEAD_WIDTH
    window_is_causal = a.causal or a.window is None
    return bool(fits and v_BSKH.shape[-1] == width and window_is_causal and is_installed())


@functools.cache
def is_installed() -> bool:
    """Whether JAX finds cuDNN, by a private function: JAX has no public one."""
    try:
        from jax._src.cudnn.fused_attention_stablehlo import check_cudnn_version

        return int(check_cudnn_version()) > 0
    except (ImportError, RuntimeError):
        return False


def is_too_old(device: Any) -> bool:
    """Whether a GPU is too old for the kernel.

    False if its compute capability is unknown, as with devices that exist for compilation only.
    """
    major = str(getattr(device, "compute_capability", "")).partition(".")[0]
    return major.isdecimal() and int(major) < MIN_COMPUTE_CAPABILITY


def is_flash_attention(primitive: Any, *_: Any, **__: Any) -> bool:
    """Checkpoint policy: whether a primitive is the kernel, whose output and logsumexp are saved.

    Otherwise the backward pass would run the kernel a second time.
    """
    return str(primitive.name).startswith("dot_product_attention_fwd")
