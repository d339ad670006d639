"""Conversion of the `hardware` object of a record to a System, with a chip of the catalog."""

from __future__ import annotations

import re

from shardwise import units
from shardwise.errors import BadFile, BadShape, nearest
from shardwise.hardware import Chip, Switched, System, Torus, catalog_chip, chip_names, legal_slices
from shardwise.hardware.chip import with_values
from shardwise.hardware.figure import Value
from shardwise.hardware.torus import make_slice
from shardwise.validate.records.fields import JsonReader

# Name of a chip in records -> its name in the catalog. Records may also use the latter.
CATALOG_NAMES = {
    "A100-80": "a100", "A100-40": "a100-40g", "V100-32": "v100", "H100": "h100", "H200": "h200",
    "H800": "h800", "H100-HBM2e-500W": "h100", "B200": "b200", "B300": "b300", "GB200": "gb200",
    "GB300": "gb300", "MI300X": "mi300x", "MI325X": "mi325x", "tpu7x": "7x",
    "A100-80-PCIe": "a100-pcie", "H100-PCIe": "h100-pcie", "MI250X-GCD": "mi250x",
    "RTX3070": "rtx-3070", "RTX3080": "rtx-3080", "RTX3080Ti": "rtx-3080-ti",
    "RTX3090": "rtx-3090", "RTX3090Ti": "rtx-3090-ti", "RTX4070Ti": "rtx-4070-ti",
    "RTX4080": "rtx-4080", "RTX4090": "rtx-4090", "RTX4000Ada": "rtx-4000-ada",
    "RTX5000Ada": "rtx-5000-ada", "RTX6000Ada": "rtx-6000-ada", "RTXA6000": "rtx-a6000",
    "RTX6000Pro": "rtx-pro-6000", "ArcB60": "arc-b60", "M1Max": "m1-max", "M2Ultra": "m2-ultra",
    "M3Max": "m3-max",
}  # fmt: skip

# Name of a chip in records -> values that differ from those of the chip in the catalog.
_VARIANTS: dict[str, dict[str, Value | None]] = {
    "H100-HBM2e-500W": {
        "hbm.capacity": 96 * units.GB,
        "hbm.bandwidth": 2.4 * units.TB,
        "power.chip": 500.0,
    },
}

_RACK_GPUS = 72  # GPUs in the NVLink domain of an NVL72 rack

# Share of Omni-Path's bandwidth that NCCL reaches, for lack of native support: at most 90 of the
# 400 Gb/s of a node (bigscience-workshop/bigscience, experiments/bandwidth, 4 nodes).
_OMNI_PATH_SHARE = 90 / 400

# Texts in `interconnect` (the first) and `topology`: "4x100 Gb/s", "2 slices of 16x16",
# "2 pods of 4096", "16x16".
_LINKS = re.compile(r"(?:(\d{1,4})\s*x\s*)?(\d{1,6}(?:\.\d{1,3})?)\s*Gb/s")
_SLICES = re.compile(r"(\d{1,6})\s*(?:slices?|slice\(s\)) of (\d{1,6}(?:x\d{1,6})+)")
_PODS = re.compile(r"(\d{1,6}) pods of (\d{1,6})")
_SHAPE = re.compile(r"\d{1,6}(?:x\d{1,6})+")


def system_of(hardware: JsonReader) -> tuple[System, dict[str, str]]:
    """Return the machine of a record, and the assumptions about it (item -> assumption).

    Network bandwidth and power that the record states replace the values of the catalog.

    Raises:
        BadInput: the chip is unknown, or there is no such machine of this chip.
    """
    family = hardware.text("family")
    count = hardware.integer("count")
    chip = with_values(_chip(family), _VARIANTS.get(family, {}))
    if chip.ici:
        return _tpu_system(chip, hardware, count)
    return _gpu_system(chip, hardware, count)


def _chip(family: str) -> Chip:
    name = CATALOG_NAMES.get(family, family.lower())
    known = set(chip_names())
    if name not in known:
        known |= {family for family, chip in CATALOG_NAMES.items() if chip in known}
        raise BadFile(f'unknown chip: "{family}". {nearest(family, known)}')
    return catalog_chip(name)


