"""Settings that remember which options were asked for, so that the others can be told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Watched(dict[str, Any]):
    """The settings of a file; options are remembered by the last part of their names.

    >>> settings = Watched({"--tp-size": 8, "model": {"name": "x"}})
    >>> settings.get("--tp-size"), "a.pp_size" in settings, sorted(settings.asked)
    (8, False, ['pp_size', 'tp_size'])
    """

    def __init__(self, values: Mapping[str, Any], asked: set[str] | None = None) -> None:
        super().__init__(values)
        self.asked: set[str] = set() if asked is None else asked

    def __contains__(self, key: object) -> bool:
        self.asked.add(last_name(str(key)))
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(last_name(key))
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(last_name(key))
        return super().get(key, default)


def as_watched(settings: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Values made of settings, watched together with them if they are."""
    return Watched(values, settings.asked) if isinstance(settings, Watched) else values


def last_name(path: str) -> str:
    """The last part of a name, in the spelling by which options are compared."""
    return path.rpartition(".")[2].lstrip("-").replace("-", "_").lower()
