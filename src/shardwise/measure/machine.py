"""The measurement of a machine: what is timed, and the figures that it becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain

import jax.numpy as jnp

from shardwise.hardware.figure import MEMORY_KIB, TRAINING_DTYPES, unit_of
from shardwise.measure.all_devices import AllDevices, Program
from shardwise.measure.attention import measure_attention
from shardwise.measure.collectives import measure_collectives
from shardwise.measure.elementwise import lookup_bytes_per_s, loss_bytes_per_s, measure_elementwise
from shardwise.measure.experts import measure_experts
from shardwise.measure.fit import Figures, Fit, rate_and_start
from shardwise.measure.memory import (
    bandwidth_by_size,
    memory_bytes,
    square_flops_per_s,
    stream_bytes_per_s,
)
from shardwise.measure.products import measure_products, product
from shardwise.measure.rates import MeasuredRates
from shardwise.measure.serving.rates import measure_rates
from shardwise.measure.serving.server import measure_server
from shardwise.measure.sizes import sizes_of
from shardwise.measure.small_step import measure_steps, overheads
from shardwise.measure.timing import Call, OtherLoad, Part, take_turns
from shardwise.measure.transfers import (
    measure_copies,
    measure_disk,
    measure_dispatch,
    measure_loader,
)
from shardwise.measure.update import update_bytes_per_s
from shardwise.runtime.devices import devices_or_cpu


def measure(
    n_devices: int,
    on_stage: Callable[[str], None] = lambda stage: None,
    *,
    serving: bool = False,
) -> MeasuredRates:
    """Measure what plans need, on N devices of this machine, or its CPU as N devices.

    It takes about a minute.

    Args:
        on_stage: receives what is measured now.
        serving: whether plans of serving need it, too; on a single device of a CPU.

    Raises:
        BadInput: there are fewer devices.
        MissingExtra: a package that serving needs is not installed.
    """
    load = OtherLoad()
    devices = AllDevices(devices_or_cpu(n_devices))
    parts = [measure_steps(devices), *_parts(devices)]
    serving = serving and devices.n == 1 and devices.platform == "cpu"
    if serving:
        parts += [_all("", part) for part in measure_rates()]
    turns = take_turns(parts, reference(devices), on_stage)
    steps_s, *found = turns.results
    on_stage("disk")
    figures: dict[str, float] = {"hbm.capacity": memory_bytes(devices)}
    sources: dict[str, str] = {}
    for path, (value, source) in chain(*found, measure_disk()):
        if value:
            figures[path] = value
            sources[path] = source
    if serving:
        on_stage("a server of a tiny model")
        figures |= measure_server()
    rates = MeasuredRates(
        n_devices=n_devices,
        kind=devices.platform,
        device_kind=devices.devices[0].device_kind,
        figures=figures | fastest(figures) | fastest_stream(figures),
        sources={path: source for path, source in sources.items() if source},
        other_load=load.share(),
        drift=turns.drift,
    )
    return rates.with_figures(overheads(rates, steps_s))


def reference(devices: AllDevices) -> Call:
    """A product on all devices that is timed in each round: the speed of the machine."""
    dim = sizes_of(devices.platform).reference
    arrays = [((dim, dim), jnp.float32)] * 2
    return devices.prepared(Program(product(devices.platform), arrays), {})()


def fastest(figures: Mapping[str, float]) -> dict[str, float]:
    """The peak of each dtype: the rate of its fastest products, of any shape.

    Those of 8-bit weights are computed in bf16.

    >>> fastest({"peak.fp32": 2.0, "peak.bf16": 3.0, "products.int8_512": 5.0})
    {'peak.fp32': 2.0, 'peak.bf16': 5.0}
    """
    peaks = {}
    for dtype in TRAINING_DTYPES:
        prefixes = [f"peak.{dtype}", f"training.{dtype}_", f"products.{dtype}_"]
        prefixes += ["products.int8_"] * (dtype == "bf16")
        peaks[f"peak.{dtype}"] = max(
            rate
            for path, rate in figures.items()
            if path.startswith(tuple(prefixes)) and unit_of(path) == "FLOP/s"
        )
    return peaks


def fastest_stream(figures: Mapping[str, float]) -> dict[str, float]:
    """The memory bandwidth: the best of the arrays that are larger than caches.

    >>> fastest_stream({"hbm.bandwidth": 3.0, "memory.65536KiB_1": 5.0, "memory.64KiB_1": 9.0})
    {'hbm.bandwidth': 5.0}
    """
    large = f"memory.{MEMORY_KIB[-1]}KiB_"
    names = [path for path in figures if path == "hbm.bandwidth" or path.startswith(large)]
    return {"hbm.bandwidth": max(figures[path] for path in names)}


def _parts(devices: AllDevices) -> Iterator[Part[Figures]]:
    """What is measured in turns."""
    yield _one("hbm.bandwidth", stream_bytes_per_s(devices))
    if devices.platform == "cpu":  # elsewhere what is measured is larger than caches
        yield _all("memory.", bandwidth_by_size(devices))
    for dtype in TRAINING_DTYPES:
        yield _one(f"peak.{dtype}", square_flops_per_s(devices, dtype))
        yield _products(devices, dtype)
        yield _all(f"training.{dtype}_", measure_elementwise(devices, dtype))
        yield _all(f"training.{dtype}_attention_", measure_attention(devices, dtype))
    yield _all("training.bf16_experts_", measure_experts(devices))
    yield _one("training.loss", loss_bytes_per_s(devices))
    yield _one("training.lookup", lookup_bytes_per_s(devices))
    yield _one("training.update", update_bytes_per_s(devices))
    yield measure_dispatch(devices)
    yield measure_copies(devices, to_host=False)
    yield measure_copies(devices, to_host=True)
    yield measure_loader()
    if devices.n > 1:
        yield _collectives(devices)


def _one(path: str, part: Part[float]) -> Part[Figures]:
    value = yield from part
    return iter([(path, (value, ""))])


def _all(prefix: str, part: Part[dict[str, float]]) -> Part[Figures]:
    values = yield from part
    return ((f"{prefix}{key}", (value, "")) for key, value in values.items())


def _products(devices: AllDevices, dtype: str) -> Part[Figures]:
    fits = yield from measure_products(devices, dtype)
    return chain(*(_fitted_product(f"training.{dtype}_{kind}", fit) for kind, fit in fits.items()))


def _fitted_product(name: str, fit: Fit) -> Figures:
    flop_s, byte_s, start_s = fit.seconds_per
    yield name, (_rate(flop_s), fit.source)
    yield f"{name}_bytes", (_rate(byte_s), fit.source)
    yield f"{name}_start", (start_s, fit.source)


def _collectives(devices: AllDevices) -> Part[Figures]:
    """Each kind; the links between the devices have the rate of the AllGather of all."""
    fits = yield from measure_collectives(devices)
    kinds = (rate_and_start(f"collectives.{key}", fit) for key, fit in fits.items())
    return chain(*kinds, _links(devices.n, fits))


def _links(n_devices: int, fits: Mapping[str, Fit]) -> Figures:
    """The node of all devices, for what has no figure of its own."""
    largest = max(int(key.rpartition("_")[2]) for key in fits)
    start_s, byte_s = fits[f"all_gather_{largest}"].seconds_per
    yield "node.gpus", (n_devices, "")
    yield "node.egress", (_rate(byte_s) * (largest - 1) / largest, "")
    yield "node.latency", (max(start_s, 1e-7) / (largest - 1), "")


def _rate(seconds_per: float) -> float:
    """Units a second; 0 of what takes no time."""
    return 1 / seconds_per if seconds_per else 0.0