def _gpu_system(chip: Chip, hardware: JsonReader, count: int) -> tuple[System, dict[str, str]]:
    """Return a machine of `count` GPUs in nodes, and the assumptions about it."""
    assumed: dict[str, str] = {}
    per_node = hardware.optional_integer("chips_per_node")
    catalog_per_node = chip.node.n_gpus if chip.node else 1
    if catalog_per_node == _RACK_GPUS or "NVL72" in hardware.text("topology", ""):
        # Jobs use equally many GPUs of each rack, as many as divide the number of GPUs.
        domain = max(n for n in range(1, min(_RACK_GPUS, count) + 1) if count % n == 0)
        if count > domain != _RACK_GPUS:
            assumed["domain"] = f"{domain} of the {_RACK_GPUS} GPUs of each rack"
    else:
        domain = per_node or catalog_per_node
    links = hardware.text("interconnect", "")
    egress = _scale_out_egress(links, per_node or catalog_per_node, assumed)
    watts = re.search(r"(\d{2,4}) W\b", hardware.text("note", ""))
    values: dict[str, Value | None] = {}
    if egress:
        values["scale_out.egress"] = egress
    if watts:
        values["power.chip"] = float(watts[1])
    name = f"{chip.name}:{count}"
    if egress and not (chip.scale_out and chip.scale_out.bytes_per_s_per_gpu_one_way == egress):
        name += f",scale_out={egress / units.GB:g}GB/s"
    topology = Switched(n_gpus=count, domain=domain)
    return System(name=name, chip=with_values(chip, values), topology=topology), assumed


def _scale_out_egress(text: str, per_node: int, assumed: dict[str, str]) -> float | None:
    """Return the B/s that one GPU can send out of its node; None if the text has no rate.

    Args:
        text: Description of the network, such as `4x100 Gb/s per node`.
        per_node: GPUs per node.
        assumed: Receives the assumptions about the network.
    """
    link = _LINKS.search(text)
    if not link:
        return None
    rate = units.parse_rate(f"{link[2]} Gb/s") * int(link[1] or 1)
    if "Omni-Path" in text:
        rate *= _OMNI_PATH_SHARE
        assumed["interconnect"] = (
            f"{_OMNI_PATH_SHARE:.1%} of Omni-Path's rate, the share that NCCL reaches"
        )
    if "per GPU" in text:
        return rate or None
    if "per node" not in text and not link[1]:
        assumed["interconnect"] = f'"{text}" is the rate of a node'
    return rate / per_node or None


def _tpu_system(chip: Chip, hardware: JsonReader, count: int) -> tuple[System, dict[str, str]]:
    """Return a machine of `count` TPU chips in one or more slices, and the assumptions about it."""
    assumed: dict[str, str] = {}
    text = hardware.text("topology", "")
    slices = _SLICES.search(text)
    pods = _PODS.search(text)
    n_slices = 1
    chips_per_slice = count
    shape = text.strip()
    if slices:
        n_slices = int(slices[1])
        shape = slices[2]
    elif pods:
        n_slices = int(pods[1])
        chips_per_slice = int(pods[2])
    if _SHAPE.fullmatch(shape):
        torus = make_slice(chip, tuple(map(int, shape.split("x"))))
    else:
        torus = _most_compact(chip, chips_per_slice)
        assumed["topology"] = f"{torus}, the most compact slice of {torus.n_chips:,} chips"
    n_chips = torus.n_chips * n_slices
    if n_chips != count:
        raise BadFile(f"topology: {n_slices} x {torus} is {n_chips:,} chips, not {count:,}.")
    name = f"{chip.name}:{torus}"
    if n_slices > 1:
        name += f"*{n_slices}"
    return System(name=name, chip=chip, topology=torus, n_slices=n_slices), assumed


def _most_compact(chip: Chip, count: int) -> Torus:
    """Return the slice of `count` chips whose longest axis is shortest."""
    slices = [torus for torus in legal_slices(chip) if torus.n_chips == count]
    if not slices:
        raise BadShape(f"topology: no slice of {chip.name} has {count:,} chips.")
    return min(slices, key=lambda torus: max(torus.shape))
