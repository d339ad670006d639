"""The measured rates of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shardwise import units
from shardwise.hardware.figure import (
    ATTENTION_LENGTHS,
    BETWEEN,
    COLLECTIVES,
    GROUP_SIZES,
    PASSES,
    PRODUCT_DTYPES,
    PRODUCTS,
    TRAINING_DTYPES,
)
from shardwise.measure.rates import MeasuredRates
from shardwise.ops.collective import DISPLAY_NAMES
from shardwise.report.style import Block, labelled, quiet, strong, table
from shardwise.report.words import counted, percent

SHOWN_ROWS = (1, 16, 256)  # of products of serving
BUSY = 0.1  # share of the processors, from which other programs are told
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
    if any(path.startswith("training.") for path in measured.figures):
        yield table(["training", *(f">{dtype}" for dtype in TRAINING_DTYPES)], _training(measured))
        yield labelled(_steps(measured.figures))
    if any(path.startswith("collectives.") for path in measured.figures):
        yield from _collectives(measured.figures)
    if measured.other_load and measured.other_load > BUSY:
        yield (
            f"Other programs used {percent(measured.other_load)} of the processors meanwhile, so "
            "these rates are too low: measure again when the machine is quiet."
        )
    if saved:
        yield quiet(
            f"saved {saved}: type  shardwise plan MODEL ./{saved}:{n_devices} --train "
            "--dtype fp32 --batch NxT -o plan.json"
        )
        if any(path.startswith("serving.") for path in measured.figures):
            yield quiet(
                f"or  shardwise plan MODEL ./{saved}:1 --serve --prompt N --output N --batch 16 "
                "-o plan.json"
            )
    elif saved is not None:
        yield quiet("type  -o host.toml to save the rates for plans")


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
