"""Stage `measure` of `bench/accelerator.py`: rates of one device, and the chip of `hw measure`.

Matmuls are [M,K] x [K,N] of random numbers. fp32 is at the highest precision, tf32 what a GPU does
for fp32 by default.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from accelerator_device import Device, Found, report, seconds_of
from jax import lax

from shardwise.measure import machine
from shardwise.measure.chip_file import write_chip
from shardwise.measure.rates import MeasuredRates

LARGE = ((4096, 4096, 4096), (8192, 8192, 8192), (16384, 4096, 14336))  # whose median is a rate
NARROW = ((1, 4096, 14336), (16, 4096, 14336), (64, 4096, 14336))  # those of decode
STREAMED = (64 << 20, 256 << 20, 1 << 30)  # bytes
TINY_LARGE, TINY_NARROW, TINY_STREAMED = ((256, 256, 256),), ((16, 256, 512),), (16 << 20,)
COPIED = {False: 256 << 20, True: 4 << 20}  # bytes between host and device; tiny or not
QUEUED_BYTES = 4 << 30  # of results in fp32
DTYPES = {
    "bf16": (jnp.bfloat16, lax.Precision.DEFAULT),
    "fp32": (jnp.float32, lax.Precision.HIGHEST),
    "tf32": (jnp.float32, lax.Precision.DEFAULT),
    "int8": (jnp.int8, lax.Precision.DEFAULT),
}


def measure(device: Device) -> Found:
    """All rates, and a chip file with those of `hw measure`."""
    large = TINY_LARGE if device.tiny else LARGE
    narrow = TINY_NARROW if device.tiny else NARROW
    matmuls: dict[str, dict[str, float | str]] = {}
    rates = {}
    for name in DTYPES:
        if name == "tf32" and device.platform != "gpu":
            continue
        matmuls[name] = {show(shape): matmul(name, shape, device) for shape in (*large, *narrow)}
        reached = [matmuls[name][show(shape)] for shape in large]
        numbers = [rate for rate in reached if isinstance(rate, float)]
        if numbers:
            rates[name] = statistics.median(numbers)
    memory = memory_rates(device)
    largest = show_bytes((TINY_STREAMED if device.tiny else STREAMED)[-1])
    found = {
        "matmuls": matmuls,
        "flops_per_s": rates,
        "memory": memory,
        "bytes_per_s": memory[largest]["read and write"],
        "read_bytes_per_s": memory[largest]["read"],
        "copies": copy_rates(COPIED[device.tiny]),
        "latency_s": latencies(device),
    }
    if device.platform != "cpu" and not device.in_catalog:
        return found
    report(found, "measure: its own rates")
    write_measured_chip(device, rates, found["bytes_per_s"])
    return found | {"chip_file": device.measured_file.name}


def show(shape: tuple[int, ...]) -> str:
    """`4096x4096x4096`."""
    return "x".join(map(str, shape))


def show_bytes(n_bytes: int) -> str:
    """`64 MiB`."""
    return f"{n_bytes >> 20} MiB"


def matmul(name: str, shape: tuple[int, int, int], device: Device) -> float | str:
    """FLOP/s, or why there are none."""
    dtype, precision = DTYPES[name]
    M, K, N = shape
    wide = jnp.int32 if name == "int8" else dtype

    def product(x_MK: Any, w_KN: Any) -> Any:
        return jnp.matmul(x_MK, w_KN, precision=precision, preferred_element_type=wide)

    try:
        x_MK, w_KN = random((M, K), dtype, 0), random((K, N), dtype, 1)
        run = jax.jit(product)
        most = max(1, QUEUED_BYTES // (4 * M * N))
        return 2 * M * K * N / seconds_of(lambda: run(x_MK, w_KN), tiny=device.tiny, most=most)
    except Exception as error:  # a dtype that the device does not have
        return str(error).splitlines()[0][:200]


def random(shape: tuple[int, ...], dtype: Any, seed: int) -> Any:
    """Random numbers: zeros and ones draw less power, and clocks depend on it."""
    key = jax.random.key(seed)
    if dtype == jnp.int8:
        return jax.random.randint(key, shape, -100, 100, dtype)
    return jax.random.normal(key, shape, dtype)


def memory_rates(device: Device) -> dict[str, Found]:
    """Bytes per second: an array that is read and written in place, and one that is read."""
    found = {}
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    total = jax.jit(jnp.sum)
    for n_bytes in TINY_STREAMED if device.tiny else STREAMED:
        x = jnp.ones(n_bytes // 4, jnp.float32)
        read_s = seconds_of(lambda x=x: total(x), tiny=device.tiny)

        def in_place() -> Any:
            nonlocal x
            x = add(x)
            return x

        both_s = seconds_of(in_place, tiny=device.tiny)
        found[show_bytes(n_bytes)] = {
            "read": n_bytes / read_s,
            "read and write": 2 * n_bytes / both_s,
        }
    return found


def copy_rates(n_bytes: int) -> Found:
    """Bytes per second from the host to the device and back; the fastest of some."""
    array = np.ones(n_bytes // 4, np.float32)
    to_device, to_host = [], []
    for _ in range(5):
        start = time.perf_counter()
        on_device = jax.device_put(array).block_until_ready()
        to_device.append(time.perf_counter() - start)
        fresh = (on_device + 1).block_until_ready()
        start = time.perf_counter()
        np.asarray(fresh)
        to_host.append(time.perf_counter() - start)
    return {"to device": n_bytes / min(to_device), "to host": n_bytes / min(to_host)}


def latencies(device: Device) -> Found:
    """Seconds of a program that does almost nothing: awaited, and one of many in a queue."""
    x = jnp.ones(())
    run = jax.jit(lambda x: x + 1)
    queued_s = seconds_of(lambda: run(x), tiny=device.tiny)
    awaited_s = seconds_of(lambda: run(x).block_until_ready(), tiny=device.tiny)
    return {"awaited": awaited_s, "queued": queued_s}


def write_measured_chip(device: Device, rates: dict[str, float], bytes_per_s: float) -> None:
    """Write the chip with the rates of `hw measure`; of a CPU, with those alone that are here."""
    if device.platform == "cpu":
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        figures = {f"peak.{name}": rates[name] for name in ("fp32", "bf16")}
        figures |= {"hbm.bandwidth": bytes_per_s, "hbm.capacity": memory_bytes}
        measured = MeasuredRates(n_devices=1, figures=figures)
    else:
        measured = machine.measure(1, lambda stage: report({}, f"measure: {stage}"))
    write_chip(measured, str(device.measured_file))


def measured_bandwidth(device: Device) -> float | None:
    """Bytes per second that reading reached in the stage `measure`; None before it."""
    out = Path(device.out)
    kept = json.loads(out.read_text()) if out.exists() else {}
    stages = kept.get(device.kind, {"stages": {}})["stages"]
    rate: float | None = stages.get("measure", {}).get("read_bytes_per_s")
    return rate
