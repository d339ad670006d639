"""A chip as plain numbers, each of which can be traced to a public source.

A number that no public source gives is None. A formula that needs it asks with `need` or `peak`,
and the user is told which figure is missing instead of getting an answer built on a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shardwise.errors import UnknownFigure, UnknownName
from shardwise.hardware.figure import FIELDS, Figure, Value, dtype_name, show_value, unit_of
from shardwise.hardware.shape import Shape

GIVEN = "given by the user"

# What chips are built for, in the order of lists; a file that says nothing means the first.
MARKETS = ("data center", "workstation", "desktop")

_BY_ATTRIBUTE = {field.attribute: name for name, field in FIELDS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ici:
    """The torus that joins TPU chips. A chip has 2 links per axis where the axis wraps.

    Args:
        n_axes: dimensions of the torus.
        wrap: `cubes_of_4`, `length_16` or `full_pod`: when the axes of a slice close into rings.
        link_bytes_per_s_one_way: one direction of one link, B/s; the book's achievable figure.
        hop_s: seconds a message needs per hop.
        pod_shape: the largest torus.
        host_shape: the chips of one host.
        slices: the slices smaller than the rule of `wrap` builds that can be rented.
    """

    n_axes: int
    wrap: str
    link_bytes_per_s_one_way: float | None = None
    hop_s: float | None = None
    pod_shape: Shape | None = None
    host_shape: Shape | None = None
    slices: tuple[Shape, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """GPUs joined by switches (NVLink) or by a full mesh.

    Args:
        n_gpus: GPUs of one domain.
        bytes_per_s_per_gpu_one_way: what one GPU can send, B/s.
        n_switches: switches in the domain.
        in_network_reduction: whether the switches can add up (SHARP); using it is a choice.
        latency_s: seconds per step of a collective.
    """

    n_gpus: int
    bytes_per_s_per_gpu_one_way: float | None = None
    n_switches: int | None = None
    in_network_reduction: bool | None = None
    latency_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleOut:
    """The network between nodes: a fat tree of leaf and spine switches.

    Args:
        bytes_per_s_per_gpu_one_way: what one GPU can send out of its node, B/s.
        nodes_per_unit: nodes under one set of leaf switches (a scalable unit, SU).
        leaves_per_unit: leaf switches of one unit.
        switch_ports: ports of one switch, each as fast as one GPU's share.
        in_network_reduction: whether the switches can add up (SHARP); using it is a choice.
        latency_s: seconds per step of a collective.
    """

    bytes_per_s_per_gpu_one_way: float | None = None
    nodes_per_unit: int | None = None
    leaves_per_unit: int | None = None
    switch_ports: int | None = None
    in_network_reduction: bool | None = None
    latency_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One chip. Peaks are dense, rates are per chip, None is "no public figure".

    `dataclasses.replace(chip, hbm_bytes_per_s=8.1e11)` changes a number; `figures` then says that
    the user gave it, and keeps the published value beside it.

    Args:
        name: the name on the command line, `v5p`.
        kind: `tpu`, `gpu`, `other` or `cpu`.
        market: what it is built for: `data center`, `workstation` or `desktop`.
        peak_flops_per_s: dense peak by dtype, FLOP/s.
        vector_flops_per_s: fp32 peak of the vector units, FLOP/s.
        hbm_bytes: documented capacity, bytes.
        hbm_usable_bytes: what the compiler or driver leaves to a program, bytes.
        on_chip_bytes: TPU VMEM, or all of the SRAM of a chip without HBM, bytes.
        n_devices: devices that JAX shows per chip (1 where two cores act as a megacore).
        dcn_bytes_per_s_per_chip: one way, a chip's share of its host's network cards.
        sourced: the figures as loaded; read them through `figures`.
        quotes: other documents' values of some figures, by name; see `quoted`.
    """

    name: str
    title: str
    vendor: str
    kind: str
    as_of: str
    aliases: tuple[str, ...] = ()
    note: str = ""
    market: str = MARKETS[0]
    peak_flops_per_s: Mapping[str, float] = field(default_factory=dict, hash=False)
    vector_flops_per_s: float | None = None
    hbm_bytes: float | None = None
    hbm_usable_bytes: float | None = None
    hbm_bytes_per_s: float | None = None
    on_chip_bytes: float | None = None
    on_chip_bytes_per_s: float | None = None
    n_sms: int | None = None
    smem_bytes_per_sm: float | None = None
    tmem_bytes_per_sm: float | None = None
    register_bytes_per_sm: float | None = None
    exponentials_per_clock_per_sm: int | None = None
    l2_bytes: float | None = None
    l2_bytes_per_s: float | None = None
    l3_bytes: float | None = None
    matrix_unit: Shape | None = None
    n_matrix_units: int | None = None
    n_cores: int | None = None
    n_devices: int | None = None
    n_sparse_cores: int | None = None
    clock_hz: float | None = None
    ici: Ici | None = None
    node: Node | None = None
    scale_out: ScaleOut | None = None
    dcn_bytes_per_s_per_chip: float | None = None
    pcie_bytes_per_s_per_chip: float | None = None
    chips_per_host: int | None = None
    host_dram_bytes: float | None = None
    power_w: float | None = None
    usd_per_chip_hour: float | None = None
    sourced: Mapping[str, Figure] = field(default_factory=dict, repr=False, compare=False)
    quotes: Mapping[str, Mapping[str, Figure]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def need(self, path: str) -> float:
        """The number under a figure's name (`hbm.bandwidth`) or attribute (`ici.hop_s`).

        Raises:
            UnknownFigure: no public source gives it for this chip.
            UnknownName: there is no such figure.
        """
        if path.startswith("peak."):
            return self.peak(path.removeprefix("peak."))
        name = _BY_ATTRIBUTE.get(path, path)
        if name not in FIELDS:
            raise UnknownName("figure", path, FIELDS)
        value = get(self, name)
        if isinstance(value, int | float):
            return float(value)
        why, what = "no public source gives it", "Give your own in a TOML file (docs/hardware.md)."
        if self.kind == "cpu":
            why = "it was not measured"
            what = "shardwise hw measure N -o FILE.toml measures this CPU as N devices."
        raise UnknownFigure(
            f"{self.name} has no figure for {name}: {why}. "
            f"Known of {self.name}: {', '.join(self.figures) or 'nothing'}. {what}"
        )

    def peak(self, dtype: str) -> float:
        """Dense peak at a dtype, FLOP/s. A rate is never borrowed from another dtype.

        Raises:
            UnknownFigure: no public source gives it for this chip.
        """
        value = self.peak_flops_per_s.get(dtype_name(dtype))
        if value is not None:
            return value
        known = [f"{d} {show_value(v, 'FLOP/s')}" for d, v in self.peak_flops_per_s.items()]
        raise UnknownFigure(
            f"{self.name} has no figure for the dense peak at {dtype}. "
            f"Known: {', '.join(known) or 'none'}."
        )

    @property
    def figures(self) -> dict[str, Figure]:
        """Every number of this chip with its source, in the order of its file."""
        found: dict[str, Figure] = {}
        for path in dict.fromkeys((*self.sourced, *_paths(self))):
            value, sourced = get(self, path), self.sourced.get(path)
            if value is None:
                continue
            if sourced is None or sourced.value != value:
                before = ((sourced.value, sourced.source),) if sourced else ()
                sourced = Figure(
                    value=value, unit=unit_of(path) or "", source=GIVEN, as_of="", also=before
                )
            found[path] = sourced
        return found

    def quoted(self, document: str) -> Chip:
        """This chip with the figures as one document prints them; `book` is the scaling book.

        Raises:
            UnknownName: this chip's file quotes no such document.
        """
        if document not in self.quotes:
            raise UnknownName(f"document quoted for {self.name}", document, self.quotes)
        figures = self.quotes[document]
        chip = with_values(self, {path: figure.value for path, figure in figures.items()})
        return replace(chip, sourced={**self.sourced, **figures})


def _paths(chip: Chip) -> list[str]:
    return [*(f"peak.{dtype}" for dtype in chip.peak_flops_per_s), *FIELDS]


def get(chip: Chip, path: str) -> Value | None:
    """The plain value of a figure by its name, None when the chip has none."""
    if path.startswith("peak."):
        return chip.peak_flops_per_s.get(path.removeprefix("peak."))
    value: Any = chip
    for part in FIELDS[path].attribute.split("."):
        value = getattr(value, part, None)
    return value if value != () else None


def with_values(chip: Chip, values: Mapping[str, Value | None]) -> Chip:
    """A copy with some figures changed by name; None takes a figure away."""
    for path, value in values.items():
        if path.startswith("peak."):
            change: Any = {**chip.peak_flops_per_s, path.removeprefix("peak."): value}
            chip = replace(chip, peak_flops_per_s=change)
            continue
        owner, _, attribute = FIELDS[path].attribute.rpartition(".")
        change = value
        if owner:
            inner: Any = getattr(chip, owner) or (ScaleOut() if owner == "scale_out" else None)
            change = replace(inner, **{attribute: value})
        chip = replace(chip, **{owner or attribute: change})
    return chip
