"""Memory bandwidth of devices, all of them busy: of arrays in caches and of larger ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from shardwise.hardware.figure import MEMORY_KIB, MEMORY_STREAMS, memory_key
from shardwise.measure.all_devices import AllDevices, Program
from shardwise.measure.products import product
from shardwise.measure.sizes import sizes_of
from shardwise.measure.timing import Part
from shardwise.runtime.dtypes import dtype

NUMBERS = 64 << 20  # fp32 numbers of all devices: more than caches hold
LOOP_KIB = 16384  # that a program reads: small arrays many times, as one pass takes no time
NUMBER_BYTES = 4
HALF = 0.5  # keeps sums in range, however often they are added


def stream_bytes_per_s(devices: AllDevices) -> Part[float]:
    """Bytes that a device reads and writes a second, in place."""
    n_numbers = NUMBERS // devices.n
    # A first write to new memory would cost page faults as well.
    stream = Program(lambda x: (x + 1,), [((n_numbers,), jnp.float32)], in_place=1)
    seconds = yield from devices.seconds(stream)
    return 2 * NUMBER_BYTES * n_numbers / seconds


def bandwidth_by_size(devices: AllDevices) -> Part[dict[str, float]]:
    """Bytes per second that a device reads and writes, by the size and number of its arrays.

    All arrays are read and the first one is written: sizes are those of all arrays together.
    """
    sizes = [(kib, n_arrays) for kib in MEMORY_KIB for n_arrays in MEMORY_STREAMS]
    programs = []
    n_bytes = []
    for kib, n_arrays in sizes:
        n_numbers = max(1, (kib << 10) // (n_arrays * NUMBER_BYTES))
        n_passes = max(1, LOOP_KIB // kib)
        arrays = [((n_numbers,), jnp.float32)] * n_arrays
        programs.append(Program(passes(n_passes), arrays, in_place=1))
        n_bytes.append((n_arrays + 1) * NUMBER_BYTES * n_numbers * n_passes)
    seconds = yield from devices.seconds_of_each(programs)
    return {memory_key(*size): n / s for size, n, s in zip(sizes, n_bytes, seconds, strict=True)}


def passes(n_passes: int) -> Callable[..., Any]:
    """A function that adds arrays to the first one so many times, in place."""

    def run(first: Any, *others: Any) -> tuple[Any]:
        def one_pass(_: Any, total: Any) -> Any:
            return HALF * total + sum(others) if others else HALF * total

        return (jax.lax.fori_loop(0, n_passes, one_pass, first),)

    return run


def square_flops_per_s(devices: AllDevices, dtype_name: str) -> Part[float]:
    """FLOP/s of a large square product."""
    dim = sizes_of(devices.platform).square
    arrays = [((dim, dim), dtype(dtype_name))] * 2
    seconds = yield from devices.seconds(Program(product(devices.platform), arrays))
    return 2 * dim**3 / seconds


def memory_bytes(devices: AllDevices) -> float:
    """Bytes of memory of a device; those of a CPU share its memory."""
    stats = devices.devices[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return float(stats["bytes_limit"])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / devices.n
