"""The measurement of a machine: what is timed, and the figures that it becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import jax.numpy as jnp

from shardwise.hardware.figure import TRAINING_DTYPES, unit_of
from shardwise.measure.all_devices import AllDevices
from shardwise.measure.attention import measure_attention
from shardwise.measure.collectives import measure_collectives
from shardwise.measure.elementwise import lookup_bytes_per_s, loss_bytes_per_s, measure_elementwise
from shardwise.measure.fit import Fit
from shardwise.measure.memory import (
    bandwidth_by_size,
    memory_bytes,
    square_flops_per_s,
    stream_bytes_per_s,
)
from shardwise.measure.products import measure_products, product
from shardwise.measure.rates import MeasuredRates
from shardwise.measure.small_step import overheads
from shardwise.measure.timing import Drift, OtherLoad
from shardwise.measure.transfers import measure_transfers
from shardwise.measure.update import update_bytes_per_s
from shardwise.runtime.devices import cpu_devices

REFERENCE_DIM = 256
OnStage = Callable[[str], None]
Found = Iterator[tuple[str, tuple[float, str]]]  # figure -> (its value, how it was found)


def measure(n_devices: int, on_stage: OnStage = lambda stage: None) -> MeasuredRates:
    """Measure what plans of training need, on this CPU as N devices; takes about a minute.

    Args:
        on_stage: receives what is measured now.

    Raises:
        BadInput: JAX has started already, with fewer devices.
    """
    load = OtherLoad()
    devices = AllDevices(cpu_devices(n_devices))
    drift = Drift(reference(devices))
    figures: dict[str, float] = {}
    sources: dict[str, str] = {}
    for stage, part in _parts(devices):
        on_stage(stage)
        drift.sample()
        for path, (value, source) in part():
            if value:
                figures[path] = value
                sources[path] = source
    figures |= fastest(figures)
    on_stage("a small training step")
    rates = MeasuredRates(
        n_devices=n_devices,
        kind=devices.platform,
        figures=figures,
        sources={path: source for path, source in sources.items() if source},
    )
    rates = rates.with_figures(overheads(rates, devices))
    drift.sample()
    return replace(rates, other_load=load.share(), drift=drift.share)


def reference(devices: AllDevices) -> Callable[[], object]:
    """A product on all devices that is timed from time to time: the speed of the machine."""
    arrays = [((REFERENCE_DIM, REFERENCE_DIM), jnp.float32)] * 2
    return devices.call(product(devices.platform), arrays)


def fastest(figures: Mapping[str, float]) -> dict[str, float]:
    """The peak of each dtype: the rate of its fastest products, of any shape."""
    return {
        f"peak.{dtype}": max(
            rate
            for path, rate in figures.items()
            if path == f"peak.{dtype}"
            or (path.startswith(f"training.{dtype}_") and unit_of(path) == "FLOP/s")
        )
        for dtype in TRAINING_DTYPES
    }


def _parts(devices: AllDevices) -> Iterator[tuple[str, Callable[[], Found]]]:
    """What is measured, and how."""
    yield "memory", partial(_memory, devices)
    for dtype in TRAINING_DTYPES:
        yield f"products in {dtype}", partial(_products, devices, dtype)
        yield f"work between products in {dtype}", partial(_between, devices, dtype)
    yield "copies, disk and loader", partial(_transfers, devices)
    yield "loss and update", partial(_outside_layers, devices)
    if devices.n > 1:
        yield "collectives", partial(_collectives, devices)


def _products(devices: AllDevices, dtype: str) -> Found:
    for kind, fit in measure_products(devices, dtype).items():
        name = f"training.{dtype}_{kind}"
        flop_s, byte_s, start_s = fit.seconds_per
        yield name, (_rate(flop_s), fit.source)
        yield f"{name}_bytes", (_rate(byte_s), fit.source)
        yield f"{name}_start", (start_s, fit.source)


def _memory(devices: AllDevices) -> Found:
    for dtype in TRAINING_DTYPES:
        yield f"peak.{dtype}", (square_flops_per_s(devices, dtype), "")
    yield "hbm.capacity", (memory_bytes(devices), "")
    yield "hbm.bandwidth", (stream_bytes_per_s(devices), "")
    for key, rate in bandwidth_by_size(devices).items():
        yield f"memory.{key}", (rate, "")


def _transfers(devices: AllDevices) -> Found:
    for key, figure in measure_transfers(devices):
        yield f"transfers.{key}", figure


def _between(devices: AllDevices, dtype: str) -> Found:
    for key, rate in measure_elementwise(devices, dtype).items():
        yield f"training.{dtype}_{key}", (rate, "")
    for key, rate in measure_attention(devices, dtype).items():
        yield f"training.{dtype}_attention_{key}", (rate, "")


def _outside_layers(devices: AllDevices) -> Found:
    yield "training.loss", (loss_bytes_per_s(devices), "")
    yield "training.lookup", (lookup_bytes_per_s(devices), "")
    yield "training.update", (update_bytes_per_s(devices), "")


def _collectives(devices: AllDevices) -> Found:
    """Each kind; the links between the devices have the rate of the AllGather of all."""
    fits = measure_collectives(devices)
    for key, fit in fits.items():
        yield f"collectives.{key}", (_rate(fit.seconds_per[1]), fit.source)
        yield f"collectives.{key}_start", (fit.seconds_per[0], fit.source)
    yield from _links(devices.n, fits)


def _links(n_devices: int, fits: Mapping[str, Fit]) -> Found:
    """The node of all devices, for what has no figure of its own."""
    largest = max(int(key.rpartition("_")[2]) for key in fits)
    start_s, byte_s = fits[f"all_gather_{largest}"].seconds_per
    yield "node.gpus", (n_devices, "")
    yield "node.egress", (_rate(byte_s) * (largest - 1) / largest, "")
    yield "node.latency", (max(start_s, 1e-7) / (largest - 1), "")


def _rate(seconds_per: float) -> float:
    """Units a second; 0 of what takes no time."""
    return 1 / seconds_per if seconds_per else 0.0
