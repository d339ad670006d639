"""Chips: the list, the figures of a chip with sources, two chips compared, slices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from shardwise import units
from shardwise.hardware import MARKETS, Chip, Difference, Figure, Torus, show_shape, show_value
from shardwise.hardware.figure import Value
from shardwise.report.style import Block, labelled, quiet, strong, table
from shardwise.report.words import chips

MAX_SLICES = 40  # on a screen


def list_document(listed: Sequence[Chip]) -> list[dict[str, Any]]:
    """The figures that the list shows, for each chip."""
    return [
        {
            "name": chip.name,
            "title": chip.title,
            "kind": chip.kind,
            "market": chip.market,
            "as_of": chip.as_of,
            "peak_flops_per_s": dict(chip.peak_flops_per_s),
            "hbm_bytes": chip.hbm_bytes,
            "hbm_bytes_per_s": chip.hbm_bytes_per_s,
            "links": _links(chip),
            "usd_per_chip_hour": chip.usd_per_chip_hour,
        }
        for chip in listed
    ]


def list_blocks(listed: Sequence[Chip]) -> Iterator[Block]:
    """One line per chip, by market, vendor and name."""
    rows: list[list[str]] = []
    for market in MARKETS:
        members = [chip for chip in listed if chip.market == market]
        if members:
            rows += [[], [f"{market}s"]]
        members.sort(key=lambda chip: (chip.vendor, chip.name))
        rows += map(_row, members)
    yield table(["chip", ">16-bit, dense", ">memory", ">bandwidth", "links", ">price"], rows)
    yield quiet("empty: no public figure  ·  shardwise hw CHIP shows every source")


def _row(chip: Chip) -> list[str]:
    peaks = chip.peak_flops_per_s
    return [
        chip.name,
        _figure_text(peaks.get("bf16", peaks.get("fp16")), "FLOP/s"),
        _figure_text(chip.hbm_bytes, "B"),
        _figure_text(chip.hbm_bytes_per_s, "B/s"),
        _links(chip),
        _figure_text(chip.usd_per_chip_hour, "USD/h"),
    ]


def _figure_text(value: Value | None, unit: str) -> str:
    return "" if value is None else show_value(value, unit)


def _links(chip: Chip) -> str:
    if chip.ici:
        pod = f", {show_shape(chip.ici.pod_shape)}" if chip.ici.pod_shape else ""
        return f"{chip.ici.n_axes}D torus{pod}"
    if chip.node is None or chip.node.n_gpus == 1:
        return ""
    egress = chip.node.bytes_per_s_per_gpu_one_way
    pcie = chip.pcie_bytes_per_s_per_chip
    link = "PCIe" if egress and pcie and egress <= pcie else "links"
    return f"{link}, {chip.node.n_gpus} a node"


def chip_document(chip: Chip) -> dict[str, Any]:
    """A chip with every figure, its source, and other published values."""
    return {
        "name": chip.name,
        "title": chip.title,
        "vendor": chip.vendor,
        "kind": chip.kind,
        "market": chip.market,
        "aliases": chip.aliases,
        "as_of": chip.as_of,
        "note": chip.note,
        "figures": {
            name: {
                "value": figure.value,
                "unit": figure.unit,
                "source": figure.source,
                "as_of": figure.as_of,
                "confirmed": figure.confirmed,
                "note": figure.note,
                "also": [{"value": value, "source": source} for value, source in figure.also],
            }
            for name, figure in chip.figures.items()
        },
    }


def chip_blocks(chip: Chip) -> Iterator[Block]:
    """Every figure with its unit, source and date, then other published values."""
    aliases = f" ({', '.join(chip.aliases)})" if chip.aliases else ""
    yield strong(f"{chip.name}: {chip.title}{aliases}. Figures as of {chip.as_of}.")
    if chip.note:
        yield chip.note
    sources: dict[str, int] = {}
    rows: list[list[str]] = []
    for name, figure in chip.figures.items():
        rows += _figure_rows(name, figure, sources)
    if rows:
        yield table(["!figure", ">value", "!source", "note"], rows)
        yield labelled((f"[{number}]", source) for source, number in sources.items())
    machine = f"{chip.name} --slices" if chip.ici else f"{chip.name}:{chip.chips_per_host or 1}"
    yield quiet(f"type  shardwise hw {machine}")


def _figure_rows(name: str, figure: Figure, sources: dict[str, int]) -> Iterator[list[str]]:
    """The figure and other published values; numbers new sources in `sources`."""

    def number(source: str) -> str:
        return f"[{sources.setdefault(source, len(sources) + 1)}]"

    date = f", {figure.as_of}" if figure.as_of else ""
    note = figure.note if figure.confirmed else f"not confirmed. {figure.note}"
    yield [name, str(figure), number(f"{figure.source}{date}"), note]
    for value, source in figure.also:
        yield ["", show_value(value, figure.unit), number(source), "also published"]


def diff_blocks(a: Chip, b: Chip, rows: Sequence[Difference]) -> Iterator[Block]:
    """The figures in which two chips differ."""
    yield strong(f"{b.name} against {a.name}: {len(rows)} figures differ.")
    yield table(
        ["!figure", f">{a.name}", f">{b.name}", f">{b.name} / {a.name}"],
        [
            [
                row.figure,
                _figure_text(row.a, row.unit),
                _figure_text(row.b, row.unit),
                "" if row.ratio is None else f"×{units.significant(row.ratio)}",
            ]
            for row in rows
        ],
    )


def slices_document(chip: Chip, slices: Sequence[Torus]) -> dict[str, Any]:
    """The slices of a chip as a JSON document."""
    return {
        "chip": chip.name,
        "slices": [
            {
                "shape": torus.shape,
                "n_chips": torus.n_chips,
                "n_hosts": hosts(chip, torus.n_chips),
                "wrapped": torus.wrapped,
            }
            for torus in slices
        ],
    }


def slices_blocks(chip: Chip, slices: Sequence[Torus]) -> Iterator[Block]:
    """Slices by size, with their hosts and wraparound axes."""
    yield strong(f"{chip.name}: {len(slices):,} slices, up to the order of dimensions.")
    rows = [
        [f"{chip.name}:{torus}", f"{torus.n_chips:,}", _hosts(chip, torus.n_chips), wraps(torus)]
        for torus in slices[:MAX_SLICES]
    ]
    yield table(["slice", ">chips", ">hosts", "wraparound"], rows)
    if len(slices) > MAX_SLICES:
        largest = slices[-1]
        yield (
            f"... and {len(slices) - MAX_SLICES:,} more up to {chip.name}:{largest} "
            f"({chips(largest.n_chips)}, {wraps(largest)}); --json lists them"
        )


def hosts(chip: Chip, n_chips: int) -> int | None:
    """The number of hosts of `n_chips`; None where the chips per host are not known."""
    if chip.chips_per_host is None:
        return None
    return -(-n_chips // chip.chips_per_host)


def _hosts(chip: Chip, n_chips: int) -> str:
    n_hosts = hosts(chip, n_chips)
    return "" if n_hosts is None else f"{n_hosts:,}"


def wraps(torus: Torus) -> str:
    """The axes with wraparound links: `x, y`, `all axes`, `none`."""
    rings = []
    for axis, wrapped, size in zip("xyzw", torus.wrapped, torus.shape, strict=False):
        if wrapped and size > 1:
            rings.append(axis)
    if not rings:
        return "none"
    return "all axes" if len(rings) == torus.n_axes else ", ".join(rings)
