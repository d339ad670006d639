"""Chips by name: the TOML files in `catalog/`, or a user's TOML file by its path."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from pathlib import Path

from shardwise.errors import BadInput, UnknownName, close_names
from shardwise.hardware.chip import Chip
from shardwise.hardware.load import load_chip
from shardwise.units import GB

_FOLDER = Path(__file__).parent / "catalog"

# Words of a name that tell no two chips of the catalog apart.
_SPARE_WORD = re.compile(r"nvidia|geforce|tesla|amd|instinct|google|cloud|tpu|sxm\d?|hbm\d?e?")
_GIGABYTES = re.compile(r"(?<=\d)-?gi?b?\b")
_WITH_MEMORY = re.compile(r"(?P<chip>.+)-(?P<gigabytes>\d{1,4})g")

# Chips without a file of their own -> (the nearest chip, what tells them apart).
_NEAREST = {
    "a800": ("a100", "An A800 is an A100 with 400 GB/s of NVLink: a100:8,node=200GB/s."),
}


@functools.cache
def chip_names() -> tuple[str, ...]:
    """Names of all chips that come with the package, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def catalog_file(name: str) -> Path:
    """The file of a chip of the catalog, by its canonical name."""
    return _FOLDER / f"{name}.toml"


@functools.cache
def catalog_chip(name: str) -> Chip:
    """A chip of the catalog by its canonical name."""
    return load_chip(catalog_file(name))


def find_chip(text: str) -> Chip:
    """Find a chip by its name or an alias (`v5p`, `TPU-v5p`, `ironwood`), or read its TOML file.

    Case does not matter, nor whether words are joined by a hyphen, an underscore or a space, nor
    the vendor, nor the size of the memory: `NVIDIA H100 80GB HBM3` is `h100`.

    Raises:
        UnknownName: no chip has this name; the message lists similar names.
        BadInput: it is a path of another kind of file.
        BadFile: the user's file is missing or invalid.
    """
    if text.endswith(".toml"):
        return replace(load_chip(Path(text)), path=text.strip())
    if "/" in text or text.endswith(".json"):
        raise BadInput(
            f'"{text}" is no file of a chip: its name ends in .toml. shardwise hw measure N -o '
            "host.toml writes one of this machine."
        )
    name = _normal(text)
    chip = _named(name)
    if chip:
        return chip
    if has_nearest(text):
        nearest_chip, difference = _NEAREST[name.split("-")[0]]
        raise UnknownName("chip", text, (nearest_chip,), difference)
    choices = chip_names()
    if not close_names(name, choices):  # suggest aliases only if no name is similar
        choices = (*choices, *_aliases())
    raise UnknownName("chip", text, choices, "List: shardwise hw")


def is_chip(text: str) -> bool:
    """Whether the catalog has a chip of this name."""
    return _named(_normal(text)) is not None


def has_nearest(text: str) -> bool:
    """Whether the catalog has no such chip but knows what it is nearest to."""
    return _normal(text).split("-")[0] in _NEAREST


def _named(name: str) -> Chip | None:
    """The chip of a normal spelling, which may end in the size of its memory."""
    if name in chip_names():
        return catalog_chip(name)
    if name in _aliases():
        return catalog_chip(_aliases()[name])
    match = _WITH_MEMORY.fullmatch(name)
    chip = _named(match["chip"]) if match else None
    if match and chip and round((chip.hbm_bytes or 0) / GB) == int(match["gigabytes"]):
        return chip
    return None


@functools.cache
def _aliases() -> dict[str, str]:
    """Normal spelling of each alias -> the name of its chip."""
    aliases = {}
    for chip_name in chip_names():
        for alias in catalog_chip(chip_name).aliases:
            aliases[_normal(alias)] = chip_name
    return aliases


def _normal(text: str) -> str:
    """The spelling by which names are compared: `NVIDIA A100-SXM4-80GB` -> `a100-80g`."""
    spelled = re.sub(r"[\s_-]+", "-", text.strip().lower())
    words = _GIGABYTES.sub("g", spelled).split("-")
    return "-".join(word for word in words if not _SPARE_WORD.fullmatch(word))
