"""Memory bandwidth of devices, all of them busy: of arrays in caches and of larger ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from shardwise.hardware.figure import MEMORY_KIB, MEMORY_STREAMS, memory_key
from shardwise.measure.all_devices import AllDevices
from shardwise.measure.products import product
from shardwise.runtime.dtypes import dtype

NUMBERS = 64 << 20  # fp32 numbers of all devices: more than caches hold
LOOP_KIB = 16384  # that a program reads: small arrays many times, as one pass takes no time
NUMBER_BYTES = 4
HALF = 0.5  # keeps sums in range, however often they are added


def stream_bytes_per_s(devices: AllDevices) -> float:
    """Bytes that a device reads and writes a second, in place."""
    n_numbers = NUMBERS // devices.n
    # A first write to new memory would cost page faults as well.
    seconds = devices.seconds(lambda x: (x + 1,), [((n_numbers,), jnp.float32)], in_place=1)
    return 2 * NUMBER_BYTES * n_numbers / seconds


def bandwidth_by_size(devices: AllDevices) -> dict[str, float]:
    """Bytes per second that a device reads and writes, by the size and number of its arrays.

    All arrays are read and the first one is written: sizes are those of all arrays together.
    """
    return {
        memory_key(kib, n): bytes_per_s(devices, kib << 10, n)
        for kib in MEMORY_KIB
        for n in MEMORY_STREAMS
    }


def bytes_per_s(devices: AllDevices, n_bytes: int, n_arrays: int) -> float:
    """Bandwidth of a pass over `n_arrays` arrays of `n_bytes` together."""
    n_numbers = max(1, n_bytes // (n_arrays * NUMBER_BYTES))
    n_passes = max(1, (LOOP_KIB << 10) // n_bytes)
    arrays = [((n_numbers,), jnp.float32)] * n_arrays
    seconds = devices.seconds(passes(n_passes), arrays, in_place=1)
    return (n_arrays + 1) * NUMBER_BYTES * n_numbers * n_passes / seconds


def passes(n_passes: int) -> Callable[..., Any]:
    """A function that adds arrays to the first one so many times, in place."""

    def run(first: Any, *others: Any) -> tuple[Any]:
        def one_pass(_: Any, total: Any) -> Any:
            return HALF * total + sum(others) if others else HALF * total

        return (jax.lax.fori_loop(0, n_passes, one_pass, first),)

    return run


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
