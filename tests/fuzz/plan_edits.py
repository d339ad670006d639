"""Damaged copies of a plan.json, drawn by a seed: each differs from the plan in one place."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Path = tuple[str | int, ...]

FEW = 2  # elements of a list that are edited: the others have the same keys

# How an edit is called -> what it writes in place of the value.
REPLACEMENTS: dict[str, Callable[[Any], Any]] = {
    "null": lambda value: None,
    "list": lambda value: [value],
    "empty list": lambda value: [],
    "object": lambda value: {"value": value},
    "empty object": lambda value: {},
    "word": lambda value: "zzz",
    "empty word": lambda value: "",
    "word nan": lambda value: "nan",
    "zero": lambda value: 0,
    "one": lambda value: 1,
    "-1": lambda value: -1,
    "1e30": lambda value: 1e30,
    "huge": lambda value: 10**40,
    "half": lambda value: 0.5,
    "true": lambda value: True,
    "one more": lambda value: value + 1 if is_number(value) else [value, value],
    "negative": lambda value: -value if is_number(value) else -1e-9,
    "seven times": lambda value: 7 * value if is_number(value) else "zero 7",
}
MOVES = ("delete", "rename", "add")

# Documents that are damaged as a whole, made of the text of a plan.
WHOLES: dict[str, Callable[[str], bytes]] = {
    "empty": lambda text: b"",
    "a list": lambda text: b"[]",
    "a number": lambda text: b"3",
    "null": lambda text: b"null",
    "a byte order mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "UTF-16": lambda text: text.encode("utf-16"),
    "cut off": lambda text: text[: len(text) // 2].encode(),
    "nested lists": lambda text: b"[" * 50_000 + b"]" * 50_000,
    "900 nested lists": lambda text: b"[" * 900 + b"]" * 900,
    "nested schema": lambda text: b'{"schema": ' + b"[" * 900 + b"]" * 900 + b"}",
    "nested objects": lambda text: b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "nested architecture": lambda text: text.replace(
        '"groups": [', f'"deep": {"[" * 50_000 + "]" * 50_000}, "groups": [', 1
    ).encode(),
    "NaN": lambda text: text.replace('"bubble_fraction": 0.0', '"bubble_fraction": NaN').encode(),
    "not UTF-8": lambda text: text.encode().replace(b"shardwise", b"\xff\xfe", 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A damaged plan.

    Args:
        name: what was done, for the report of a failure.
        words: words of which an error must name one: the keys that lead to the edited value.
        text: the document.
    """

    name: str
    words: tuple[str, ...]
    text: bytes


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def edits(text: str, n: int, seed: int) -> Iterator[Edit]:
    """Yield every damaged document of `WHOLES`, then `n` edits of one value, drawn by `seed`."""
    for name, damage in WHOLES.items():
        yield Edit(name=name, words=("JSON", "schema", "nested", "plan"), text=damage(text))
    document = json.loads(text)
    choices = [(path, how) for path in _paths(document) for how in (*REPLACEMENTS, *MOVES)]
    for path, how in random.Random(seed).sample(choices, min(n, len(choices))):
        # A figure may be named in words: "the dense peak at bf16" for peak.bf16.
        names = [part for part in path if isinstance(part, str)]
        keys = (*names, names[-1].rpartition(".")[2])
        where = ".".join(map(str, path))
        yield Edit(
            name=f"{how} {where}",
            words=keys,
            text=json.dumps(_edited(document, path, how)).encode(),
        )


def _paths(value: Any) -> Iterator[Path]:
    """Yield the path of every value in a document, of lists only the first `FEW` elements."""
    items: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    if isinstance(value, list):
        items = list(enumerate(value[:FEW]))
    for key, inner in items:
        yield (key,)
        for path in _paths(inner):
            yield (key, *path)


def _edited(document: Any, path: Path, how: str) -> Any:
    """A copy of the document with one value edited."""
    changed = copy.deepcopy(document)
    owner = changed
    for key in path[:-1]:
        owner = owner[key]
    last: Any = path[-1]
    if how in REPLACEMENTS:
        owner[last] = REPLACEMENTS[how](owner[last])
        return changed
    value = owner[last]
    if how != "add":
        del owner[last]
    if how != "delete":
        if isinstance(owner, dict):
            owner[f"{last}x"] = value
        else:
            owner.append(value)
    return changed
