"""Causal attention and its gradient, by the length of sequences."""

from __future__ import annotations

from typing import Any

import jax

from shardwise.hardware.figure import ATTENTION_LENGTHS
from shardwise.measure.all_devices import AllDevices, Program
from shardwise.measure.sizes import sizes_of
from shardwise.measure.timing import Part
from shardwise.runtime.dtypes import dtype
from shardwise.runtime.kernels import attention


def measure_attention(devices: AllDevices, dtype_name: str) -> Part[dict[str, float]]:
    """FLOP/s by length and pass: `forward_512`. Masked scores do not count."""
    programs = [
        program
        for length in ATTENTION_LENGTHS
        for program in passes(devices.platform, dtype_name, length)
    ]
    seconds = iter((yield from devices.seconds_of_each(programs)))
    rates = {}
    heads = sizes_of(devices.platform).heads
    for length in ATTENTION_LENGTHS:
        forward_s = next(seconds)
        backward_s = max(next(seconds) - forward_s, forward_s / 2)
        pairs = length * (length + 1) / 2  # of a query and a key that it sees
        n = n_sequences(devices.platform, length)
        flops = 4 * n * heads.n_heads * heads.d_head * pairs
        rates[f"forward_{length}"] = flops / forward_s
        rates[f"backward_{length}"] = 2 * flops / backward_s
    return rates


def n_sequences(platform: str, length: int) -> int:
    """Sequences that have as many scores together as are measured."""
    sizes = sizes_of(platform)
    return max(1, sizes.scores // (sizes.heads.n_heads * length**2))


def passes(platform: str, dtype_name: str, length: int) -> list[Program]:
    """The forward pass, and both passes, over sequences of a length."""
    element_type = dtype(dtype_name)
    heads = sizes_of(platform).heads
    arrays = [
        ((n_sequences(platform, length), length, n, heads.d_head), element_type)
        for n in (heads.n_heads, heads.n_kv_heads, heads.n_kv_heads)
    ]

    def forward(q_BTNH: Any, k_BTKH: Any, v_BTKH: Any) -> Any:
        scale = heads.d_head**-0.5
        return attention.attend(q_BTNH, k_BTKH, v_BTKH, heads, platform, scale)

    def both(*arrays: Any) -> Any:
        o_BTNH, pull_back = jax.vjp(forward, *arrays)
        return pull_back(jax.lax.optimization_barrier(o_BTNH))

    return [Program(forward, arrays), Program(both, arrays)]
