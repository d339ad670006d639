"""The roofline of an operation: from which size it is compute-bound, and the roofs of the chip."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.formulas.chip_roofline import RooflineResult
from shardwise.report.style import Block, bar, curve, quiet, strong, table

MAX_ROWS = 12  # of the table of sizes


def blocks(result: RooflineResult) -> Iterator[Block]:
    """The critical size, the achievable rate over sizes, and every roof of the chip."""
    yield strong(_headline(result))
    sizes = "  ".join(f"{dim} = {size:,}" for dim, size in result.sizes.items())
    yield f"{result.expression}   {sizes}"
    if len(result.points) > 1:
        peak = result.peak_flops_per_s
        rates = curve((point.flops_per_s for point in result.points), peak)
        smallest = result.points[0].size
        largest = result.points[-1].size
        yield f"{result.dim} {smallest:,}–{largest:,}  {rates}  of {_flops(peak)}"
    yield _points(result)
    yield ""
    yield _roofs(result)
    yield quiet("intensity = FLOPs per byte of HBM; a roof binds below its critical intensity")


def _headline(result: RooflineResult) -> str:
    peak = f"{result.chip}'s {_flops(result.peak_flops_per_s)} in {result.compute}"
    if result.critical_size is None:
        return f"HBM-bound at every {result.dim}: {peak} cannot be reached."
    if result.critical_size < 1:
        return f"Compute-bound at every {result.dim}: {peak}."
    critical = f"{result.dim} = {units.significant(result.critical_size)}"
    return f"Compute-bound from {critical}: {peak}. HBM-bound below."


def _flops(rate: float) -> str:
    return units.show_rate(rate, "FLOP/s")


def _points(result: RooflineResult) -> Block:
    """A table of about MAX_ROWS sizes at equal strides, and of the largest size."""
    stride = -(-len(result.points) // MAX_ROWS)
    points = list(result.points[::stride])
    if points[-1] is not result.points[-1]:
        points.append(result.points[-1])
    rows = []
    for point in points:
        row = [
            f"{point.size:,}",
            units.significant(point.intensity),
            units.show_seconds(point.math_s),
            units.show_seconds(point.hbm_s),
            _flops(point.flops_per_s),
            bar(point.flops_per_s, result.peak_flops_per_s, 12),
            "HBM" if point.bound == "hbm" else point.bound,
        ]
        rows.append(row)
    headers = [f">{result.dim}", ">intensity", ">T_math", ">T_hbm", ">achievable", "", "bound"]
    return table(headers, rows)


def _roofs(result: RooflineResult) -> Block:
    rows = []
    for roof in result.roofs:
        bandwidth = units.show_rate(roof.bytes_per_s, "B/s")
        intensity = units.significant(roof.critical_intensity)
        rows.append([_ROOFS.get(roof.name, roof.name), bandwidth, intensity])
    return table(["roof", ">bandwidth", ">critical intensity"], rows)


_ROOFS = {
    "hbm": "HBM",
    "ici": "ICI, both directions of one axis",
    "nvlink": "NVLink, one way",
    "scale-out": "between nodes, one way",
    "pcie": "PCIe, one way",
    "dcn": "DCN, a chip's share",
}
