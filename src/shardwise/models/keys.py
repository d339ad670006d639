"""Reading a config.json key by key: every read is typed, remembered, and its problems collected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shardwise.models.checks import LARGEST, short
from shardwise.models.irrelevant import IRRELEVANT

# Deeper than any model by two orders of magnitude; bounds the work of reading a config.
MOST_LAYERS = 100_000

_LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention"}
_REQUIRED: Any = object()


class Keys:
    """The keys of one JSON object.

    A read that fails records its problem and returns a harmless stand-in, so that one pass finds
    every problem of a file.
    """

    def __init__(self, data: Mapping[str, Any], prefix: str = "") -> None:
        self._data, self._prefix = data, prefix
        self._read: set[str] = {"model_type", "architectures"}
        self._nested: dict[str, Keys] = {}
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

    def says(self, word: str) -> bool:
        """The model type, or else the first architecture, begins with `word`."""
        architectures = self._data.get("architectures")
        listed = architectures if isinstance(architectures, list) and architectures else [""]
        kind = self._data.get("model_type") or listed[0]
        return str(kind).lower().replace("_", "").startswith(word.replace("_", ""))

    def layers(self, *names: str) -> int:
        """The number of layers, small enough that each can be looked at."""
        value = self.whole(*names)
        if value > MOST_LAYERS:
            return int(self._refuse(names, short(value), f"above {MOST_LAYERS:,} layers", 1))
        return value

    def layer_types(self, n_layers: int, sliding: Callable[[int], bool]) -> list[bool]:
        """For each layer whether its attention is local: as `layer_types` says, else by `sliding`.

        Published types are full_attention, sliding_attention and chunked_attention.
        """
        stated = self.items("layer_types", str)
        if stated is None:
            return [sliding(i) for i in range(n_layers)]
        if len(stated) != n_layers:
            self.refuse(f"layer_types names {len(stated)} layers of {n_layers}.")
        unknown = sorted(set(stated) - _LAYER_TYPES)
        if unknown:
            known = ", ".join(sorted(_LAYER_TYPES))
            self.refuse(f"layer_types has {', '.join(unknown)[:80]}; known are {known}.")
        return [kind != "full_attention" for kind in stated]

    def head_dim(self, D: int, N: int, default: int | None = None) -> int:
        """`head_dim`, or D / N where neither the file nor its family states it."""
        stated = self.maybe("head_dim", default)
        return stated or self.even_heads("num_attention_heads", N, "hidden_size", D)

    def even_heads(self, n_key: str, N: int, d_key: str, D: int) -> int:
        """D / N, which must be whole where the file states no width of a head."""
        if D > 1 and D % N:  # D is a stand-in 1 where it is missing
            self.refuse(f"{n_key} {N} does not divide {d_key} {D}, and no head width is given.")
        return max(1, D // N)

    def number(self, *names: str, default: float) -> float:
        """A number of at least 0, whole or not."""
        value = self._first(names, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            return float(self._refuse(names, value, "not a number", default))
        if not 0 <= value <= LARGEST:
            why = "below 0" if value < 0 else f"above {LARGEST:,}"
            shown = short(value) if isinstance(value, int) else f"{value:.4g}"
            return float(self._refuse(names, shown, why, default))
        return float(value)

    def maybe_number(self, name: str, default: float | None = None) -> float | None:
        """A number of at least 0, None where the key is null, `default` where it is absent."""
        self._read.add(name)
        if name not in self._data:
            return default
        return None if self._data[name] is None else self.number(name, default=1.0)

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of positive numbers; () where the key is absent or null."""
        value = self._first((name,), None)
        if value is None:
            return ()
        if isinstance(value, list) and all(_is_divisor(v) for v in value):
            return tuple(map(float, value))
        self._refuse((name,), value, "not a list of positive numbers", None)
        return ()

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
        self._read.add(name)
        if value is None:
            return self
        if name in self._nested:
            return self._nested[name]
        if not isinstance(value, dict):
            self._refuse((name,), value, "not an object", None)
            value = {}
        nested = Keys(value, f"{self._prefix}{name}.")
        nested.problems = self.problems
        self._nested[name] = nested
        return nested

    def refuse(self, problem: str) -> None:
        """Record a problem of more than one key."""
        self.problems.append(problem)

    def leftover(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Keys never read: (those that may matter, those known to change no count)."""
        rest = sorted(set(self._data) - self._read)
        unused = [self._prefix + k for k in rest if k not in IRRELEVANT]
        ignored = [self._prefix + k for k in rest if k in IRRELEVANT]
        for nested in self._nested.values():
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


def _is_divisor(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value <= LARGEST
