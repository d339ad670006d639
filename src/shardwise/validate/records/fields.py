"""Checked reading of a JSON object: what is missing or wrong is told in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from shardwise.errors import BadFile

LARGEST = 2**31 - 1
SMALLEST_NUMBER, LARGEST_NUMBER = 1e-30, 1e30  # beyond them a figure is a slip


class Fields:
    """A read-only view of one JSON object. `None` and a missing key are the same: not stated.

    Args:
        data: What stood in the file; anything but an object reads as an empty one after `check`.
        where: How messages name this object, "" for the record itself.
    """

    __slots__ = ("data", "where")

    def __init__(self, data: Mapping[str, Any], where: str = "") -> None:
        self.data = data
        self.where = where

    def inner(self, name: str) -> Fields:
        """An object inside this one, empty when not stated.

        Raises:
            BadFile: something else stands there.
        """
        value = self.data.get(name)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise BadFile(f"wrong value: {self._path(name)} is {_short(value)}, not an object.")
        return Fields(value, self._path(name))

    def states(self, name: str) -> bool:
        """Whether the key is there and not null."""
        return self.data.get(name) is not None

    def whole(self, name: str, low: int = 1) -> int:
        """A whole number that must be there."""
        value = self.maybe_whole(name, low)
        if value is None:
            raise BadFile(f"not stated: {self._path(name)}.")
        return value

    def maybe_whole(self, name: str, low: int = 1) -> int | None:
        """A whole number from `low`, or None when not stated."""
        value = self.data.get(name)
        if value is None:
            return None
        if isinstance(value, float) and math.isfinite(value) and value == int(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadFile(
                f"wrong value: {self._path(name)} is {_short(value)}, not a whole number."
            )
        if not low <= value <= LARGEST:
            raise BadFile(
                f"wrong value: {self._path(name)} {_short(value)} is not from {low} to {LARGEST:,}."
            )
        return value

    def maybe_number(self, name: str) -> float | None:
        """A positive number, or None when not stated."""
        value = self.data.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadFile(f"wrong value: {self._path(name)} is {_short(value)}, not a number.")
        if not SMALLEST_NUMBER <= value <= LARGEST_NUMBER:
            raise BadFile(
                f"wrong value: {self._path(name)} {_short(value)} is not a number above 0."
            )
        return float(value)

    def text(self, name: str, default: str | None = None) -> str:
        """Text; the default when not stated, or an error when there is no default."""
        value = self.data.get(name)
        if value is None:
            if default is None:
                raise BadFile(f"not stated: {self._path(name)}.")
            return default
        if not isinstance(value, str):
            raise BadFile(f"wrong value: {self._path(name)} is {_short(value)}, not text.")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false; the default when not stated."""
        value = self.data.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise BadFile(f"wrong value: {self._path(name)} is {_short(value)}, not true or false.")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts, empty when not stated."""
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
    """A value for a message, however large."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**15:
        return "a number beyond 1e15"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
