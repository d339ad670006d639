"""Numbers that carry their unit through a formula: seconds plus bytes is an error.

    Quantity(3.0, byte=1) / Quantity(1.5, byte=1, second=-1)  ->  2.0 second

A `Quantity` is a float, so the functions under test need not know of it. Plain numbers have no
unit; only zero and infinity may meet any unit, as starting values and "never". Nothing times
something is nothing, in any unit.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

Exponents = tuple[tuple[str, int], ...]


class WrongUnits(TypeError):
    """Two quantities of different units were added or compared."""


class Quantity(float):
    """A number with exponents of its units."""

    units: Exponents

    def __new__(cls, value: float, **exponents: int) -> Quantity:
        self = super().__new__(cls, value)
        self.units = tuple(sorted((u, n) for u, n in exponents.items() if n))
        return self

    def __repr__(self) -> str:
        shown = " ".join(u if n == 1 else f"{u}^{n}" for u, n in self.units)
        return f"{float.__repr__(self)} {shown}".strip()

    def __hash__(self) -> int:
        return hash((float(self), self.units))

    def __neg__(self) -> Quantity:
        return Quantity(-float(self), **dict(self.units))

    def __pow__(self, power: Any, _: Any = None) -> Quantity:
        return Quantity(float(self) ** power, **{u: n * int(power) for u, n in self.units})


def units_of(value: float) -> Exponents:
    return value.units if isinstance(value, Quantity) else ()


def _same(a: float, b: float) -> Exponents:
    """The unit that both have, or that one has when the other is zero or infinite."""
    if units_of(a) == units_of(b):
        return units_of(a)
    for free, other in ((a, b), (b, a)):
        if not units_of(free) and (float(free) == 0 or math.isinf(free)):
            return units_of(other)
    raise WrongUnits(f"{a!r} meets {b!r}")


def _product(a: float, b: float, sign: int) -> dict[str, int]:
    found = dict(units_of(a))
    for unit, n in units_of(b):
        found[unit] = found.get(unit, 0) + sign * n
    return found


def _adds(function: Callable[[float, float], float], swap: bool) -> Callable[..., Quantity]:
    def method(self: Quantity, other: float) -> Quantity:
        a, b = (other, self) if swap else (self, other)
        return Quantity(function(float(a), float(b)), **dict(_same(a, b)))

    return method


def _scales(
    function: Callable[[float, float], float], sign: int, swap: bool
) -> Callable[..., Quantity]:
    def method(self: Quantity, other: float) -> Quantity:
        a, b = (other, self) if swap else (self, other)
        value = function(float(a), float(b))
        return Quantity(value, **(_product(a, b, sign) if value else {}))

    return method


def _compares(function: Callable[[float, float], bool]) -> Callable[..., bool]:
    def method(self: Quantity, other: float) -> bool:
        _same(self, other)
        return function(float(self), float(other))

    return method


for _name in ("add", "sub"):
    setattr(Quantity, f"__{_name}__", _adds(getattr(operator, _name), swap=False))
    setattr(Quantity, f"__r{_name}__", _adds(getattr(operator, _name), swap=True))
for _name, _sign in (("mul", 1), ("truediv", -1)):
    setattr(Quantity, f"__{_name}__", _scales(getattr(operator, _name), _sign, swap=False))
    setattr(Quantity, f"__r{_name}__", _scales(getattr(operator, _name), _sign, swap=True))
for _name in ("lt", "le", "gt", "ge", "eq"):
    setattr(Quantity, f"__{_name}__", _compares(getattr(operator, _name)))


def seconds(value: float) -> Quantity:
    return Quantity(value, second=1)


def n_bytes(value: float) -> Quantity:
    return Quantity(value, byte=1)


def flops(value: float) -> Quantity:
    return Quantity(value, flop=1)


def per_second(value: Quantity) -> Quantity:
    return value / seconds(1.0)
