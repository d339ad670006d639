"""Measured rates of this CPU used as N devices (FLOP/s, memory, collectives), to plan runs on it.

All devices work at the same time, as in a training step, so a measured rate is the share of one
device. FLOP/s are those of square matmuls. Every rate is that of the fastest of a few trials.
"""

from __future__ import annotations

import datetime
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwise.errors import BadFile
from shardwise.hardware.figure import FIELDS

MATMUL_DIM = 1024  # rows and columns of both matrices of a matmul
STREAM_NUMBERS = 64 << 20  # fp32 numbers that a device reads and writes: more than caches hold
GATHER_NUMBERS = 1 << 20  # fp32 numbers of each device that an AllGather collects
N_TRIALS = 5
TRIAL_S = 0.2  # a trial repeats the operation for at least this long


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuRates:
    """Rates of one device of a CPU that is used as N devices.

    Args:
        n_devices: number of devices, N.
        flops_per_s: dtype -> FLOP/s of the matmuls that the runtime uses on CPUs.
        bytes_per_s: memory bandwidth, reads plus writes.
        memory_bytes: memory of the machine divided by N.
        sent_bytes_per_s: bytes per second that a device sends in an AllGather over all devices;
            None for one device.
        latency_s: seconds of one of the N-1 steps of an AllGather of almost no data; None for one
            device.
        other_load: share of the processors that other processes used during the measurement; None
            if the system does not tell.
        serving: figures of serving by their names in a chip's file; empty if not measured.
    """

    n_devices: int
    flops_per_s: dict[str, float]
    bytes_per_s: float
    memory_bytes: float
    sent_bytes_per_s: float | None
    latency_s: float | None
    other_load: float | None = None
    serving: Mapping[str, float] = field(default_factory=dict)


def measure(n_devices: int) -> CpuRates:
    """Measure matmuls, memory and collectives on this CPU as N devices; takes some seconds.

    Raises:
        BadInput: JAX has started already, with fewer devices.
    """
    from shardwise.runtime.devices import cpu_devices

    devices = cpu_devices(n_devices)
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from shardwise.runtime.kernels import cpu

    load = _OtherLoad()
    mesh = Mesh(np.array(devices), ("n",))
    spec = PartitionSpec("n")
    sharding = NamedSharding(mesh, spec)

    def ones(shape: tuple[int, ...], dtype: Any) -> Any:
        return jax.jit(lambda: jnp.ones((n_devices, *shape), dtype), out_shardings=sharding)()

    def on_all(local: Callable[..., Any], **options: Any) -> Any:
        return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec), **options)

    flops_per_s = {}
    for name, dtype in (("fp32", jnp.float32), ("bf16", jnp.bfloat16)):
        matrices = ones((MATMUL_DIM, MATMUL_DIM), dtype)
        matmul = on_all(lambda x: cpu.matmul_einsum("nab,bc->nac", x, x[0]))
        flops_per_s[name] = 2 * MATMUL_DIM**3 / _fastest_call(matmul, matrices)
    # The array is updated in place: a first write to new memory would cost page faults as well.
    stream = on_all(lambda x: x + 1, donate_argnums=0)
    numbers = ones((STREAM_NUMBERS,), jnp.float32)
    bytes_per_s = 2 * 4 * STREAM_NUMBERS / _fastest_call(stream, numbers, in_place=True)
    sent_bytes_per_s = None
    latency_s = None
    if n_devices > 1:
        gather = on_all(lambda x: lax.all_gather(x, "n", axis=1, tiled=True).sum(1, keepdims=True))
        empty_s = _fastest_call(gather, ones((1,), jnp.float32))
        gather_s = _fastest_call(gather, ones((GATHER_NUMBERS,), jnp.float32))
        sent_bytes = 4 * GATHER_NUMBERS * (n_devices - 1)
        sent_bytes_per_s = sent_bytes / max(gather_s - empty_s, 1e-9)
        latency_s = empty_s / (n_devices - 1)
    return CpuRates(
        n_devices=n_devices,
        flops_per_s=flops_per_s,
        bytes_per_s=bytes_per_s,
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / n_devices,
        sent_bytes_per_s=sent_bytes_per_s,
        latency_s=latency_s,
        other_load=load.share(),
    )


