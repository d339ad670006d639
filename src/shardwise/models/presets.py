"""The models that ship with the package: config.json files as published, with their names."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "presets"
_INDEX = "index.json"
_SUFFIX = re.compile(r"[-_](hf|base|instruct|chat|it|pt)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Where a preset comes from.

    Args:
        name: Its name on the command line.
        source: Public origin of its config: hub repository or document.
        as_of: Month in which that version was published, "YYYY-MM".
        aliases: Other names.
        outside_transformers: Why the transformers library cannot build it, "" where it can.
    """

    name: str
    source: str
    as_of: str
    aliases: tuple[str, ...] = ()
    outside_transformers: str = ""

    def read(self) -> dict[str, Any]:
        """The config as published."""
        data: dict[str, Any] = json.loads((FOLDER / f"{self.name}.json").read_text("utf-8"))
        return data


@functools.cache
def presets() -> dict[str, Preset]:
    """All presets by name."""
    rows = json.loads((FOLDER / _INDEX).read_text("utf-8"))
    return {
        name: Preset(name=name, **{**row, "aliases": tuple(row.get("aliases", ()))})
        for name, row in rows.items()
    }


def names() -> tuple[str, ...]:
    """Names of all presets."""
    return tuple(presets())


def find(name: str) -> Preset | None:
    """The preset of that name, hub repository or alias, however its separators are written.

    >>> find("meta-llama/Meta-Llama-3-70B").name
    'llama3-70b'
    """
    found = presets().get(name) or _by_spelling().get(_spell(name))
    owner = name.rpartition("/")[0].lower()
    return None if found and owner not in ("", found.source.rpartition("/")[0].lower()) else found


@functools.cache
def _by_spelling() -> dict[str, Preset]:
    found = {}
    for preset in presets().values():
        for name in (*preset.aliases, preset.source, preset.name):
            found[_spell(name)] = preset
    return found


def _spell(name: str) -> str:
    """`Meta-Llama-3-70B` and `llama3-70b` spelled alike: lower case, no owner, no separators."""
    word = name.lower().rsplit("/", 1)[-1].removeprefix("meta-")
    while (shorter := _SUFFIX.sub("", word)) != word:
        word = shorter
    return re.sub(r"[^a-z0-9]", "", word)
