"""The measured rates of this machine's CPU."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.report.style import Block, labelled, quiet, strong
from shardwise.report.words import counted, percent
from shardwise.train.measure import CpuRates

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
    elif saved is not None:
        yield quiet("type  -o host.toml to save the rates for plans")


def _rows(measured: CpuRates) -> Iterator[tuple[str, str]]:
    for dtype, rate in measured.flops_per_s.items():
        yield f"matmuls, {dtype}", units.show_rate(rate, "FLOP/s")
    yield "memory", units.show_rate(measured.bytes_per_s, "B/s")
    if measured.sent_bytes_per_s and measured.latency_s:
        yield "collectives", units.show_rate(measured.sent_bytes_per_s, "B/s")
        yield "latency", units.show_seconds(measured.latency_s)
