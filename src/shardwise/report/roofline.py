"""The roofline of one operation: what bounds it, from which size, and the roofs of the chip."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.formulas.chip_roofline import RooflineResult
from shardwise.report.style import Block, bar, curve, quiet, strong, table

MOST_ROWS = 12


def blocks(result: RooflineResult) -> Iterator[Block]:
    """The critical size, the curve over sizes, and every roof."""
    yield strong(_headline(result))
    sizes = "  ".join(f"{d} = {n:,}" for d, n in result.sizes.items())
    yield f"{result.expression}   {sizes}"
    if len(result.points) > 1:
        rates = curve((p.flops_per_s for p in result.points), result.peak_flops_per_s)
        first, last = result.points[0].size, result.points[-1].size
        yield f"{result.dim} {first:,}–{last:,}  {rates}  of {_flops(result.peak_flops_per_s)}"
    yield _points(result)
    yield ""
    yield _roofs(result)
    yield quiet("intensity = FLOPs per byte of HBM; above a roof's own it does not bind")


def _headline(result: RooflineResult) -> str:
    peak = f"{result.chip}'s {_flops(result.peak_flops_per_s)} in {result.compute}"
    if result.critical_size is None:
        return f"HBM-bound at every {result.dim}: {peak} are never reached."
    if result.critical_size < 1:
        return f"Compute-bound at every {result.dim}: {peak}."
    critical = f"{result.dim} = {units.significant(result.critical_size)}"
    return f"Compute-bound from {critical} on: {peak}; below it HBM binds."


def _flops(rate: float) -> str:
    return units.show_rate(rate, "FLOP/s")


def _points(result: RooflineResult) -> Block:
    points = result.points
    step = -(-len(points) // MOST_ROWS)
    shown = [p for i, p in enumerate(points) if i % step == 0 or i == len(points) - 1]
    rows = [
        [
            f"{p.size:,}",
            units.significant(p.intensity),
            units.show_seconds(p.math_s),
            units.show_seconds(p.hbm_s),
            _flops(p.flops_per_s),
            bar(p.flops_per_s, result.peak_flops_per_s, 12),
            {"hbm": "HBM"}.get(p.bound, p.bound),
        ]
        for p in shown
    ]
    return table(
        [f">{result.dim}", ">intensity", ">T_math", ">T_hbm", ">achievable", "", "bound"], rows
    )


def _roofs(result: RooflineResult) -> Block:
    rows = [
        [
            _ROOFS.get(roof.name, roof.name),
            units.show_rate(roof.bytes_per_s, "B/s"),
            units.significant(roof.critical_intensity),
        ]
        for roof in result.roofs
    ]
    return table(["roof", ">bandwidth", ">critical intensity"], rows)


_ROOFS = {
    "hbm": "HBM",
    "ici": "ICI, both directions of one axis",
    "nvlink": "NVLink, one way",
    "scale-out": "between nodes, one way",
    "pcie": "PCIe, one way",
    "dcn": "DCN, a chip's share",
}
