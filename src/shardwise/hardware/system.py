"""Machines, and how they are written on the command line: chip, topology, slices, overrides."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from shardwise.errors import BadInput, BadShape, UnknownName, raise_all
from shardwise.hardware.catalog import find_chip
from shardwise.hardware.chip import Chip, get, with_values
from shardwise.hardware.figure import DTYPES, Value, parse_value, unit_of
from shardwise.hardware.machine_names import split_name
from shardwise.hardware.shape import MAX_CHIPS, parse_shape, show_shape
from shardwise.hardware.switched import Switched
from shardwise.hardware.torus import Torus, legal_slices, make_slice, nearest_slices

# Keys of overrides, which follow the size after a comma -> the figures whose values they replace.
OVERRIDES = {
    "hbm": "hbm.capacity",
    "hbm_bandwidth": "hbm.bandwidth",
    "ici": "ici.link",
    "node": "node.egress",
    "scale_out": "scale_out.egress",
    "dcn": "dcn.bandwidth",
    "pcie": "pcie.bandwidth",
    "price": "price.chip_hour",
    "power": "power.chip",
}
QUANTITIES = ("B", "B/s", "FLOP/s", "s", "Hz", "W", "USD/h")  # units of figures with other values
FIGURE_HINT = "Or a figure of shardwise hw CHIP by its name, as core.clock=1.5GHz."

# Least share of a rack that is used: a job of fewer GPUs of each would be placed on fewer racks.
LEAST_OF_RACK = 0.5

_COUNT = re.compile(r"[0-9]+(?:x[0-9]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A machine: one or more slices of equal chips, joined by the data-center network (DCN).

    Args:
        name: the text from which `parse_system` builds this machine, `v5p:16x20x28*4`.
        chip: the chip, with the user's overrides applied.
        topology: topology of one slice.
        n_slices: number of slices.
        in_network_reduction: whether the switches reduce (SHARP): `,sharp=on`.
    """

    name: str
    chip: Chip
    topology: Torus | Switched
    n_slices: int = 1
    in_network_reduction: bool = False

    @property
    def chips_per_slice(self) -> int:
        """Chips of one slice."""
        return self.topology.n_chips

    @property
    def n_chips(self) -> int:
        """Chips of all slices."""
        return self.chips_per_slice * self.n_slices

    @property
    def n_hosts(self) -> int | None:
        """Hosts of all slices; None if the number of chips per host is unknown."""
        if self.chip.chips_per_host is None:
            return None
        return -(-self.chips_per_slice // self.chip.chips_per_host) * self.n_slices

    def resized(self, topology: Torus | Switched, n_slices: int = 1) -> System:
        """A machine of the same chip and overrides with another topology, and a matching name."""
        head, comma, options = self.name.partition(",")
        chip = head.rpartition(":")[0]
        size = f"{topology}*{n_slices}" if n_slices > 1 else f"{topology}"
        name = f"{chip}:{size}{comma}{options}"
        return replace(self, name=name, topology=topology, n_slices=n_slices)


def parse_chip(text: str) -> Chip:
    """Parse a chip, optionally with overrides: `v5e`, `v5e,hbm=16GiB`.

    Raises:
        BadInput: the chip is unknown, its file is invalid, or an override does not apply to it.
    """
    name, *overrides = text.split(",")
    chip = find_chip(name)
    return with_values(chip, _overrides(chip, overrides))


def chip_of(machine: System | Chip) -> Chip:
    """The chip of a machine, or the chip itself."""
    return machine.chip if isinstance(machine, System) else machine


def parse_system(text: str) -> System:
    """Parse `CHIP:SIZE[*SLICES][,KEY=VALUE...]`: `v5p:16x20x28*4`, `h100:64`, `./my.toml:4x4`.

    `machine_names` lists other spellings: `8xh100`, `v5litepod-16`.

    >>> system = parse_system("v5p:16x20x28*4")
    >>> system.n_chips, system.n_hosts
    (35840, 8960)

    Raises:
        BadInput: the chip or an override is unknown, or no machine of this size exists.
    """
    if not isinstance(text, str):
        raise BadShape(f"hardware {text!r} is not a name. Write v5p:4x4x4 or h100:8.")
    head, *overrides = text.split(",")
    name, size = split_name(head)
    chip = find_chip(name)
    if not size:
        raise BadShape(_without_size(chip))
    body, star, count = size.partition("*")
    n_slices = 1
    if star:
        n_slices = _count(count, "number of slices")
    topology = _torus(chip, body) if chip.ici else _switched(chip, body, bool(star))
    if topology.n_chips * n_slices > MAX_CHIPS:
        raise BadShape(
            f'"{text}" is {topology.n_chips * n_slices:,} chips; the limit is {MAX_CHIPS:,}.'
        )
    sharp, overrides = _sharp(chip, overrides)
    canonical_name = f"{chip.spelling}:{topology}"
    if n_slices > 1:
        canonical_name += f"*{n_slices}"
    for override in overrides:
        canonical_name += "," + "".join(override.split())
    if sharp:
        canonical_name += ",sharp=on"
    return System(
        name=canonical_name,
        chip=with_values(chip, _overrides(chip, overrides)),
        topology=topology,
        n_slices=n_slices,
        in_network_reduction=sharp,
    )


def _sharp(chip: Chip, overrides: list[str]) -> tuple[bool, list[str]]:
    """Whether in-network reduction is on, and the other overrides."""
    sharp = False
    other_overrides = []
    for override in overrides:
        key, _, value = override.strip().partition("=")
        if key != "sharp":
            other_overrides.append(override)
        elif value not in ("on", "off"):
            raise BadInput(f'"{override.strip()}": write sharp=on or sharp=off.')
        elif value == "on":
            sharp = True
    if sharp and not (chip.node and chip.node.in_network_reduction):
        raise BadInput(
            f"sharp=on: no public source states that the switches of {chip.name} can reduce."
        )
    return sharp, other_overrides


def _torus(chip: Chip, size: str) -> Torus:
    shape = parse_shape(size, "size")
    if len(shape) > 1:
        return make_slice(chip, shape)
    n_chips = shape[0]
    slices = [torus for torus in legal_slices(chip) if torus.n_chips == n_chips][:4]
    if slices:
        names = ", ".join(f"{chip.name}:{torus}" for torus in slices)
        raise BadShape(
            f"{chip.name}:{n_chips} gives a number of chips, and a torus needs a shape: {names}."
        )
    nearest = nearest_slices(chip, n_chips)
    raise BadShape(f"no slice of {chip.name} has {n_chips:,} chips. {nearest}")


def _switched(chip: Chip, size: str, sliced: bool) -> Switched:
    if not _COUNT.fullmatch(size.strip().lower()):
        raise BadShape(
            f'"{size[:40]}" is not a number of chips. Write a whole number, as {chip.name}:8.'
        )
    shape = parse_shape(size, "size")
    n_chips = math.prod(shape)
    if len(shape) > 1:
        raise BadShape(
            f"{chip.name}:{show_shape(shape)} gives a shape, and {chip.name} has no torus. "
            f"Write the number of chips: {chip.name}:{n_chips}."
        )
    if sliced:
        raise BadShape(
            f"{chip.name} has no slices over DCN (*): write all its chips as one number."
        )
    domain = n_chips
    if chip.node and chip.shares_host and n_chips > chip.node.n_gpus:
        raise BadShape(
            f"{chip.name}:{n_chips} has more devices than {chip.name} was measured as: "
            f"{chip.node.n_gpus}. shardwise hw measure {n_chips} -o FILE.toml measures this CPU as "
            f"{n_chips} devices."
        )
    if chip.node:
        domain = domain_size(chip, n_chips)
    elif n_chips > 1 and chip.kind == "gpu":
        raise BadShape(
            f"{chip.name}:{n_chips} has no links: no public source says how several "
            f"{chip.name} are joined. Write {chip.name}:1, or give a TOML file with your links "
            "(docs/hardware.md)."
        )
    return Switched(n_gpus=n_chips, domain=domain)


def domain_size(chip: Chip, n_chips: int) -> int:
    """GPUs of each domain: all of a node; of a rack, as many in each of as few racks as possible.

    Jobs on racks of 72 leave some hosts of each rack free, so that all racks hold a power of two.

    Args:
        chip: a GPU whose node has a figure.
    """
    rack = chip.node.n_gpus if chip.node else 1
    host = chip.chips_per_host or rack  # which is used as a whole
    if n_chips <= rack or host >= rack:
        return rack
    for n_racks in range(-(-n_chips // rack), int(n_chips / (LEAST_OF_RACK * rack)) + 1):
        if n_chips % (n_racks * host) == 0:
            return n_chips // n_racks
    return rack


def _without_size(chip: Chip) -> str:
    """Message for a chip without a size: what to write instead."""
    if chip.kind == "cpu" and not chip.peak_flops_per_s:
        return (
            f"{chip.name} has no figures. shardwise hw measure 2 -o host.toml measures this CPU "
            "as 2 devices; then write ./host.toml:2."
        )
    if chip.ici:
        sizes = [*map(str, legal_slices(chip)[:4])] or ["x".join("4" * chip.ici.n_axes)]
        examples = ", ".join(f"{chip.name}:{size}" for size in sizes)
    else:
        examples = f"{chip.name}:8, {chip.name}:64"
    return f"{chip.name} needs a size: {examples}."


def _count(text: str, what: str) -> int:
    shape = parse_shape(text, what)
    if len(shape) > 1:
        raise BadShape(f"{what} is a shape. Write one whole number.")
    return shape[0]


def _overridden(key: str) -> str:
    """The figure that an option of the hardware replaces: `hbm`, `bf16`, `core.clock`.

    Raises:
        UnknownName: there is no such figure, or it is no quantity.
    """
    path = OVERRIDES.get(key, f"peak.{key}" if key in DTYPES else key)
    if unit_of(path) not in QUANTITIES:
        raise UnknownName("option of the hardware", key, (*OVERRIDES, *DTYPES), FIGURE_HINT)
    return path


def _figures_of_book(chip: Chip, document: str) -> dict[str, Value | None]:
    """The figures of a chip that the book states: `figures=book`.

    Raises:
        BadInput: it states none, or another document is named.
    """
    if document != "book":
        raise BadInput(
            f'figures="{document}": the figures of one document are known, figures=book.'
        )
    if document not in chip.quotes:
        raise BadInput(f"the book states no figures of {chip.name} that differ from the catalog's.")
    return {path: figure.value for path, figure in chip.quotes[document].items()}


def _overrides(chip: Chip, parts: list[str]) -> dict[str, Value | None]:
    problems: list[str] = []
    values: dict[str, Value | None] = {}
    for part in parts:
        key, equals, raw = map(str.strip, part.partition("="))
        try:
            if not equals:
                raise UnknownName("option of the hardware", key, OVERRIDES, FIGURE_HINT)
            if key == "figures":
                values |= _figures_of_book(chip, raw)
                continue
            path = _overridden(key)
            values[path] = parse_value(raw, unit_of(path) or "", key)
        except BadInput as error:
            problems += error.problems
            continue
        owner = path.split(".")[0]
        if owner in ("ici", "node") and getattr(chip, owner) is None:
            problems.append(f"{key}={raw}: {chip.name} has no {owner} links.")
    raise_all(BadInput, problems)
    if "hbm.capacity" in values and get(chip, "hbm.usable") is not None:
        # The usable capacity was that of the documented capacity, which the user has replaced.
        values["hbm.usable"] = None
    return values
