"""Stage `layouts` of `bench/accelerator.py`: planned beside measured steps, at measured rates.

What a plan knows of the device is what the stage `measure` found; nothing else is tuned.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, NamedTuple

from accelerator_device import Device, Found
from accelerator_train import timed

import shardwise as sw
from shardwise.errors import ShardwiseError
from shardwise.runtime.compile_cache import kept_programs
from shardwise.runtime.devices import local_devices

BUDGET_S = 400.0  # after which no configuration is begun
STEPS = 8
SHAPES = {
    "wide": {"n_layers": 4, "d_model": 2048, "d_ff": 8192, "n_heads": 16, "vocab": 32768},
    "narrow": {"n_layers": 12, "d_model": 1024, "d_ff": 4096, "n_heads": 8, "vocab": 32768},
}
TINY = {
    "wide": {"n_layers": 2, "d_model": 64, "d_ff": 256, "n_heads": 2, "vocab": 256},
    "narrow": {"n_layers": 3, "d_model": 32, "d_ff": 128, "n_heads": 2, "vocab": 256},
}
SHORTER = 64  # sequences of tiny configurations are so many times shorter


class Configuration(NamedTuple):
    """A shape, its job, and what the search has to keep."""

    shape: str
    batch: int
    seq: int
    fixed: dict[str, Any]
    whole: bool = False  # whether it has all devices, or one

    @property
    def name(self) -> str:
        kept = " ".join(f"{key} {value}" for key, value in self.fixed.items())
        return f"{self.shape} {self.batch}x{self.seq} {kept}"


def on_one(shape: str, batch: int, seq: int, remat: str, n: int) -> Configuration:
    """A configuration for one device: a remat policy, and a number of microbatches."""
    return Configuration(shape, batch, seq, {"remat": remat, "n_microbatches": n})


ON_ONE = [
    on_one("wide", 8, 2048, "none", 1),
    on_one("wide", 8, 2048, "dots", 1),
    on_one("wide", 8, 2048, "full", 1),
    on_one("wide", 8, 2048, "none", 4),
    on_one("wide", 8, 2048, "dots", 4),
    on_one("wide", 8, 2048, "full", 4),
    on_one("wide", 4, 4096, "none", 1),
    on_one("wide", 4, 4096, "full", 1),
    on_one("narrow", 8, 2048, "none", 1),
    on_one("narrow", 8, 2048, "full", 1),
    on_one("narrow", 16, 1024, "none", 1),
    on_one("narrow", 16, 1024, "dots", 2),
]


def on_all(n: int) -> list[Configuration]:
    """Configurations for all of several devices."""
    if n == 1:
        return []
    meshes = [{"fsdp": n}, {"tensor": n}]
    if n > 2:
        meshes.append({"fsdp": n // 2, "tensor": 2})
    return [Configuration("wide", 8 * n, 2048, mesh | {"remat": "none"}, True) for mesh in meshes]


@kept_programs()
def layouts(device: Device) -> Found:
    """Every configuration, as long as time is left, and the median error of their plans."""
    end = time.perf_counter() + BUDGET_S
    rows: list[Found] = []
    left_out = []
    for configuration in ON_ONE[:2] if device.tiny else ON_ONE + on_all(device.n_chips):
        if time.perf_counter() > end:
            left_out.append(configuration.name)
            continue
        rows.append({"name": configuration.name, **row(configuration, device)})
    ratios = [one["ratio"] for one in rows if "ratio" in one]
    if not ratios:
        raise RuntimeError(f"no configuration ran: {rows[0]['error']}")
    errors = [abs(ratio - 1) for ratio in ratios]
    return {"rows": rows, "median_error": statistics.median(errors), "left_out": left_out}


def row(configuration: Configuration, device: Device) -> Found:
    """Planned and measured seconds of a step, or why there are none."""
    shape, batch, seq, fixed, whole = configuration
    if device.tiny:
        seq //= SHORTER
    sizes = (TINY if device.tiny else SHAPES)[shape]
    model = sw.ModelConfig.dense(name=shape, n_kv_heads=sizes["n_heads"], **sizes)
    try:
        system = device.machine(measured=True, whole=whole)
        plan = sw.plan(model, system, sw.Train(batch=batch, seq=seq), fixed)
        found = timed(plan, local_devices(), STEPS)
    except (ShardwiseError, RuntimeError) as error:  # RuntimeError: JAX's, as out of memory
        return {"error": str(error).splitlines()[0][:200]}
    planned_s = plan.step.expected
    return {"planned_s": planned_s, "ratio": planned_s / found["step_s"], **found}
