"""Type-checked access to the fields of a JSON object, with errors that name the field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from shardwise.errors import BadFile

MAX_INTEGER = 2**31 - 1
# Bounds of plausible numbers; a number outside is a mistake in the record.
MIN_NUMBER = 1e-30
MAX_NUMBER = 1e30
MAX_SHOWN = 40  # most characters of a value that an error message shows


class JsonReader:
    """Type-checked reader of a JSON object. A field that is null counts as missing.

    Its methods raise BadFile for a value of another kind, and for a required field that is missing.

    Args:
        path: Path of this object in the record, for error messages; "" for the record itself.
    """

    __slots__ = ("data", "path")

    def __init__(self, data: Mapping[str, Any], path: str = "") -> None:
        self.data = data
        self.path = path

    def section(self, name: str) -> JsonReader:
        """Return a reader of the nested object `name`, or of an empty object if it is missing."""
        value = self.data.get(name)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self._wrong(name, "not an object")
        return JsonReader(value, self._path_of(name))

    def has(self, name: str) -> bool:
        """Whether the field is present and not null."""
        return self.data.get(name) is not None

    def integer(self, name: str, minimum: int = 1) -> int:
        """Return an integer of at least `minimum`."""
        value = self.optional_integer(name, minimum)
        if value is None:
            raise BadFile(f"not stated: {self._path_of(name)}.")
        return value

    def optional_integer(self, name: str, minimum: int = 1) -> int | None:
        """Return an integer of at least `minimum`, or None if the field is missing."""
        value = self.data.get(name)
        if value is None:
            return None
        if isinstance(value, float) and math.isfinite(value) and value == int(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, "not a whole number")
        if not minimum <= value <= MAX_INTEGER:
            raise self._outside(name, value, f"from {minimum} to {MAX_INTEGER:,}")
        return value

    def optional_number(self, name: str) -> float | None:
        """Return a positive number, or None if the field is missing."""
        value = self.data.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, "not a number")
        if not MIN_NUMBER <= value <= MAX_NUMBER:
            raise self._outside(name, value, "a number above 0")
        return float(value)

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string, or `default` if the field is missing."""
        value = self.data.get(name)
        if value is None:
            if default is None:
                raise BadFile(f"not stated: {self._path_of(name)}.")
            return default
        if not isinstance(value, str):
            raise self._wrong(name, "not text")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a boolean, or `default` if the field is missing."""
        value = self.data.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(name, "not true or false")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings, empty if the field is missing."""
        value = self.data.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
            raise self._wrong(name, "not a list of texts")
        return tuple(value)

    def _wrong(self, name: str, wanted: str) -> BadFile:
        """The error that a field has another kind of value."""
        value = _short(self.data[name])
        return BadFile(f"wrong value: {self._path_of(name)} is {value}, {wanted}.")

    def _outside(self, name: str, value: float, bounds: str) -> BadFile:
        """The error that a number is out of its bounds."""
        return BadFile(f"wrong value: {self._path_of(name)} {_short(value)} is not {bounds}.")

    def _path_of(self, name: str) -> str:
        """Path of a field in the record, for error messages."""
        return f"{self.path}.{name}" if self.path else name


def _short(value: object) -> str:
    """Return the `repr` of a value for an error message, shortened if it is long."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**15:
        return "a number beyond 1e15"
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
