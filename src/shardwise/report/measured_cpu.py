"""This machine's CPU as it was measured."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.report.style import Block, labelled, quiet, strong
from shardwise.train.measure import CpuRates


def blocks(found: CpuRates, saved: str | None) -> Iterator[Block]:
    """What one device does, and what to plan next; `saved` is None where nothing comes next."""
    yield strong(f"This CPU as {found.n_devices} devices; all worked while each was measured.")
    yield labelled(_rows(found))
    if saved:
        yield quiet(
            f"saved {saved}: type  shardwise plan MODEL ./{saved}:{found.n_devices} --train "
            "--dtype fp32 --batch NxT -o plan.json"
        )
    elif saved is not None:
        yield quiet("type  -o host.toml keeps it, to plan with")


def _rows(found: CpuRates) -> Iterator[tuple[str, str]]:
    for dtype, rate in found.flops_per_s.items():
        yield f"products, {dtype}", units.show_rate(rate, "FLOP/s")
    yield "memory", units.show_rate(found.bytes_per_s, "B/s")
    if found.sent_bytes_per_s and found.latency_s:
        yield "collectives", units.show_rate(found.sent_bytes_per_s, "B/s")
        yield "a step of one", units.show_seconds(found.latency_s)
