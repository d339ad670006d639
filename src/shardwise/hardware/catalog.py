"""Chips by name: the TOML files in `catalog/`, or a user's TOML file by its path."""

from __future__ import annotations

import functools
from pathlib import Path

from shardwise.errors import UnknownName, close_names
from shardwise.hardware.chip import Chip
from shardwise.hardware.load import load_chip

_FOLDER = Path(__file__).parent / "catalog"


@functools.cache
def chip_names() -> tuple[str, ...]:
    """Names of all chips that come with the package, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


@functools.cache
def catalog_chip(name: str) -> Chip:
    """A chip of the catalog by its canonical name."""
    return load_chip(_FOLDER / f"{name}.toml")


def find_chip(text: str) -> Chip:
    """Find a chip by its name or an alias (`v5p`, `TPU-v5p`, `ironwood`), or read its TOML file.

    Case does not matter, nor whether words are joined by a hyphen, an underscore or a space.

    Raises:
        UnknownName: no chip has this name; the message lists similar names.
        BadFile: the user's file is missing or invalid.
    """
    if text.endswith(".toml"):
        return load_chip(Path(text))
    name = _normal(text)
    names = chip_names()
    if name in names:
        return catalog_chip(name)
    aliases = {}
    for chip_name in names:
        for alias in catalog_chip(chip_name).aliases:
            aliases[_normal(alias)] = chip_name
    if name in aliases:
        return catalog_chip(aliases[name])
    choices = names
    if not close_names(name, names):  # suggest aliases only if no name is similar
        choices = (*names, *aliases)
    raise UnknownName("chip", text, choices, "List: shardwise hw")


def _normal(text: str) -> str:
    """The spelling by which names are compared: lower case, hyphens, no `tpu-`."""
    return text.strip().lower().replace("_", "-").replace(" ", "-").removeprefix("tpu-")
