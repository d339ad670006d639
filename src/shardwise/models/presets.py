"""Presets: published config.json files that ship with the package, and their names."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "presets"
_INDEX = "index.json"
_NAME = re.compile(r"[\w./-]+", re.ASCII)
# Words of a tuned or converted checkpoint, perhaps before its version, and months of releases.
_TUNED = re.compile(r"[-_](hf|base|instruct|chat|it|pt|thinking)(?=[-_]v?[\d.]+$|$)|[-_]\d{4}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A preset and its origin.

    Args:
        name: Name on the command line.
        source: Public origin of the config: hub repository or document.
        as_of: Month in which that version was published, "YYYY-MM".
        aliases: Other names.
        outside_transformers: Why the transformers library cannot build the model; "" if it can.
    """

    name: str
    source: str
    as_of: str
    aliases: tuple[str, ...] = ()
    outside_transformers: str = ""

    def read(self) -> dict[str, Any]:
        """Read the config.json as published."""
        data: dict[str, Any] = json.loads((FOLDER / f"{self.name}.json").read_text("utf-8"))
        return data


@functools.cache
def presets() -> dict[str, Preset]:
    """All presets by name."""
    rows = json.loads((FOLDER / _INDEX).read_text("utf-8"))
    result = {}
    for name, row in rows.items():
        aliases = tuple(row.pop("aliases", ()))
        result[name] = Preset(name=name, aliases=aliases, **row)
    return result


def names() -> tuple[str, ...]:
    """Names of all presets."""
    return tuple(presets())


def find(name: str) -> Preset | None:
    """Find a preset by its name, hub repository or an alias; None if there is none.

    Case does not matter, nor whether words are joined by a hyphen, an underscore or a point.

    >>> find("meta-llama/Meta-Llama-3-70B").name
    'llama3-70b'
    """
    if not _NAME.fullmatch(name):
        return None
    preset = presets().get(name) or _by_spelling().get(_spell(name))
    owner = name.rpartition("/")[0].lower()
    if preset and owner and owner != preset.source.rpartition("/")[0].lower():
        return None
    return preset


@functools.cache
def _by_spelling() -> dict[str, Preset]:
    by_spelling = {}
    for preset in presets().values():
        for name in (*preset.aliases, preset.source, preset.name):
            by_spelling[_spell(name)] = preset
    return by_spelling


def _spell(name: str) -> str:
    """The spelling by which names are compared: `Meta-Llama-3-70B-hf` -> `llama370b`."""
    word = name.lower().rsplit("/", 1)[-1].removeprefix("meta-")
    while (shorter := _TUNED.sub("", word)) != word:
        word = shorter
    return re.sub(r"[^a-z0-9]", "", word)
