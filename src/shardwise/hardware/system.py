"""What is written on the command line -> the machine: chip, topology, slices."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from shardwise.errors import BadInput, BadShape, UnknownName, raise_all
from shardwise.hardware.catalog import find_chip
from shardwise.hardware.chip import Chip, get, with_values
from shardwise.hardware.figure import Value, parse_value, unit_of
from shardwise.hardware.shape import MAX_CHIPS, Shape, parse_shape, show_shape
from shardwise.hardware.switched import Switched
from shardwise.hardware.torus import Torus, legal_slices, make_slice, nearest_slices

# What may follow the hardware after a comma, and the figure it replaces.
OVERRIDES = {
    "hbm": "hbm.capacity",
    "hbm_bandwidth": "hbm.bandwidth",
    "ici": "ici.link",
    "node": "node.egress",
    "scale_out": "scale_out.egress",
    "dcn": "dcn.bandwidth",
    "pcie": "pcie.bandwidth",
    "price": "price.chip_hour",
}

_JOINED = re.compile(r"(.+[a-z0-9])x([0-9]{1,9})", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A machine: slices of one chip, joined over the data-center network when several.

    Args:
        name: the text that gives this system again, `v5p:16x20x28*4`.
        chip: the chip, with the user's own values in place.
        topology: how the chips of one slice are joined.
        n_slices: slices joined over DCN.
        in_network_reduction: the switches add (SHARP), asked for with `,sharp=on`.
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
        """Hosts of all slices, None where the chips of a host are not known."""
        if self.chip.chips_per_host is None:
            return None
        return -(-self.chips_per_slice // self.chip.chips_per_host) * self.n_slices

    def resized(self, topology: Torus | Switched, n_slices: int = 1) -> System:
        """The same chip and options in another size, with the name of that size."""
        head, comma, options = self.name.partition(",")
        chip = head.rpartition(":")[0]
        size = f"{topology}*{n_slices}" if n_slices > 1 else f"{topology}"
        name = f"{chip}:{size}{comma}{options}"
        return replace(self, name=name, topology=topology, n_slices=n_slices)


def parse_chip(text: str) -> Chip:
    """A chip without a size, with or without values of one's own: `v5e`, `v5e,hbm=16GiB`.

    Raises:
        BadInput: an unknown chip, a wrong file, or every override that cannot be used.
    """
    name, *overrides = text.split(",")
    chip = find_chip(name)
    return with_values(chip, _overrides(chip, overrides))


def parse_system(text: str) -> System:
    """`CHIP:SIZE[*SLICES][,KEY=VALUE...]`: `v5p:16x20x28*4`, `h100:64`, `./my.toml:4x4`.

    >>> system = parse_system("v5p:16x20x28*4")
    >>> system.n_chips, system.n_hosts
    (35840, 8960)

    Raises:
        BadInput: an unknown chip or override, a size that cannot exist, or one that is absurd.
    """
    if not isinstance(text, str):
        raise BadShape(f"hardware {text!r} is no name. Write v5p:4x4x4 or h100:8.")
    head, *overrides = text.split(",")
    name, colon, size = head.rpartition(":")
    if not colon:
        raise BadShape(_without_size(head))
    chip = find_chip(name)
    body, star, count = size.partition("*")
    n_slices = _count(count, "number of slices") if star else 1
    shape = parse_shape(body, "size")
    topology = _torus(chip, shape) if chip.ici else _switched(chip, shape, bool(star))
    if topology.n_chips * n_slices > MAX_CHIPS:
        raise BadShape(
            f'"{text}" is {topology.n_chips * n_slices:,} chips; the limit is {MAX_CHIPS:,}.'
        )
    sharp, overrides = _sharp(chip, overrides)
    values = _overrides(chip, overrides)
    canonical = f"{name.strip() if name.endswith('.toml') else chip.name}:{topology}"
    canonical += f"*{n_slices}" if n_slices > 1 else ""
    return System(
        name=",".join((canonical, *("".join(p.split()) for p in overrides), *["sharp=on"] * sharp)),
        chip=with_values(chip, values),
        topology=topology,
        n_slices=n_slices,
        in_network_reduction=sharp,
    )


def _sharp(chip: Chip, parts: list[str]) -> tuple[bool, list[str]]:
    """Whether in-network reduction is asked for, and the other overrides."""
    asked = [p.strip() for p in parts if p.strip().startswith("sharp=")]
    rest = [p for p in parts if p.strip() not in asked]
    for part in asked:
        if part not in ("sharp=on", "sharp=off"):
            raise BadInput(f'"{part}": write sharp=on or sharp=off.')
    if "sharp=on" in asked and not (chip.node and chip.node.in_network_reduction):
        raise BadInput(f"sharp=on: no public source says that the switches of {chip.name} add.")
    return "sharp=on" in asked, rest


def _torus(chip: Chip, shape: Shape) -> Torus:
    if len(shape) > 1:
        return make_slice(chip, shape)
    asked = f"{chip.name}:{shape[0]}"
    same = [s for s in legal_slices(chip) if s.n_chips == shape[0]][:4]
    if same:
        listed = ", ".join(f"{chip.name}:{s}" for s in same)
        raise BadShape(f"{asked} gives a number of chips, and a torus needs a shape: {listed}.")
    nearest = nearest_slices(chip, shape[0])
    raise BadShape(f"no slice of {chip.name} has {shape[0]:,} chips. {nearest}")


def _switched(chip: Chip, shape: Shape, sliced: bool) -> Switched:
    n_chips = 1
    for n in shape:
        n_chips *= n
    if len(shape) > 1:
        raise BadShape(
            f"{chip.name}:{show_shape(shape)} gives a shape, and {chip.name} has no torus. "
            f"Write the number of chips: {chip.name}:{n_chips}."
        )
    if sliced:
        raise BadShape(
            f"{chip.name} has no slices over DCN (*): write all its chips as one number."
        )
    return Switched(n_gpus=n_chips, domain=chip.node.n_gpus if chip.node else n_chips)


def _without_size(text: str) -> str:
    """What to write instead of a chip without its size."""
    joined = _JOINED.fullmatch(text.strip())
    if joined:
        try:
            return f'"{text}" has no colon. Write {find_chip(joined[1]).name}:{joined[2]}.'
        except BadInput:
            pass
    chip = find_chip(text)
    if chip.ici:
        small = [str(s) for s in legal_slices(chip)[:4]] or ["x".join("4" * chip.ici.n_axes)]
        examples = ", ".join(f"{chip.name}:{size}" for size in small)
    else:
        examples = f"{chip.name}:8, {chip.name}:64"
    return f"{chip.name} needs a size: {examples}."


def _count(text: str, what: str) -> int:
    shape = parse_shape(text, what)
    if len(shape) > 1:
        raise BadShape(f"{what} is a shape. Write one whole number.")
    return shape[0]


def _overrides(chip: Chip, parts: list[str]) -> dict[str, Value | None]:
    problems: list[str] = []
    values: dict[str, Value | None] = {}
    for part in parts:
        key, equals, raw = (piece.strip() for piece in part.partition("="))
        try:
            if not equals or key not in OVERRIDES:
                raise UnknownName("option of the hardware", key, OVERRIDES)
            path = OVERRIDES[key]
            values[path] = parse_value(raw, unit_of(path) or "", key)
        except BadInput as error:
            problems += error.problems
            continue
        owner = path.split(".")[0]
        if owner in ("ici", "node") and getattr(chip, owner) is None:
            problems.append(f"{key}={raw}: {chip.name} has no {owner} links.")
    raise_all(BadInput, problems)
    if "hbm.capacity" in values and get(chip, "hbm.usable") is not None:
        # The driver's figure belongs to the capacity that was replaced.
        values["hbm.usable"] = None
    return values
