"""cuDNN's flash attention for NVIDIA GPUs, which JAX calls.

q_BTNH are queries, v_BSKH values. In attention over some of the keys (`forward`, `backward`) the
arrays are those of `blockwise`.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp

from shardwise.models import Attention
from shardwise.runtime.kernels.compute_capability import BLACKWELL, HOPPER, is_at_least, private

Array = jax.Array

MIN_COMPUTE_CAPABILITY = 8  # major version; V100 (7.0) and T4 (7.5) have no flash attention
# Widest heads in training, of cuDNN 9.18 (its page on attention): those of all GPUs, and of Hopper.
# Newer GPUs have some between the two, of which JAX admits all; this module uses the widest alone.
MAX_HEAD_WIDTH, MAX_WIDE_HEAD = 128, 256
LATENT_SINCE = 91000  # version of cuDNN, as JAX tests
LATENT_WIDTHS = (192, 128)  # queries and values of DeepSeek's latent attention, since Hopper
# Parameters of JAX's function for the gradients. It is private: JAX has no public function that
# takes the logsumexp of all keys where `k_BKSH` are some of them.
GRADIENT_PARAMETERS = (
    "scale", "seed", "dropout_rate", "variadic_args", "mask_type", "layout",
    "sliding_window_length", "is_training", "return_residual", "res", "grad_output",
)  # fmt: skip
ATTENTION_PARAMETERS = ("query", "key", "value", "scale", "mask_type", "sliding_window_length")


def supports(a: Attention, q_BTNH: Array, v_BSKH: Array, mask: Array | None) -> bool:
    """Whether the kernel is installed and supports this attention, with this explicit mask."""
    window_is_causal = a.causal or a.window is None
    if mask is not None or not window_is_causal:
        return False
    fits = v_BSKH.shape[-1] <= q_BTNH.shape[-1]  # narrower values are padded
    return (fits and _supports_queries(q_BTNH)) or takes_narrow_values(q_BTNH, v_BSKH)


def takes_narrow_values(q_BTNH: Array, v_BSKH: Array) -> bool:
    """Whether `attend_narrow_values` can be used, which spares the padding of values."""
    widths = (q_BTNH.shape[-1], v_BSKH.shape[-1])
    is_supported = widths == LATENT_WIDTHS and _is_16_bit(q_BTNH) and version() >= LATENT_SINCE
    return is_supported and is_at_least(HOPPER) and _attention_function() is not None


def supports_some_keys(q_BNTH: Array, v_BKSH: Array) -> bool:
    """Whether `forward` and `backward` can be used."""
    same_width = v_BKSH.shape[-1] == q_BNTH.shape[-1]
    return _gradient_function() is not None and same_width and _supports_queries(q_BNTH)


def _supports_queries(q: Array) -> bool:
    """Whether the kernel is installed, and supports heads of this width and dtype."""
    return _is_16_bit(q) and is_installed() and _supports_width(q.shape[-1])


def _is_16_bit(q: Array) -> bool:
    return q.dtype in (jnp.bfloat16, jnp.float16)


def _supports_width(width: int) -> bool:
    """Whether the kernel has heads of this width on the GPUs that JAX compiles for."""
    if width % 8 or width > MAX_WIDE_HEAD:
        return False
    if width <= MAX_HEAD_WIDTH:
        return True
    return is_at_least(HOPPER) and (width == MAX_WIDE_HEAD or not is_at_least(BLACKWELL))


def attend_narrow_values(
    q_BTNH: Array, k_BSKH: Array, v_BSKH: Array, a: Attention, scale: float
) -> Array:
    """Attention output, as wide as the values, which are narrower than queries and keys."""
    from jax._src.cudnn.fused_attention_stablehlo import MaskType

    attention = _attention_function()
    if attention is None:
        raise RuntimeError("this version of JAX has no attention with narrower values")
    output: Array = attention(
        q_BTNH,
        k_BSKH,
        v_BSKH,
        scale=scale,
        mask_type=MaskType.CAUSAL if a.causal else MaskType.NO_MASK,
        sliding_window_length=a.window,
    )
    return output


def forward(
    q_BNTH: Array, k_BKSH: Array, v_BKSH: Array, *, causal: bool, window: int | None = None
) -> tuple[Array, Array]:
    """Attention output in the dtype of queries, and logsumexp l_BNT of the scores.

    Args:
        window: tokens that a causal query sees, its own included; None for all.
    """
    o_BTNH, l_BTN = jax.nn.dot_product_attention(
        *(x.swapaxes(1, 2) for x in (q_BNTH, k_BKSH, v_BKSH)),
        scale=1.0,
        is_causal=causal,
        local_window_size=(window - 1, 0) if window else None,
        implementation="cudnn",
        return_residual=True,
    )
    return o_BTNH.swapaxes(1, 2), l_BTN.swapaxes(1, 2)


def backward(
    q_BNTH: Array,
    k_BKSH: Array,
    v_BKSH: Array,
    o_BNTH: Array,
    l_BNT: Array,
    do_BNTH: Array,
    *,
    causal: bool,
    window: int | None = None,
) -> tuple[Array, Array, Array]:
    """Gradients of queries, keys and values in their dtype: see `blockwise.backward`."""
    from jax._src.cudnn.fused_attention_stablehlo import AttentionLayout, MaskType

    gradients = _gradient_function()
    if gradients is None:
        raise RuntimeError("this version of JAX has no gradients of cuDNN's attention")
    none = jnp.zeros(0, q_BNTH.dtype)  # no bias, lengths, offsets and pages
    residuals = (q_BNTH, k_BKSH, v_BKSH, *(none,) * 7, l_BNT, o_BNTH.astype(q_BNTH.dtype))
    mask = MaskType.CAUSAL if causal else MaskType.NO_MASK
    settings = (1.0, 42, 0.0, (False, False), mask, AttentionLayout.BNTH.value, window, True, False)
    dq_BNTH, dk_BKSH, dv_BKSH, *_ = gradients(*settings, residuals, do_BNTH.astype(q_BNTH.dtype))
    return dq_BNTH, dk_BKSH, dv_BKSH


@functools.cache
def _gradient_function() -> Any:
    """JAX's function for the gradients; None if this version has another one."""
    function = private("_dot_product_attention_bwd_rule")
    names = tuple(inspect.signature(function).parameters) if function else ()
    return function if names == GRADIENT_PARAMETERS else None


@functools.cache
def _attention_function() -> Any:
    """JAX's attention by the kernel; None if this version has another one.

    It is private: the public function requires values as wide as keys.
    """
    function = private("dot_product_attention")
    names = {*inspect.signature(function).parameters} if function else set()
    return function if {*ATTENTION_PARAMETERS} <= names else None


def is_installed() -> bool:
    """Whether JAX finds cuDNN."""
    return version() > 0


@functools.cache
def version() -> int:
    """Version of cuDNN that JAX finds, as 91002 for 9.10.2, by a private function; 0 for none."""
    try:
        from jax._src.cudnn.fused_attention_stablehlo import check_cudnn_version

        return int(check_cudnn_version())
    except (ImportError, RuntimeError):
        return 0


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
