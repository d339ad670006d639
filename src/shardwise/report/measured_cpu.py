"""The measured rates of this machine's CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shardwise import units
from shardwise.hardware.figure import PRODUCT_DTYPES
from shardwise.report.style import Block, labelled, quiet, strong
from shardwise.report.words import counted, percent
from shardwise.train.measure import CpuRates

SHOWN_ROWS = (1, 16, 256)  # of products
BUSY = 0.1  # share of the processors, from which other programs are told


def blocks(measured: CpuRates, saved: str | None) -> Iterator[Block]:
    """The rates of one device, then the next command to type.

    Args:
        saved: the file that holds the rates; empty to suggest saving them, None to suggest nothing.
    """
    n_devices = measured.n_devices
    yield strong(f"This CPU as {counted(n_devices, 'device')}, measured with all of them busy.")
    yield labelled(_rows(measured))
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
        if measured.serving:
            yield quiet(
                f"or  shardwise plan MODEL ./{saved}:1 --serve --prompt N --output N --batch 16 "
                "-o plan.json"
            )
    elif saved is not None:
        yield quiet("type  -o host.toml to save the rates for plans")


def _rows(measured: CpuRates) -> Iterator[tuple[str, str]]:
    for dtype, rate in measured.flops_per_s.items():
        yield f"matmuls, {dtype}", units.show_rate(rate, "FLOP/s")
    yield "memory", units.show_rate(measured.bytes_per_s, "B/s")
    if measured.sent_bytes_per_s and measured.latency_s:
        yield "collectives", units.show_rate(measured.sent_bytes_per_s, "B/s")
        yield "latency", units.show_seconds(measured.latency_s)
    yield from _serving_rows(measured.serving)


def _serving_rows(rates: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """The rates of serving; none if they were not measured."""
    if not rates:
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
