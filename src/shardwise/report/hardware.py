"""Chips: the list, every figure of one with its source, two side by side, and the slices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from shardwise import units
from shardwise.hardware import MARKETS, Chip, Difference, Figure, Torus, show_shape, show_value
from shardwise.report.style import Block, labelled, quiet, strong, table
from shardwise.report.words import chips

MOST_SLICES = 40  # listed on a screen


def list_document(found: Sequence[Chip]) -> list[dict[str, Any]]:
    """The chips with the figures of the list."""
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
        for chip in found
    ]


def list_blocks(found: Sequence[Chip]) -> Iterator[Block]:
    """One line for each chip: by what they are built for, then by vendor."""
    rows = []
    for market in MARKETS:
        members = [chip for chip in found if chip.market == market]
        rows += [[], [f"{market}s"]] if members else []
        rows += [_row(chip) for chip in sorted(members, key=lambda c: (c.vendor, c.name))]
    yield table(["chip", ">16-bit, dense", ">memory", ">its rate", "joined by", ">price"], rows)
    yield quiet("an empty place: no public figure  ·  shardwise hw CHIP shows every source")


def _row(chip: Chip) -> list[str]:
    peaks = chip.peak_flops_per_s
    return [
        chip.name,
        _shown(peaks.get("bf16", peaks.get("fp16")), "FLOP/s"),
        _shown(chip.hbm_bytes, "B"),
        _shown(chip.hbm_bytes_per_s, "B/s"),
        _links(chip),
        _shown(chip.usd_per_chip_hour, "USD/h"),
    ]


def _shown(value: float | None, unit: str) -> str:
    return "" if value is None else show_value(value, unit)


def _links(chip: Chip) -> str:
    if chip.ici:
        pod = f", {show_shape(chip.ici.pod_shape)}" if chip.ici.pod_shape else ""
        return f"{chip.ici.n_axes}D torus{pod}"
    if chip.node is None or chip.node.n_gpus == 1:
        return ""
    egress, pcie = chip.node.bytes_per_s_per_gpu_one_way, chip.pcie_bytes_per_s_per_chip
    by = "PCIe" if egress and pcie and egress <= pcie else "links"
    return f"{by}, {chip.node.n_gpus} a node"


def chip_document(chip: Chip) -> dict[str, Any]:
    """A chip with every figure, its source, and the other values in print."""
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
    """Every figure with its unit, source and date; below it what differs in print."""
    aliases = f" ({', '.join(chip.aliases)})" if chip.aliases else ""
    yield strong(f"{chip.name}: {chip.title}{aliases}. Figures as of {chip.as_of}.")
    if chip.note:
        yield chip.note
    sources: dict[str, int] = {}
    rows = [row for name, figure in chip.figures.items() for row in _figure(name, figure, sources)]
    if rows:
        yield table(["!figure", ">value", "!source", "note"], rows)
        yield labelled((f"[{number}]", source) for source, number in sources.items())
    sized = f"{chip.name} --slices" if chip.ici else f"{chip.name}:{chip.chips_per_host or 1}"
    yield quiet(f"type  shardwise hw {sized}")


def _figure(name: str, figure: Figure, sources: dict[str, int]) -> Iterator[list[str]]:
    """The figure and the other values in print; every new source gets the next number."""

    def number(source: str) -> str:
        return f"[{sources.setdefault(source, len(sources) + 1)}]"

    date = f", {figure.as_of}" if figure.as_of else ""
    doubt = "" if figure.confirmed else "not confirmed. "
    yield [name, str(figure), number(f"{figure.source}{date}"), f"{doubt}{figure.note}"]
    for value, source in figure.also:
        yield ["", show_value(value, figure.unit), number(source), "also in print"]


def diff_blocks(a: Chip, b: Chip, rows: Sequence[Difference]) -> Iterator[Block]:
    """The figures that are not the same on both."""
    yield strong(f"{b.name} against {a.name}: {len(rows)} figures differ.")
    yield table(
        ["!figure", f">{a.name}", f">{b.name}", f">{b.name} / {a.name}"],
        [
            [
                row.figure,
                "" if row.a is None else show_value(row.a, row.unit),
                "" if row.b is None else show_value(row.b, row.unit),
                f"×{units.significant(row.ratio)}" if row.ratio is not None else "",
            ]
            for row in rows
        ],
    )


def slices_document(chip: Chip, slices: Sequence[Torus]) -> dict[str, Any]:
    """The slices of a chip."""
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
    """Slices by size with their hosts and rings."""
    yield strong(f"{chip.name}: {len(slices):,} slices, one order of dimensions each.")
    rows = [
        [f"{chip.name}:{t}", f"{t.n_chips:,}", _hosts(chip, t.n_chips), wraps(t)]
        for t in slices[:MOST_SLICES]
    ]
    yield table(["slice", ">chips", ">hosts", "wraparound"], rows)
    if len(slices) > MOST_SLICES:
        largest = slices[-1]
        yield (
            f"... and {len(slices) - MOST_SLICES:,} more up to {chip.name}:{largest} "
            f"({chips(largest.n_chips)}, {wraps(largest)}); --json lists them"
        )


def hosts(chip: Chip, n_chips: int) -> int | None:
    """Hosts of so many chips, None where the chips of a host are not known."""
    return None if chip.chips_per_host is None else -(-n_chips // chip.chips_per_host)


def _hosts(chip: Chip, n_chips: int) -> str:
    n = hosts(chip, n_chips)
    return "" if n is None else f"{n:,}"


def wraps(torus: Torus) -> str:
    """Which axes are rings."""
    rings = [x for x, w, n in zip("xyzw", torus.wrapped, torus.shape, strict=False) if w and n > 1]
    if not rings:
        return "none"
    return "all axes" if len(rings) == torus.n_axes else ", ".join(rings)