class _OtherLoad:
    """Measures the processor time of other processes since it was created, on Linux."""

    def __init__(self) -> None:
        self._start = _processor_seconds()

    def share(self) -> float | None:
        """The time of others divided by that of all processors; None if it is unknown."""
        stop = _processor_seconds()
        if self._start is None or stop is None:
            return None
        total_s, busy_s, own_s = (
            now - before for now, before in zip(stop, self._start, strict=True)
        )
        if total_s <= 0:
            return None
        return max(0.0, busy_s - own_s) / total_s


def _processor_seconds() -> tuple[float, float, float] | None:
    """Seconds of all processors since the start: in total, busy, and busy with this process."""
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split()[1:9]]
    except (OSError, ValueError):
        return None
    _, _, _, idle, waiting, *_ = ticks
    per_second = os.sysconf("SC_CLK_TCK")
    total = sum(ticks)
    return total / per_second, (total - idle - waiting) / per_second, time.process_time()


def _fastest_call(function: Callable[[Any], Any], x: Any, *, in_place: bool = False) -> float:
    """Return the mean seconds of a call in the fastest trial.

    With `in_place`, `function` donates its argument, and each call gets the previous result.
    """

    def call() -> None:
        nonlocal x
        result = function(x).block_until_ready()
        if in_place:
            x = result

    call()
    trials = []
    for _ in range(N_TRIALS):
        n_calls = 0
        start = time.perf_counter()
        while (elapsed := time.perf_counter() - start) < TRIAL_S or not n_calls:
            call()
            n_calls += 1
        trials.append(elapsed / n_calls)
    return min(trials)


def as_toml(rates: CpuRates) -> str:
    """Return the rates as a chip file, for `shardwise plan MODEL ./FILE.toml:N`."""
    today = datetime.date.today()
    month = f"{today:%Y-%m}"
    source = f"measured on this machine, {today.isoformat()}"

    def line(key: str, value: str) -> str:
        return f'{key} = {{ value = {value}, source = "{source}", as_of = "{month}" }}'

    def quantity(value: float, unit: str) -> str:
        return f'"{value:.4g} {unit}"'

    n_cores = os.cpu_count() or 1
    lines = [
        'name = "host"',
        f'title = "one of {rates.n_devices} devices of this {platform.machine()} CPU"',
        'vendor = "local"',
        'kind = "cpu"',
        'market = "desktop"',
        f'as_of = "{month}"',
        f'note = "{n_cores} cores as {rates.n_devices} devices, all busy during each measurement."',
        "",
        "[peak]",
        *(line(dtype, quantity(rate, "FLOP/s")) for dtype, rate in rates.flops_per_s.items()),
        "",
        "[hbm]",
        line("capacity", quantity(rates.memory_bytes, "B")),
        line("bandwidth", quantity(rates.bytes_per_s, "B/s")),
    ]
    if rates.sent_bytes_per_s and rates.latency_s:
        lines += [
            "",
            "[node]",
            line("gpus", str(rates.n_devices)),
            line("egress", quantity(rates.sent_bytes_per_s, "B/s")),
            line("latency", quantity(rates.latency_s * 1e6, "us")),
        ]
    group = ""
    for path, rate in rates.serving.items():
        table, _, key = path.partition(".")
        if table != group:
            lines += ["", f"[{table}]"]
            group = table
        unit = FIELDS[path].unit
        lines.append(line(key, quantity(rate * 1e6, "us") if unit == "s" else quantity(rate, unit)))
    return "\n".join(lines) + "\n"


def write_chip(rates: CpuRates, path: str) -> None:
    """Write the rates as a chip file.

    Raises:
        BadFile: the file cannot be written.
    """
    try:
        Path(path).write_text(as_toml(rates), encoding="utf-8")
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror}.") from None
