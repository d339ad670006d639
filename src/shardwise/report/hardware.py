"""Chips: a list of them, one chip with its sources, two chips compared, the slices of a chip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from shardwise import units
from shardwise.hardware import MARKETS, Chip, Difference, Figure, Torus, show_shape, show_value
from shardwise.hardware.figure import Value
from shardwise.report.style import Block, labelled, quiet, strong, table
from shardwise.report.words import chips

MAX_SLICES = 40  # rows of the table on a screen


def list_document(catalog: Sequence[Chip]) -> list[dict[str, Any]]:
    """The main specifications of each chip."""
    return list(map(_summary, catalog))


def _summary(chip: Chip) -> dict[str, Any]:
    return {
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


def list_blocks(catalog: Sequence[Chip]) -> Iterator[Block]:
    """A table with one line per chip, sorted by market, vendor and name."""
    rows: list[list[str]] = []
    for market in MARKETS:
        members = [chip for chip in catalog if chip.market == market]
        if members:
            rows += [[], [f"{market}s"]]
        members.sort(key=lambda chip: (chip.vendor, chip.name))
        rows += map(_summary_cells, members)
    yield table(["chip", ">16-bit, dense", ">memory", ">bandwidth", "links", ">price"], rows)
    yield quiet("empty: no public figure  ·  shardwise hw CHIP shows every source")


def _summary_cells(chip: Chip) -> list[str]:
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
    """A value with its unit; empty for a value that is not public."""
    if value is None:
        return ""
    return show_value(value, unit)


def _links(chip: Chip) -> str:
    """The network between neighbouring chips: `3D torus, 16x20x28`, `links, 8 a node`."""
    if chip.ici:
        text = f"{chip.ici.n_axes}D torus"
        if chip.ici.pod_shape:
            text += f", {show_shape(chip.ici.pod_shape)}"
        return text
    if chip.node is None or chip.node.n_gpus == 1:
        return ""
    egress = chip.node.bytes_per_s_per_gpu_one_way
    pcie = chip.pcie_bytes_per_s_per_chip
    link = "links"
    if egress and pcie and egress <= pcie:
        link = "PCIe"
    return f"{link}, {chip.node.n_gpus} a node"


def chip_document(chip: Chip) -> dict[str, Any]:
    """All figures of a chip with their sources, and other values that were published for them."""
    figures = {}
    for name, figure in chip.figures.items():
        figures[name] = {
            "value": figure.value,
            "unit": figure.unit,
            "source": figure.source,
            "as_of": figure.as_of,
            "confirmed": figure.confirmed,
            "note": figure.note,
            "also": [{"value": value, "source": source} for value, source in figure.also],
        }
    return {
        "name": chip.name,
        "title": chip.title,
        "vendor": chip.vendor,
        "kind": chip.kind,
        "market": chip.market,
        "aliases": chip.aliases,
        "as_of": chip.as_of,
        "note": chip.note,
        "figures": figures,
    }


def chip_blocks(chip: Chip) -> Iterator[Block]:
    """A table of all figures of a chip with their sources and dates, then the list of sources."""
    title = chip.title
    if chip.aliases:
        title += f" ({', '.join(chip.aliases)})"
    yield strong(f"{chip.name}: {title}. Figures as of {chip.as_of}.")
    if chip.note:
        yield chip.note
    sources: dict[str, int] = {}
    rows: list[list[str]] = []
    for name, figure in chip.figures.items():
        rows += _figure_rows(name, figure, sources)
    if rows:
        yield table(["!figure", ">value", "!source", "note"], rows)
        yield labelled((f"[{number}]", source) for source, number in sources.items())
    next_arguments = f"{chip.name}:{chip.chips_per_host or 1}"
    if chip.ici:
        next_arguments = f"{chip.name} --slices"
    yield quiet(f"type  shardwise hw {next_arguments}")


def _figure_rows(name: str, figure: Figure, sources: dict[str, int]) -> Iterator[list[str]]:
    """A row for a figure, and one for each other published value of it.

    Args:
        sources: source -> its number in the table; sources that are new here are added to it.
    """

    def number(source: str) -> str:
        return f"[{sources.setdefault(source, len(sources) + 1)}]"

    main_source = figure.source
    if figure.as_of:
        main_source += f", {figure.as_of}"
    note = figure.note
    if not figure.confirmed:
        note = f"not confirmed. {note}"
    yield [name, str(figure), number(main_source), note]
    for value, source in figure.also:
        yield ["", show_value(value, figure.unit), number(source), "also published"]


def diff_blocks(a: Chip, b: Chip, rows: Sequence[Difference]) -> Iterator[Block]:
    """A table of the figures in which chip `b` differs from chip `a`, with their ratios."""
    first, second = a.name, b.name
    if first == second:  # two measurements of one machine
        first, second = "first", "second"
    yield strong(f"{second} against {first}: {len(rows)} figures differ.")
    headers = ["!figure", f">{first}", f">{second}", f">{second} / {first}"]
    yield table(headers, map(_difference_cells, rows))


def _difference_cells(row: Difference) -> list[str]:
    ratio = ""
    if row.ratio is not None:
        ratio = f"×{units.significant(row.ratio)}"
    return [row.figure, _figure_text(row.a, row.unit), _figure_text(row.b, row.unit), ratio]


def slices_document(chip: Chip, slices: Sequence[Torus]) -> dict[str, Any]:
    """The slices of a chip as a JSON document."""
    rows = []
    for torus in slices:
        row = {
            "shape": torus.shape,
            "n_chips": torus.n_chips,
            "n_hosts": _n_hosts(chip, torus.n_chips),
            "wrapped": torus.wrapped,
        }
        rows.append(row)
    return {"chip": chip.name, "slices": rows}


def slices_blocks(chip: Chip, slices: Sequence[Torus]) -> Iterator[Block]:
    """A table of the slices of a chip, smallest first, with their hosts and wraparound axes."""
    yield strong(f"{chip.name}: {len(slices):,} slices, up to the order of dimensions.")
    rows = []
    for torus in slices[:MAX_SLICES]:
        n_hosts = _n_hosts(chip, torus.n_chips)
        hosts = "" if n_hosts is None else f"{n_hosts:,}"
        rows.append([f"{chip.name}:{torus}", f"{torus.n_chips:,}", hosts, wraps(torus)])
    yield table(["slice", ">chips", ">hosts", "wraparound"], rows)
    if len(slices) > MAX_SLICES:
        largest = slices[-1]
        yield (
            f"... and {len(slices) - MAX_SLICES:,} more up to {chip.name}:{largest} "
            f"({chips(largest.n_chips)}, {wraps(largest)}); --json lists them"
        )


def _n_hosts(chip: Chip, n_chips: int) -> int | None:
    """The number of hosts of `n_chips` chips; None if the chips per host are not known."""
    if chip.chips_per_host is None:
        return None
    return -(-n_chips // chip.chips_per_host)


def wraps(torus: Torus) -> str:
    """The axes with wraparound links: `x, y`, `all axes`, `none`."""
    rings = []
    for axis, wrapped, size in zip("xyzw", torus.wrapped, torus.shape, strict=False):
        if wrapped and size > 1:
            rings.append(axis)
    if not rings:
        return "none"
    if len(rings) == torus.n_axes:
        return "all axes"
    return ", ".join(rings)
