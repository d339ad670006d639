"""A chip as plain numbers, each of which can be traced to a public source.

A number that no public source gives is None. Formulas that need it call `need` or `peak`, which
raise an error that names the missing figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shardwise.errors import UnknownFigure, UnknownName
from shardwise.hardware.figure import FIELDS, Figure, Value, dtype_name, show_value, unit_of
from shardwise.hardware.shape import Shape

GIVEN = "given by the user"

# Markets of chips, in the order in which lists show them. The first is the default.
MARKETS = ("data center", "workstation", "desktop")

_BY_ATTRIBUTE = {field.attribute: name for name, field in FIELDS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ici:
    """The torus network (ICI) of TPU chips. A chip has two links per torus axis.

    Args:
        n_axes: dimensions of the torus.
        wrap: which axes of a slice wrap around: `cubes_of_4`, `length_16` or `full_pod`; see
            `torus.wrap_axes`.
        link_bytes_per_s_one_way: achievable bandwidth of one link in one direction, B/s.
        hop_s: seconds that a message needs per hop.
        pod_shape: shape of the largest torus.
        host_shape: shape of the chips of one host.
        slices: shapes of slices that can be rented; under `cubes_of_4` only those that are not
            made of whole cubes.
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
    """A node of GPUs that switches (NVLink) or a full mesh connect. It may be a whole rack.

    Args:
        n_gpus: GPUs of one node.
        bytes_per_s_per_gpu_one_way: bandwidth out of one GPU, B/s.
        n_switches: switches in the node.
        in_network_reduction: whether the switches can reduce (SHARP); a machine uses it only if
            asked to, with `sharp=on`.
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
        bytes_per_s_per_gpu_one_way: one GPU's share of the bandwidth out of its node, B/s.
        nodes_per_unit: nodes under one set of leaf switches (a scalable unit, SU).
        leaves_per_unit: leaf switches of one unit.
        switch_ports: ports of one switch, each as fast as one GPU's share.
        in_network_reduction: whether the switches can reduce (SHARP), as in `Node`.
        latency_s: seconds per step of a collective.
    """

    bytes_per_s_per_gpu_one_way: float | None = None
    nodes_per_unit: int | None = None
    leaves_per_unit: int | None = None
    switch_ports: int | None = None
    in_network_reduction: bool | None = None
    latency_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Rates of this package's inference engine, as `hw measure` finds them.

    Args:
        pass_s: seconds between two passes, to choose one and to deliver its tokens.
        sequence_s: the same, for each sequence of a pass.
        request_s: seconds that a request spends in the HTTP server.
        layer_s: seconds of a layer that depend on neither its sizes nor its tokens.
        key_bytes_per_s: rate at which decoding reads cached keys and values in fp32.
        bf16_key_bytes_per_s: the same in bf16, in which CPUs also multiply them.
        attention_flops_per_s: FLOP/s of attention over prompts.
        activation_bytes_per_s: rate of the operations between products, in bytes that they read
            and write.
        logit_bytes_per_s: rate at which tokens are drawn, in bytes of logits.
    """

    pass_s: float | None = None
    sequence_s: float | None = None
    request_s: float | None = None
    layer_s: float | None = None
    key_bytes_per_s: float | None = None
    bf16_key_bytes_per_s: float | None = None
    attention_flops_per_s: float | None = None
    activation_bytes_per_s: float | None = None
    logit_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """The numbers of one chip. Peaks are dense, rates are per chip; None is an unknown number.

    A user may change a number with `dataclasses.replace(chip, hbm_bytes_per_s=8.1e11)`. Its source
    in `figures` is then the user, and `Figure.also` has the published value.

    Args:
        name: the name on the command line, `v5p`.
        title: the full name, `Google TPU v5p`.
        as_of: month of the data, `YYYY-MM`.
        kind: `tpu`, `gpu`, `other` or `cpu`.
        market: `data center`, `workstation` or `desktop`.
        peak_flops_per_s: dense peak by dtype, FLOP/s.
        vector_flops_per_s: fp32 peak of the vector units, FLOP/s.
        hbm_bytes: documented capacity of HBM, bytes.
        hbm_usable_bytes: HBM that compiler and driver leave to a program, bytes.
        on_chip_bytes: VMEM of a TPU, or all SRAM of a chip without HBM, bytes.
        n_devices: JAX devices per chip (1 if two cores act as a megacore).
        product_flops_per_s: FLOP/s of products of some rows with weights of a dtype, by `bf16_16`.
        serving: measured rates of the inference engine; None if they were not measured.
        training: measured rates of training steps, by the names of their figures; empty if they
            were not measured.
        collectives: the same of collectives.
        memory_bytes_per_s: measured memory bandwidth by size and number of arrays: `64KiB_2`.
        transfers: measured copies between host and devices, disk, loader, dispatch.
        dcn_bytes_per_s_per_chip: a chip's share of its host's network bandwidth, one way, B/s.
        own_step_ratio: measured over expected seconds of a step in the user's own runs: their
            geometric mean.
        n_own_runs: number of these runs.
        path: the user's file with the chip, as the user wrote it; empty for chips of the catalog.
        sourced: the figures of the file; `figures` has the current ones.
        quotes: values that other documents state, by document and name of the figure; see `quoted`.
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
    product_flops_per_s: Mapping[str, float] = field(default_factory=dict, hash=False)
    serving: Serving | None = None
    training: Mapping[str, float] = field(default_factory=dict, hash=False)
    collectives: Mapping[str, float] = field(default_factory=dict, hash=False)
    memory_bytes_per_s: Mapping[str, float] = field(default_factory=dict, hash=False)
    transfers: Mapping[str, float] = field(default_factory=dict, hash=False)
    own_step_ratio: float | None = None
    n_own_runs: int | None = None
    path: str = field(default="", compare=False)
    sourced: Mapping[str, Figure] = field(default_factory=dict, repr=False, compare=False)
    quotes: Mapping[str, Mapping[str, Figure]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def spelling(self) -> str:
        """What finds this chip on the command line: its file, or its name in the catalog."""
        return self.path or self.name

    def need(self, path: str) -> float:
        """Return a number by the name of its figure (`hbm.bandwidth`) or attribute (`ici.hop_s`).

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
        if self.kind == "cpu":
            missing = f"{self.name} has no figure for {name}: this machine was not measured."
            if self.peak_flops_per_s:
                missing = f"{self.name} was measured without {name}."
            if self.peak_flops_per_s and name.startswith("node.") and not self.node:
                missing = f"{self.name} was measured as one device, and more are planned."
            raise UnknownFigure(
                missing,
                "shardwise hw measure N -o FILE.toml measures this CPU as N devices.",
            )
        hint = f"Give your own{self._example(name)} in a TOML file (docs/hardware.md)."
        raise UnknownFigure(
            f"{self.name} has no figure for {name}: no public source gives it. "
            f"Known of {self.name}: {', '.join(self.figures) or 'nothing'}. {hint}"
        )

    def _example(self, name: str) -> str:
        """How a machine is written with a value of a figure; "" if the command line takes none."""
        value = _EXAMPLES.get(unit_of(name) or "")
        group = name.split(".")[0]
        if value is None or (group in ("ici", "node") and getattr(self, group) is None):
            return ""
        machine = "64" if self.node or self.kind != "gpu" else "1"
        if self.ici:
            machine = "x".join(["4"] * self.ici.n_axes)
        return f" after the machine, as {self.spelling}:{machine},{name}={value}, or"

    def peak(self, dtype: str) -> float:
        """Dense peak at a dtype, FLOP/s. The peak of another dtype is never used instead.

        Raises:
            UnknownFigure: no public source gives the peak at this dtype.
        """
        value = self.peak_flops_per_s.get(dtype_name(dtype))
        if value is not None:
            return value
        half = next((d for d in ("bf16", "fp16") if d in self.peak_flops_per_s), "")
        hint = f" Choose --dtype {half}." if half else ""
        peaks = [f"{d} {show_value(v, 'FLOP/s')}" for d, v in self.peak_flops_per_s.items()]
        raise UnknownFigure(
            f"{self.name} has no figure for the dense peak at {dtype}. "
            f"Known: {', '.join(peaks) or 'nothing'}.{hint}"
        )

    @property
    def shares_host(self) -> bool:
        """Whether its devices are parts of one CPU, which they share."""
        return self.kind == "cpu" and "scale_out.egress" not in self.figures

    @property
    def figures(self) -> dict[str, Figure]:
        """Every number of this chip with its source, in the order of its file."""
        figures: dict[str, Figure] = {}
        for path in dict.fromkeys((*self.sourced, *_paths(self))):
            value = get(self, path)
            figure = self.sourced.get(path)
            if value is None:
                continue
            if figure is None or figure.value != value:
                published: tuple[tuple[Value, str], ...] = ()
                if figure is not None:
                    published = ((figure.value, figure.source),)
                figure = Figure(
                    value=value, unit=unit_of(path) or "", source=GIVEN, as_of="", also=published
                )
            figures[path] = figure
        return figures

    def quoted(self, document: str) -> Chip:
        """A copy with the values that one document states; `book` is the scaling book.

        Raises:
            UnknownName: the chip's file does not quote this document.
        """
        if document not in self.quotes:
            raise UnknownName(f"document quoted for {self.name}", document, self.quotes)
        figures = self.quotes[document]
        chip = with_values(self, {path: figure.value for path, figure in figures.items()})
        return replace(chip, sourced={**self.sourced, **figures})


def _paths(chip: Chip) -> list[str]:
    return [*(f"peak.{dtype}" for dtype in chip.peak_flops_per_s), *FIELDS]


def get(chip: Chip, path: str) -> Value | None:
    """Value of a figure by its name (`hbm.bandwidth`); None if it is unknown."""
    if path.startswith("peak."):
        return chip.peak_flops_per_s.get(path.removeprefix("peak."))
    value: Any = chip
    for part in FIELDS[path].attribute.split("."):
        value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
    if value == ():
        return None
    return value  # type: ignore[no-any-return]


# Unit of a figure -> a value of it, as an example of what to write.
_EXAMPLES = {"B/s": "50GB/s", "B": "80GB", "s": "1us", "Hz": "1.5GHz", "FLOP/s": "100TFLOP/s"}
_MAPPINGS = ("product_flops_per_s", "training", "collectives", "memory_bytes_per_s", "transfers")
_OPTIONAL = {"scale_out": ScaleOut, "serving": Serving}  # made when one of their figures is given


def with_values(chip: Chip, values: Mapping[str, Value | None]) -> Chip:
    """A copy with other values for some figures, by their names; None removes a figure."""
    for path, value in values.items():
        if path.startswith("peak."):
            peaks: Any = {**chip.peak_flops_per_s, path.removeprefix("peak."): value}
            known = {dtype: peak for dtype, peak in peaks.items() if peak is not None}
            chip = replace(chip, peak_flops_per_s=known)
            continue
        owner, _, attribute = FIELDS[path].attribute.rpartition(".")
        change: Any = value
        if owner in _MAPPINGS:
            change = {**getattr(chip, owner), attribute: value}
        elif owner:
            links: Any = getattr(chip, owner)
            if links is None and owner in _OPTIONAL:
                links = _OPTIONAL[owner]()
            change = replace(links, **{attribute: value})
        chip = replace(chip, **{owner or attribute: change})
    return chip
