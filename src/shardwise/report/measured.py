"""The measured rates of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shardwise import units
from shardwise.hardware.figure import (
    ATTENTION_LENGTHS,
    BETWEEN,
    COLLECTIVES,
    GROUP_SIZES,
    MEMORY_KIB,
    MEMORY_STREAMS,
    PASSES,
    PRODUCT_DTYPES,
    PRODUCTS,
    TRAINING_DTYPES,
    memory_key,
)
from shardwise.measure.rates import BUSY, DRIFT, MeasuredRates
from shardwise.ops.collective import DISPLAY_NAMES
from shardwise.report.style import Block, labelled, quiet, strong, table
from shardwise.report.tables import DASH
from shardwise.report.words import counted, percent

STARTS = {"put": "an array", "get": "an array", "loader": "a sequence"}
SHOWN_ROWS = (1, 16, 256)  # of products of serving
PRODUCT_NAMES = {"forward": "products", "input": "gradients of inputs", "weight": "of weights"}
BETWEEN_NAMES = {"D": "norms, residuals", "heads": "rotary positions", "F": "gates"}


def blocks(measured: MeasuredRates, saved: str | None) -> Iterator[Block]:
    """The rates of one device, then the next command to type.

    Args:
        saved: the file that holds the rates; empty to suggest saving them, None to suggest nothing.
    """
    n_devices = measured.n_devices
    devices = f"This {measured.kind.upper()} as {counted(n_devices, 'device')}"
    if measured.kind != "cpu":
        devices = f"{counted(n_devices, measured.kind.upper())} of this machine"
    yield strong(f"{devices}, measured with all of them busy.")
    yield labelled(_rows(measured.figures))
    if any(path.startswith("memory.") for path in measured.figures):
        yield table(["memory", *(f">of {_size(kib)}" for kib in MEMORY_KIB)], _memory(measured))
    if any(path.startswith("transfers.") for path in measured.figures):
        yield labelled(_transfers(measured.figures))
    if any(path.startswith("training.") for path in measured.figures):
        yield table(["training", *(f">{dtype}" for dtype in TRAINING_DTYPES)], _training(measured))
        yield labelled(_steps(measured.figures))
    if any(path.startswith("collectives.") for path in measured.figures):
        yield from _collectives(measured.figures)
    if measured.is_busy:
        yield _warning(measured)
    if saved:
        yield quiet(
            f"saved {saved}: type  shardwise plan MODEL {saved}:{n_devices} --train "
            f"{'--dtype fp32 ' * (measured.kind == 'cpu')}--batch NxT -o plan.json"
        )
        if any(path.startswith("serving.") for path in measured.figures):
            yield quiet(
                f"or  shardwise plan MODEL {saved}:1 --serve --prompt N --output N --batch 16 "
                "-o plan.json"
            )
    elif saved is not None:
        yield quiet("type  -o host.toml to save the rates for plans")


def _warning(measured: MeasuredRates) -> str:
    """Why the rates are not those of a quiet machine."""
    reasons = []
    if measured.other_load and measured.other_load > BUSY:
        reasons.append(f"other programs used {percent(measured.other_load)} of the processors")
    if measured.drift > DRIFT:
        reasons.append(
            f"the same product was at times {percent(measured.drift)} slower than at others"
        )
    return (
        f"The machine was busy: {' and '.join(reasons)}. These rates are means over its moments: "
        "measure again when it is quiet."
    )


def _size(kib: int) -> str:
    return units.show_gib(kib * units.KiB, 3)


def _memory(measured: MeasuredRates) -> Iterator[list[str]]:
    """Bandwidth by the number and size of the arrays that are read; the first is written too."""
    for n in MEMORY_STREAMS:
        rates = (measured.figures.get(f"memory.{memory_key(kib, n)}") for kib in MEMORY_KIB)
        cells = [units.show_rate(rate, "B/s") if rate else DASH for rate in rates]
        yield [f"  {counted(n, 'array')}", *cells]


def _transfers(rates: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Copies between host and devices, the disk, the loader of the trainer, dispatch."""
    names = {"put": "to devices", "get": "from devices", "loader": "loader"}
    for key, name in names.items():
        rate = rates.get(f"transfers.{key}")
        start_s = rates.get(f"transfers.{key}_start", 0.0)
        start = f", {units.show_seconds(start_s)} {STARTS[key]}" if start_s else ""
        if rate:
            yield name, f"{units.show_rate(rate, 'B/s')}{start}"
    disk = [
        f"{verb} {units.show_rate(rates[f'transfers.disk_{verb}'], 'B/s')}"
        for verb in ("read", "write")
        if f"transfers.disk_{verb}" in rates
    ]
    if disk:
        yield "disk", ", ".join(disk)
    if "transfers.dispatch" in rates:
        yield "dispatch", f"{units.show_seconds(rates['transfers.dispatch'])} a program"


