"""Causal attention and its gradient, by the length of sequences."""

from __future__ import annotations

from typing import Any

import jax

from shardwise.hardware.figure import ATTENTION_LENGTHS
from shardwise.measure.all_devices import AllDevices
from shardwise.models import Attention
from shardwise.runtime.dtypes import dtype
from shardwise.runtime.kernels import attention

SCORES = 1 << 20  # of all heads and sequences together
HEADS = Attention(n_heads=4, n_kv_heads=2, d_head=64)


def measure_attention(devices: AllDevices, dtype_name: str) -> dict[str, float]:
    """FLOP/s by length and pass: `forward_512`. Masked scores do not count."""
    return {
        f"{name}_{length}": rate
        for length in ATTENTION_LENGTHS
        for name, rate in rates_at(devices, dtype_name, length).items()
    }


def rates_at(devices: AllDevices, dtype_name: str, length: int) -> dict[str, float]:
    """FLOP/s of both passes at one length."""
    n = max(1, SCORES // (HEADS.n_heads * length**2))
    element_type = dtype(dtype_name)
    arrays = [
        ((n, length, heads, HEADS.d_head), element_type)
        for heads in (HEADS.n_heads, HEADS.n_kv_heads, HEADS.n_kv_heads)
    ]

    def forward(q_BTNH: Any, k_BTKH: Any, v_BTKH: Any) -> Any:
        scale = HEADS.d_head**-0.5
        return attention.attend(q_BTNH, k_BTKH, v_BTKH, HEADS, devices.platform, scale)

    def both(*arrays: Any) -> Any:
        o_BTNH, pull_back = jax.vjp(forward, *arrays)
        return pull_back(jax.lax.optimization_barrier(o_BTNH))

    flops = 4 * n * HEADS.n_heads * HEADS.d_head * length * (length + 1) / 2
    forward_s, both_s = devices.seconds_of_each([(forward, arrays), (both, arrays)])
    backward_s = max(both_s - forward_s, forward_s / 2)
    return {"forward": flops / forward_s, "backward": 2 * flops / backward_s}
