"""Memory bandwidth of devices, all of them busy."""

from __future__ import annotations

import os

import jax.numpy as jnp

from shardwise.measure.all_devices import AllDevices
from shardwise.measure.products import product
from shardwise.runtime.dtypes import dtype

NUMBERS = 64 << 20  # fp32 numbers of all devices: more than caches hold


def stream_bytes_per_s(devices: AllDevices) -> float:
    """Bytes that a device reads and writes a second, in place."""
    n_numbers = NUMBERS // devices.n
    # A first write to new memory would cost page faults as well.
    seconds = devices.seconds(lambda x: (x + 1,), [((n_numbers,), jnp.float32)], in_place=1)
    return 2 * 4 * n_numbers / seconds


def square_flops_per_s(devices: AllDevices, dtype_name: str, dim: int = 1024) -> float:
    """FLOP/s of a large square product."""
    arrays = [((dim, dim), dtype(dtype_name))] * 2
    return 2 * dim**3 / devices.seconds(product(devices.platform), arrays)


def memory_bytes(devices: AllDevices) -> float:
    """Bytes of memory of a device; those of a CPU share its memory."""
    stats = devices.devices[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return float(stats["bytes_limit"])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / devices.n
