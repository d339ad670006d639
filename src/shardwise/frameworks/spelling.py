"""Misspelled options: those that no framework has, but that are close to one which it has.

The names stand in `options/`, one file for each framework, read from its sources by
bench/framework_options.py. A file may have other options than these, of a recipe or a script of the
user's; they are no business of a layout and are passed over.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from shardwise.frameworks.exported import Settings, flat

FOLDER = Path(__file__).parent / "options"
CLOSE = 0.9  # share of equal letters
SHORTEST = 8  # letters; shorter names resemble too many others
SHORT = 4  # letters of flags that are other names of an option
WORD = 5  # letters of a part that a misspelled one may be


def misspelled(settings: Settings, framework: str) -> list[str]:
    """`OPTION; close: OPTION` for each option of a file that is likely a misspelled one."""
    names = _names(framework)
    found = []
    for key in _keys(settings):
        plain = _plain(key)
        is_option = plain in names or plain.removeprefix("no_") in names or _is_inside(key, names)
        if len(plain) < SHORTEST or key.isupper() or is_option:  # variables of scripts are upper
            continue
        close = difflib.get_close_matches(plain, names, 1, CLOSE)
        if close:
            found.append(f"{key}; close: {names[close[0]]}")
    return found


def may_be_option(flag: str, framework: str) -> bool:
    """Whether a flag is one of a framework, or is too short to be in its list, as `--tp`."""
    names, plain = _names(framework), _plain(flag)
    return not names or len(plain) <= SHORT or plain in names or plain.removeprefix("no_") in names


def unknown_options(settings: Settings, framework: str) -> list[str]:
    """Options of a file, without flags and variables of a script, that the framework lacks.

    Those that `misspelled` names are left out.
    """
    names = _names(framework)
    misspellings = {text.partition(";")[0] for text in misspelled(settings, framework)}
    return [
        key
        for key in settings
        if re.fullmatch(r"[a-z]\w*", key)
        and key != "text"
        and _plain(key) not in names
        and key not in misspellings
    ]


def _is_inside(key: str, names: Mapping[str, str]) -> bool:
    """Whether a path leads into the table of an option, whose keys are not in the list."""
    table, _, last = key.rpartition(".")
    return bool(last and "." in table and _plain(table) in names)


def _keys(settings: Settings) -> Iterator[str]:
    """The options of a file: flags and paths, and the tables that paths go through."""
    for path in flat(settings):
        if path not in ("$", "text"):
            yield path
            if "." in path and not path.startswith("-"):
                yield path.partition(".")[0]


@functools.cache
def _names(framework: str) -> dict[str, str]:
    """Spelling by which options are compared -> the option."""
    file = FOLDER / f"{framework}.json"
    if not file.exists():
        return {}
    options = json.loads(file.read_text(encoding="utf-8"))["options"]
    names = {_plain(option): option for option in options}
    return names | {_plain(head): head for option in options if (head := option.split(".")[0])}


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()
