"""What the stages of `bench/accelerator.py` know of the device: chip, machine and clock."""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import shardwise as sw
from shardwise.hardware import Chip, System, Torus, find_chip
from shardwise.hardware.catalog import is_chip
from shardwise.measure.chip_file import CATALOG_NAMES

N_TRIALS = 5
TRIAL_S = {False: 0.1, True: 0.02}  # seconds of a trial at least; tiny or not
USABLE = 0.93  # of the memory that JAX has: the rest is lost between arrays

Found = dict[str, Any]


class Skipped(Exception):
    """A stage that cannot run here, and why: neither a result nor a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The devices of this machine, which are alike.

    Args:
        kind, platform: as JAX says.
        count: number of devices.
        shape: of the machine's torus of chips; empty if it has none.
        memory_bytes: what JAX can allocate on one; None if it does not say.
        tiny: whether stages run their small shapes.
        out: the JSON of results; the measured chip lies beside it.
    """

    kind: str
    platform: str
    count: int
    shape: tuple[int, ...]
    memory_bytes: int | None
    tiny: bool
    out: str

    @property
    def chip_name(self) -> str:
        """Name in the catalog.

        Raises:
            UnknownName: the catalog does not have the chip.
        """
        return find_chip(CATALOG_NAMES.get(self.kind, self.kind)).name

    @property
    def in_catalog(self) -> bool:
        """Whether the catalog has the chip."""
        return is_chip(CATALOG_NAMES.get(self.kind, self.kind))

    @property
    def n_chips(self) -> int:
        """Number of chips, which have several devices on some TPUs."""
        return math.prod(self.shape) if self.shape else self.count

    @property
    def measured_file(self) -> Path:
        """The chip with measured rates, which the stage `measure` writes."""
        out = Path(self.out)
        name = re.sub(r"[^a-z0-9]+", "-", self.kind.lower())
        return out.parent / f"{out.stem}-{name}.toml"

    def machine(self, *, measured: bool, whole: bool = False) -> System:
        """One chip, or all of this machine, with the memory that JAX has.

        Args:
            measured: at measured rates, else at those of the catalog. A CPU is not in the catalog.
        """
        if self.platform == "cpu":
            measured = True
        if measured and not self.measured_file.exists():
            raise Skipped("needs the rates of the stage measure")
        name = str(self.measured_file) if measured else self.chip_name
        return sw.hardware(f"{name}:{self._size(find_chip(name), whole)}{self._memory(name)}")

    def _size(self, chip: Chip, whole: bool) -> str:
        if chip.ici is None:
            return str(self.count if whole else 1)
        axes = chip.ici.n_axes
        sizes = self.shape[:axes] if whole else (1,) * axes
        return "x".join(str(size) for size in sizes)

    def _memory(self, name: str) -> str:
        if self.memory_bytes is None:
            return ""
        n_bytes = USABLE * self.memory_bytes * (find_chip(name).n_devices or 1)
        return f",hbm={n_bytes / 2**30:.3f}GiB"


def found_device(*, tiny: bool, out: str) -> Device:
    """The devices that JAX has here."""
    from shardwise.runtime.devices import local_devices

    devices = local_devices()
    shape: tuple[int, ...] = ()
    if devices[0].platform == "tpu":
        shape = tuple(1 + max(axis) for axis in zip(*(d.coords for d in devices), strict=True))
    memory = devices[0].memory_stats() or {}
    return Device(
        kind=devices[0].device_kind,
        platform=devices[0].platform,
        count=len(devices),
        shape=shape,
        memory_bytes=memory.get("bytes_limit"),
        tiny=tiny,
        out=out,
    )


def grid(system: System, devices: list[Any]) -> np.ndarray[Any, Any]:
    """The first devices as an array of the machine's shape, as `runtime` takes them."""
    shape: tuple[int, ...] = (1, system.n_chips)
    if isinstance(system.topology, Torus):
        shape = (system.n_slices, *system.topology.shape, system.chip.n_devices or 1)
    found = np.empty(math.prod(shape), dtype=object)
    found[:] = devices[: found.size]
    return found.reshape(shape)


def report(found: Found, what: str) -> None:
    """Say what a stage has done, and hand over the results that it has so far."""
    print(what, file=sys.stderr, flush=True)
    print(json.dumps(found), flush=True)


def seconds_of(call: Callable[[], Any], *, tiny: bool, most: int = 1000) -> float:
    """Median seconds of a call in some trials. Calls of a trial are queued, so that the device does
    not wait for the host: `most` of them, as their results may all be in memory."""
    import jax

    jax.block_until_ready(call())
    start = time.perf_counter()
    jax.block_until_ready(call())
    once_s = time.perf_counter() - start
    n_calls = max(1, min(most, round(TRIAL_S[tiny] / max(once_s, 1e-6))))
    trials = []
    for _ in range(N_TRIALS):
        start = time.perf_counter()
        for _ in range(n_calls):
            result = call()
        jax.block_until_ready(result)
        trials.append((time.perf_counter() - start) / n_calls)
    return statistics.median(trials)
