"""A reader of config.json that checks types, and collects problems and the keys it did not read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwise.models.checks import LARGEST, outside, short
from shardwise.models.irrelevant import BESIDE, IRRELEVANT, is_count

# The most layers that a config may have: 100 times those of any model, so that a wrong number does
# not make loading slow.
MAX_LAYERS = 100_000

_LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention"}
_REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class UnreadKeys:
    """The keys that a family did not read, each kind in a list: see `irrelevant`.

    Args:
        irrelevant: Keys that change nothing here.
        beside: Keys of something that is not counted.
        counts: Keys that may state a count, with their values.
        unknown: All others.
    """

    irrelevant: list[str] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)
    counts: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def extend(self, other: UnreadKeys) -> None:
        """Add the keys of a nested object."""
        self.irrelevant.extend(other.irrelevant)
        self.beside.extend(other.beside)
        self.counts.extend(other.counts)
        self.unknown.extend(other.unknown)


class Keys:
    """A reader of the keys of one JSON object.

    If a value is missing or wrong, a method records the problem and returns a valid placeholder, so
    that all problems of a file can be reported together.
    """

    def __init__(self, data: Mapping[str, Any], prefix: str = "", kind: str = "") -> None:
        self._data = data
        self._prefix = prefix
        self._kind = kind
        self._defaults: Mapping[str, Any] = {}
        self._read: set[str] = {"model_type", "architectures"}
        self._nested: dict[str, Keys] = {}
        self.problems: list[str] = []

    def set_defaults(self, defaults: Mapping[str, Any]) -> None:
        """Set the defaults of a model type, by key; they replace the `default` of a method."""
        self._defaults = defaults

    def integer(self, *names: str, default: int = _REQUIRED, low: int = 1) -> int:
        """Read a whole number of at least `low`, from the first of the keys `names` that exists."""
        value = self._first(names, default)
        placeholder = low or 1
        if value is _REQUIRED:
            return placeholder
        if isinstance(value, bool) or not isinstance(value, int):
            return int(self._refuse(names, value, "not a whole number", placeholder))
        if not low <= value <= LARGEST:
            return int(self._refuse(names, short(value), outside(value, low), placeholder))
        return value

    def equal_integer(self, *names: str, default: int = _REQUIRED) -> int:
        """Read a whole number that files state under any of `names`; if under several, equally."""
        values = {name: self._data[name] for name in names if self._data.get(name) is not None}
        if len(set(map(repr, values.values()))) > 1:
            stated = ", ".join(f"{name} {value!r}" for name, value in values.items())
            self.add_problem(f"{self._prefix}{stated}: they mean the same and differ.")
        return self.integer(*names, default=default)

    def optional_integer(self, name: str, default: int | None = None, low: int = 1) -> int | None:
        """Read a whole number of at least `low`; None if it is null, `default` if it is absent."""
        self._read.add(name)
        if name not in self._data:
            value: int | None = self._defaults.get(name, default)
            return value
        return None if self._data[name] is None else self.integer(name, low=low)

    def is_type(self, prefix: str) -> bool:
        """Whether the model type or architecture that selects the family begins with `prefix`."""
        return self._kind.lower().replace("_", "").startswith(prefix.replace("_", ""))

    def layer_count(self, *names: str) -> int:
        """Read the number of layers, at most `MAX_LAYERS`."""
        value = self.integer(*names)
        if value > MAX_LAYERS:
            return int(self._refuse(names, short(value), f"above {MAX_LAYERS:,} layers", 1))
        return value

    def local_layers(self, n_layers: int, is_local: Callable[[int], bool]) -> list[bool]:
        """Whether the attention of each layer is local: sliding or chunked.

        The key `layer_types` states it; if it is absent, `is_local(layer index)` decides.
        """
        layer_types = self.items("layer_types", str)
        if layer_types is None:
            return [is_local(i) for i in range(n_layers)]
        if len(layer_types) != n_layers:
            self.add_problem(f"layer_types names {len(layer_types)} layers of {n_layers}.")
        unknown = sorted(set(layer_types) - _LAYER_TYPES)
        if unknown:
            known = ", ".join(sorted(_LAYER_TYPES))
            self.add_problem(f"layer_types has {', '.join(unknown)[:80]}; known are {known}.")
        return [layer_type != "full_attention" for layer_type in layer_types]

    def head_dim(self, D: int, N: int) -> int:
        """Read `head_dim`; if neither the file nor its model type states it, return D / N."""
        stated_width = self.optional_integer("head_dim")
        return stated_width or self.even_heads("num_attention_heads", N, "hidden_size", D)

    def even_heads(self, n_key: str, N: int, d_key: str, D: int) -> int:
        """Return D / N, which must be whole; `d_key` and `n_key` are their keys, for messages."""
        if D > 1 and D % N:  # D is 1, its placeholder, if its key is missing
            self.add_problem(
                f"{n_key} {N} does not divide {d_key} {D}, and no head width is given."
            )
        return max(1, D // N)

    def number(self, *names: str, default: float) -> float:
        """Read a number of at least 0, from the first of the keys `names` that exists."""
        value = self._first(names, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            return float(self._refuse(names, value, "not a number", default))
        if 0 <= value <= LARGEST:
            return float(value)
        reason = f"above {LARGEST:,}"
        if value < 0:
            reason = "below 0"
        if isinstance(value, int):
            return float(self._refuse(names, short(value), reason, default))
        return float(self._refuse(names, f"{value:.4g}", reason, default))

    def optional_number(self, name: str) -> float | None:
        """Read a number of at least 0; None if it is null, or absent without a default."""
        self._read.add(name)
        if name not in self._data:
            return self._defaults.get(name)
        return None if self._data[name] is None else self.number(name, default=1.0)

    def numbers(self, name: str) -> tuple[float, ...]:
        """Read a list of positive numbers; () if it is absent or null."""
        value = self._first((name,), None)
        if value is None:
            return ()
        if isinstance(value, list) and all(_is_divisor(item) for item in value):
            return tuple(map(float, value))
        self._refuse((name,), value, "not a list of positive numbers", None)
        return ()

    def flag(self, name: str, default: bool) -> bool:
        """Read a bool."""
        value = self._first((name,), default)
        if not isinstance(value, bool):
            return bool(self._refuse((name,), value, "not true or false", default))
        return value

    def refuse_flag(self, name: str, feature: str) -> None:
        """Read a bool which, if true, is a problem: this package does not describe `feature`."""
        if self.flag(name, False):
            self.add_problem(f"{self._prefix}{name} true is not supported: {feature}.")

    def text(self, name: str, default: str) -> str:
        """Read a string."""
        value = self._first((name,), default)
        if not isinstance(value, str):
            return str(self._refuse((name,), value, "not text", default))
        return value

    def items(self, name: str, item_type: type) -> list[Any] | None:
        """Read a list whose items all have type `item_type`; None if it is absent or null."""
        value = self._first((name,), None)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(item) is item_type for item in value):
            self._refuse((name,), value, f"not a list of {item_type.__name__}", None)
            return None
        return value

    def inner(self, name: str) -> Keys:
        """A reader of the object under key `name`, or this reader if the key is absent.

        The config.json of a multimodal model has the keys of its text model under "text_config",
        that of a text model has them at the top.
        """
        return self.optional_inner(name) or self

    def optional_inner(self, name: str) -> Keys | None:
        """A reader of the object under key `name`; None if the key is absent or null."""
        value = self._data.get(name)
        self._read.add(name)
        if value is None:
            return None
        if name in self._nested:
            return self._nested[name]
        if not isinstance(value, dict):
            self._refuse((name,), value, "not an object", None)
            value = {}
        nested = Keys(value, f"{self._prefix}{name}.")
        nested.problems = self.problems
        self._nested[name] = nested
        return nested

    def add_problem(self, problem: str) -> None:
        """Record a problem that a family finds in the values of several keys."""
        self.problems.append(problem)

    def unread(self) -> UnreadKeys:
        """The keys that were not read, by what they may change: see `irrelevant`."""
        unread = UnreadKeys()
        for name in sorted(set(self._data) - self._read):
            value = self._data[name]
            if name in IRRELEVANT:
                kind = unread.irrelevant
            elif name in BESIDE:
                kind = unread.beside
            elif is_count(name, value):
                kind = unread.counts
                name += f" {value!r}"[:40]
            elif value is None:
                kind = unread.irrelevant
            else:
                kind = unread.unknown
            kind.append(self._prefix + name)
        for nested in self._nested.values():
            unread.extend(nested.unread())
        return unread

    def _first(self, names: tuple[str, ...], default: Any) -> Any:
        """The value of the first of the keys `names` that exists, else the default."""
        self._read.update(names)
        for name in names:
            if self._data.get(name) is not None:
                return self._data[name]
        default = self._defaults.get(names[0], default)
        if default is _REQUIRED:
            self.problems.append(f"missing key {self._prefix}{' or '.join(names)}.")
        return default

    def _refuse(self, names: tuple[str, ...], value: Any, reason: str, placeholder: Any) -> Any:
        """Record that a value is wrong, and return `placeholder`.

        A number outside its range is passed as text that is already formatted.
        """
        name = next((n for n in names if n in self._data), names[0])
        text = repr(value)[:40]
        if isinstance(value, str) and reason.startswith(("above", "below")):
            text = value
        self.problems.append(f"{self._prefix}{name} {text} is {reason}.")
        return placeholder


def _is_divisor(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value <= LARGEST
