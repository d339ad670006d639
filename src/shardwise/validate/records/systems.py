"""The machine a record states -> System: the chip of the catalog, its links, its topology."""

from __future__ import annotations

import re

from shardwise import units
from shardwise.errors import BadFile, BadShape, nearest
from shardwise.hardware import Chip, Switched, System, Torus, catalog_chip, chip_names, legal_slices
from shardwise.hardware.chip import with_values
from shardwise.hardware.figure import Value
from shardwise.hardware.torus import make_slice
from shardwise.validate.records.fields import Fields

# Names of chips in records -> the catalog's. Any name of the catalog is understood too.
FAMILIES = {
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

# Parts that differ from the catalog's chip, as the records name them.
_VARIANTS: dict[str, dict[str, Value | None]] = {
    "H100-HBM2e-500W": {
        "hbm.capacity": 96 * units.GB,
        "hbm.bandwidth": 2.4 * units.TB,
        "power.chip": 500.0,
    },
}

_RACK = 72  # GPUs that one NVLink domain of an NVL72 rack joins; jobs use a divisor of it or of 64

# What NCCL reaches of Omni-Path, which it does not drive as it does InfiniBand: 90 of 400 Gb/s of
# a node at best (bigscience-workshop/bigscience, experiments/bandwidth, 4 nodes of Jean Zay).
_OMNI_PATH = 90 / 400

_LINKS = re.compile(r"(?:(\d{1,4})\s*x\s*)?(\d{1,6}(?:\.\d{1,3})?)\s*Gb/s")
_SLICES = re.compile(r"(\d{1,6})\s*(?:slices?|slice\(s\)) of (\d{1,6}(?:x\d{1,6})+)")
_PODS = re.compile(r"(\d{1,6}) pods of (\d{1,6})")
_SHAPE = re.compile(r"\d{1,6}(?:x\d{1,6})+")


def system_of(hardware: Fields) -> tuple[System, dict[str, str]]:
    """The machine of a record, and what was assumed about it.

    Links that the record states replace the chip's own figures.

    Raises:
        BadInput: an unknown chip, or a machine that its topology rules out.
    """
    family, count = hardware.text("family"), hardware.whole("count")
    chip = with_values(_chip(family), _VARIANTS.get(family, {}))
    if chip.ici:
        return _slices(chip, hardware, count)
    return _nodes(chip, hardware, count)


def _chip(family: str) -> Chip:
    name = FAMILIES.get(family, family.lower())
    known = set(chip_names())
    if name not in known:
        known |= {family for family, chip in FAMILIES.items() if chip in known}
        raise BadFile(f'unknown chip: "{family}". {nearest(family, known)}')
    return catalog_chip(name)


def _nodes(chip: Chip, hardware: Fields, count: int) -> tuple[System, dict[str, str]]:
    assumed: dict[str, str] = {}
    per_node = hardware.maybe_whole("chips_per_node")
    own = chip.node.n_gpus if chip.node else 1
    if own == _RACK or "NVL72" in hardware.text("topology", ""):
        domain = max(n for n in range(1, min(_RACK, count) + 1) if count % n == 0)
        if count > domain != _RACK:
            assumed["domain"] = f"{domain} of the {_RACK} GPUs of each rack"
    else:
        domain = per_node or own
    links = hardware.text("interconnect", "")
    out = _out_of_node(links, per_node or own, assumed)
    note = re.search(r"(\d{2,4}) W\b", hardware.text("note", ""))
    values: dict[str, Value | None] = {"scale_out.egress": out} if out else {}
    values |= {"power.chip": float(note[1])} if note else {}
    name = f"{chip.name}:{count}"
    if out and not (chip.scale_out and chip.scale_out.bytes_per_s_per_gpu_one_way == out):
        name += f",scale_out={out / units.GB:g}GB/s"
    topology = Switched(n_gpus=count, domain=domain)
    return System(name=name, chip=with_values(chip, values), topology=topology), assumed


def _out_of_node(text: str, per_node: int, assumed: dict[str, str]) -> float | None:
    """B/s that one GPU can send out of its node, from words as `4x100 Gb/s per node`."""
    found = _LINKS.search(text)
    if not found:
        return None
    node = units.parse_rate(f"{found[2]} Gb/s") * int(found[1] or 1)
    if "Omni-Path" in text:
        node *= _OMNI_PATH
        assumed["interconnect"] = f"{_OMNI_PATH:.1%} of Omni-Path's rate, what NCCL reaches of it"
    if "per GPU" in text:
        return node or None
    if "per node" not in text and not found[1]:
        assumed["interconnect"] = f'"{text}" is the rate of a node'
    return node / per_node or None


def _slices(chip: Chip, hardware: Fields, count: int) -> tuple[System, dict[str, str]]:
    assumed: dict[str, str] = {}
    text = hardware.text("topology", "")
    slices, pods, shape = _SLICES.search(text), _PODS.search(text), _SHAPE.fullmatch(text.strip())
    n = int(slices[1]) if slices else int(pods[1]) if pods else 1
    if slices or shape:
        written = slices[2] if slices else text.strip()
        torus = make_slice(chip, tuple(int(part) for part in written.split("x")))
    else:
        torus = _most_compact(chip, int(pods[2]) if pods else count)
        assumed["topology"] = f"{torus}, the most compact slice of {torus.n_chips:,} chips"
    if torus.n_chips * n != count:
        raise BadFile(f"topology: {n} x {torus} is {torus.n_chips * n:,} chips, not {count:,}.")
    name = f"{chip.name}:{torus}" + (f"*{n}" if n > 1 else "")
    return System(name=name, chip=chip, topology=torus, n_slices=n), assumed


def _most_compact(chip: Chip, count: int) -> Torus:
    same = [torus for torus in legal_slices(chip) if torus.n_chips == count]
    if not same:
        raise BadShape(f"topology: no slice of {chip.name} has {count:,} chips.")
    return min(same, key=lambda torus: max(torus.shape))
