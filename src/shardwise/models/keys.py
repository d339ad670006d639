"""Reading a config.json key by key: every read is typed, remembered, and its problems collected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwise.models.checks import LARGEST, short
from shardwise.models.irrelevant import IRRELEVANT

_REQUIRED: Any = object()


class Keys:
    """The keys of one JSON object.

    A read that fails records its problem and returns a harmless stand-in, so that one pass finds
    every problem of a file.
    """

    def __init__(self, data: Mapping[str, Any], prefix: str = "") -> None:
        self._data, self._prefix = data, prefix
        self._read: set[str] = {"model_type", "architectures"}
        self._nested: list[Keys] = []
        self.problems: list[str] = []

    def has(self, name: str) -> bool:
        """The key is there and is not null."""
        return self._data.get(name) is not None

    def whole(self, *names: str, default: int = _REQUIRED, low: int = 1) -> int:
        """A whole number of at least `low`, under the first of `names` that is there."""
        value = self._first(names, default)
        if value is _REQUIRED:
            return low or 1
        if isinstance(value, bool) or not isinstance(value, int):
            return int(self._refuse(names, value, "not a whole number", low or 1))
        if not low <= value <= LARGEST:
            side = f"below {low}" if value < low else f"above {LARGEST:,}, the largest dim"
            return int(self._refuse(names, short(value), side, low or 1))
        return value

    def maybe(self, name: str, default: int | None = None, low: int = 1) -> int | None:
        """A whole number, None where the key is null, `default` where it is absent."""
        self._read.add(name)
        if name not in self._data:
            return default
        return None if self._data[name] is None else self.whole(name, low=low)

    def head_dim(self, D: int, N: int) -> int:
        """`head_dim`, or D / N where the file does not state it."""
        stated = self.maybe("head_dim")
        if stated is None and D % N:
            self.problems.append(
                f"{self._prefix}num_attention_heads {N} does not divide hidden_size {D}, and "
                "head_dim is not given."
            )
        return stated or max(1, D // N)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._first((name,), default)
        if not isinstance(value, bool):
            return bool(self._refuse((name,), value, "not true or false", default))
        return value

    def text(self, name: str, default: str) -> str:
        """A string."""
        value = self._first((name,), default)
        return value if isinstance(value, str) else self._refuse((name,), value, "no text", default)

    def items(self, name: str, kind: type) -> list[Any] | None:
        """A list whose members are all of one kind, or None where the key is absent or null."""
        value = self._first((name,), None)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(v) is kind for v in value):
            self._refuse((name,), value, f"not a list of {kind.__name__}", None)
            return None
        return value

    def inner(self, name: str) -> Keys:
        """The object under `name`; this one where it is absent (a config of the text model)."""
        value = self._data.get(name)
        if value is None:
            return self
        self._read.add(name)
        if not isinstance(value, dict):
            self._refuse((name,), value, "not an object", None)
            value = {}
        nested = Keys(value, f"{self._prefix}{name}.")
        nested.problems = self.problems
        self._nested.append(nested)
        return nested

    def refuse(self, problem: str) -> None:
        """Record a problem of more than one key."""
        self.problems.append(problem)

    def leftover(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Keys never read: (those that may matter, those known to change no count)."""
        rest = sorted(set(self._data) - self._read)
        unused = [self._prefix + k for k in rest if k not in IRRELEVANT]
        ignored = [self._prefix + k for k in rest if k in IRRELEVANT]
        for nested in self._nested:
            more_unused, more_ignored = nested.leftover()
            unused += more_unused
            ignored += more_ignored
        return tuple(unused), tuple(ignored)

    def _first(self, names: tuple[str, ...], default: Any) -> Any:
        self._read.update(names)
        for name in names:
            if self._data.get(name) is not None:
                return self._data[name]
        if default is _REQUIRED:
            self.problems.append(f"missing key {self._prefix}{' or '.join(names)}.")
        return default

    def _refuse(self, names: tuple[str, ...], value: Any, why: str, stand_in: Any) -> Any:
        name = next((n for n in names if n in self._data), names[0])
        shown = value if isinstance(value, str) and why[0] in "ab" else repr(value)[:40]
        self.problems.append(f"{self._prefix}{name} {shown} is {why}.")
        return stand_in
