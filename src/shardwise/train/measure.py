"""This CPU as a chip: what one of N devices of it does a second, measured, for planning runs on it.

All devices work at once, as they do in a step, so that a figure is a device's share of the machine.
A product is [n,n] by [n,n]; the best of a few tries counts, as a peak does.
"""

from __future__ import annotations

import datetime
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.errors import BadFile

SIZE = 1024  # of a product's dims
STREAM = 64 << 20  # fp32 numbers that a device reads and writes: more than caches hold
SENT = 1 << 20  # fp32 numbers that an AllGather joins, per device
TRIES, BUSY_S = 5, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Figures of one device of a CPU that is N devices.

    Args:
        flops_per_s: by dtype, of products as the runtime computes them.
        bytes_per_s: of memory, read and written.
        sent_bytes_per_s: one way, in an AllGather among all devices.
        latency_s: of a collective with next to no data.
    """

    n_devices: int
    flops_per_s: dict[str, float]
    bytes_per_s: float
    memory_bytes: float
    sent_bytes_per_s: float | None
    latency_s: float | None


def measure(n_devices: int) -> Measured:
    """Some seconds of products, copies and collectives on this CPU as n devices.

    Raises:
        BadInput: JAX has started with fewer devices.
    """
    from shardwise.train.devices import cpu_devices

    devices = cpu_devices(n_devices)
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from shardwise.runtime.kernels import cpu

    mesh = Mesh(np.array(devices), ("n",))
    cut = NamedSharding(mesh, PartitionSpec("n"))

    def ones(shape: tuple[int, ...], dtype: Any) -> Any:
        return jax.jit(lambda: jnp.ones((n_devices, *shape), dtype), out_shardings=cut)()

    def spread(local: Callable[..., Any], **how: Any) -> Any:
        specs = PartitionSpec("n")
        return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=specs), **how)

    products = {}
    for name, dtype in (("fp32", jnp.float32), ("bf16", jnp.bfloat16)):
        x = ones((SIZE, SIZE), dtype)
        product = spread(lambda x: cpu.matmul_einsum("nab,bc->nac", x, x[0]))
        products[name] = 2 * SIZE**3 / _best(product, x)
    # In place: memory that is new to the process costs more than to write it, once.
    stream = spread(lambda x: x + 1, donate_argnums=0)
    took = _best(stream, ones((STREAM,), jnp.float32), fed=True)
    bytes_per_s = 2 * 4 * STREAM / took
    sent = latency = None
    if n_devices > 1:
        gather = spread(lambda x: lax.all_gather(x, "n", axis=1, tiled=True).sum(1, keepdims=True))
        latency = _best(gather, ones((1,), jnp.float32))
        took = _best(gather, ones((SENT,), jnp.float32))
        sent = 4 * SENT * (n_devices - 1) / max(took - latency, 1e-9)
        latency /= n_devices - 1
    return Measured(
        n_devices=n_devices,
        flops_per_s=products,
        bytes_per_s=bytes_per_s,
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / n_devices,
        sent_bytes_per_s=sent,
        latency_s=latency,
    )


def _best(function: Callable[[Any], Any], x: Any, *, fed: bool = False) -> float:
    """Seconds of a call, the least of some tries; `fed` what the call before it gave."""

    def call() -> None:
        nonlocal x
        found = function(x).block_until_ready()
        x = found if fed else x

    call()
    took = []
    for _ in range(TRIES):
        n, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < BUSY_S or not n:
            call()
            n += 1
        took.append(spent / n)
    return min(took)


def as_toml(found: Measured) -> str:
    """The chip as a file that `shardwise plan MODEL ./FILE.toml:N` reads."""
    now = datetime.date.today()
    month, n = f"{now:%Y-%m}", found.n_devices
    source = f"measured on this machine, {now.isoformat()}"

    def line(key: str, value: str) -> str:
        return f'{key} = {{ value = {value}, source = "{source}", as_of = "{month}" }}'

    def rate(value: float, unit: str) -> str:
        return f'"{value:.4g} {unit}"'

    cores = os.cpu_count() or 1
    lines = [
        'name = "host"',
        f'title = "one of {n} devices of this {platform.machine()} CPU"',
        'vendor = "local"',
        'kind = "cpu"',
        'market = "desktop"',
        f'as_of = "{month}"',
        f'note = "{cores} cores as {n} devices, all of which worked while each was measured."',
        "",
        "[peak]",
        *(line(d, rate(v, "FLOP/s")) for d, v in found.flops_per_s.items()),
        "",
        "[hbm]",
        line("capacity", rate(found.memory_bytes, "B")),
        line("bandwidth", rate(found.bytes_per_s, "B/s")),
    ]
    if found.sent_bytes_per_s and found.latency_s:
        lines += [
            "",
            "[node]",
            line("gpus", str(n)),
            line("egress", rate(found.sent_bytes_per_s, "B/s")),
            line("latency", f'"{found.latency_s * 1e6:.4g} us"'),
        ]
    return "\n".join(lines) + "\n"


def write_chip(found: Measured, path: str) -> None:
    """Write the chip's file.

    Raises:
        BadFile: it cannot be written.
    """
    try:
        Path(path).write_text(as_toml(found), encoding="utf-8")
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror}.") from None