def _rows(rates: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    for dtype in TRAINING_DTYPES:
        if f"peak.{dtype}" in rates:
            yield f"matmuls, {dtype}", units.show_rate(rates[f"peak.{dtype}"], "FLOP/s")
    yield "memory", units.show_rate(rates["hbm.bandwidth"], "B/s")
    if "node.egress" in rates:
        yield "links", units.show_rate(rates["node.egress"], "B/s")
        yield "latency", units.show_seconds(rates["node.latency"])
    yield from _serving_rows(rates)


def _training(measured: MeasuredRates) -> Iterator[list[str]]:
    """Rates of training by dtype; those of attention by the length of sequences."""

    def row(name: str, key: str, unit: str) -> list[str]:
        values = (measured.figures.get(f"training.{dtype}_{key}") for dtype in TRAINING_DTYPES)
        return [name, *(units.show_rate(value, unit) if value else "-" for value in values)]

    for kind in PRODUCTS:
        yield row(PRODUCT_NAMES[kind], kind, "FLOP/s")
    if "training.bf16_experts_forward" in measured.figures:
        for kind in PRODUCTS:
            yield row(f"{PRODUCT_NAMES[kind]}, experts", f"experts_{kind}", "FLOP/s")
    for length in ATTENTION_LENGTHS:
        for phase in PASSES:
            name = f"attention, {length} tokens"
            name = name if phase == "forward" else "  backward"
            yield row(name, f"attention_{phase}_{length}", "FLOP/s")
    for width in BETWEEN:
        for phase in PASSES:
            name = BETWEEN_NAMES[width] if phase == "forward" else "  backward"
            yield row(name, f"{width}_{phase}", "B/s")


def _steps(rates: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Rates of training of what has no dtype."""
    yield "loss", f"{units.show_rate(rates['training.loss'], 'B/s')} of logits"
    yield "embedding", f"{units.show_rate(rates['training.lookup'], 'B/s')} of lookups"
    yield "update", f"{units.show_rate(rates['training.update'], 'B/s')} of weights and state"
    shown = (units.show_seconds(rates[f"training.{name}"]) for name in ("step", "layer"))
    yield "beside these", "{} a step, {} a layer".format(*shown)


def _collectives(rates: Mapping[str, float]) -> Iterator[Block]:
    """Bytes per second of each kind by the size of groups, and the seconds of none."""
    sizes = [size for size in GROUP_SIZES if f"collectives.all_gather_{size}_start" in rates]

    def cell(kind: str, size: int) -> str:
        rate = rates.get(f"collectives.{kind}_{size}")
        start_s = rates.get(f"collectives.{kind}_{size}_start", 0.0)
        shown = units.show_rate(rate, "B/s") if rate else "-"
        return f"{shown}, {units.show_seconds(start_s)}"

    rows = ([DISPLAY_NAMES[kind], *(cell(kind, size) for size in sizes)] for kind in COLLECTIVES)
    yield table(["collective", *(f">of {size}" for size in sizes)], rows)


def _serving_rows(rates: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """The rates of serving; none if they were not measured."""
    if "serving.keys" not in rates:
        return
    for dtype in PRODUCT_DTYPES:
        shown = [units.show_rate(rates[f"products.{dtype}_{n}"], "FLOP/s") for n in SHOWN_ROWS]
        counts = ", ".join(str(n) for n in SHOWN_ROWS)
        yield f"serving, {dtype}", f"{', '.join(shown)} with {counts} rows"
    keys, keys_bf16 = (
        units.show_rate(rates[name], "B/s") for name in ("serving.keys", "serving.keys_bf16")
    )
    yield "keys", f"{keys} of cached keys and values in fp32, {keys_bf16} in bf16"
    parts = [
        f"{units.show_seconds(rates[f'serving.{name}'])} a {name}"
        for name in ("request", "pass", "sequence", "layer")
    ]
    yield "server", ", ".join(parts)
