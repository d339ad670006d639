"""Checked reading of a JSON object; errors name the field and say what is missing or wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from shardwise.errors import BadFile

MAX_INTEGER = 2**31 - 1
# A figure beyond these is a slip.
MIN_NUMBER = 1e-30
MAX_NUMBER = 1e30
MAX_SHOWN = 40  # characters of a value in a message


class Fields:
    """A read-only view of a JSON object. A key that is null counts as missing.

    Args:
        data: The JSON object.
        where: The path of this object in messages, "" for the record itself.
    """

    __slots__ = ("data", "where")

    def __init__(self, data: Mapping[str, Any], where: str = "") -> None:
        self.data = data
        self.where = where

    def inner(self, name: str) -> Fields:
        """A nested object, empty when missing.

        Raises:
            BadFile: the value is not an object.
        """
        value = self.data.get(name)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise BadFile(f"wrong value: {self._path(name)} is {_short(value)}, not an object.")
        return Fields(value, self._path(name))

    def has(self, name: str) -> bool:
        """Whether the key is present and not null."""
        return self.data.get(name) is not None

    def integer(self, name: str, low: int = 1) -> int:
        """A required integer."""
        value = self.optional_integer(name, low)
        if value is None:
            raise BadFile(f"not stated: {self._path(name)}.")
        return value

    def optional_integer(self, name: str, low: int = 1) -> int | None:
        """An integer of at least `low`, or None when missing."""
        value = self.data.get(name)
        if value is None:
            return None
        if isinstance(value, float) and math.isfinite(value) and value == int(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadFile(
                f"wrong value: {self._path(name)} is {_short(value)}, not a whole number."
            )
        if not low <= value <= MAX_INTEGER:
            bounds = f"from {low} to {MAX_INTEGER:,}"
            raise BadFile(f"wrong value: {self._path(name)} {_short(value)} is not {bounds}.")
        return value

    def optional_number(self, name: str) -> float | None:
        """A positive number, or None when missing."""
        value = self.data.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadFile(f"wrong value: {self._path(name)} is {_short(value)}, not a number.")
        if not MIN_NUMBER <= value <= MAX_NUMBER:
            raise BadFile(
                f"wrong value: {self._path(name)} {_short(value)} is not a number above 0."
            )
        return float(value)

    def text(self, name: str, default: str | None = None) -> str:
        """Text; `default` when missing, an error without a default."""
        value = self.data.get(name)
        if value is None:
            if default is None:
                raise BadFile(f"not stated: {self._path(name)}.")
            return default
        if not isinstance(value, str):
            raise BadFile(f"wrong value: {self._path(name)} is {_short(value)}, not text.")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false; `default` when missing."""
        value = self.data.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise BadFile(f"wrong value: {self._path(name)} is {_short(value)}, not true or false.")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts, empty when missing."""
        value = self.data.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
            raise BadFile(
                f"wrong value: {self._path(name)} is {_short(value)}, not a list of texts."
            )
        return tuple(value)

    def _path(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name


def _short(value: object) -> str:
    """A value for a message, shortened if long."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**15:
        return "a number beyond 1e15"
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
