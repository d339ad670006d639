"""Quantities at the edges: parse them with their units, print them with their units.

Inside, every quantity is a plain number in SI base units: bytes, FLOPs, seconds, bytes/s, FLOPs/s,
tokens, dollars. The names below say which in a signature and cost nothing at run time. This is
the only file that knows what a kilo, a kibi or a day is.
"""

from __future__ import annotations

import math
import re
from typing import NewType

from shardwise.errors import BadInput, BadShape, BadUnit, raise_all

Bytes = NewType("Bytes", float)
Flops = NewType("Flops", float)
Seconds = NewType("Seconds", float)
BytesPerSecond = NewType("BytesPerSecond", float)
FlopsPerSecond = NewType("FlopsPerSecond", float)
Dollars = NewType("Dollars", float)

KB, MB, GB, TB = 1e3, 1e6, 1e9, 1e12
KiB, MiB, GiB, TiB = 1024, 1024**2, 1024**3, 1024**4
US, MS, MINUTE, HOUR, DAY, YEAR = 1e-6, 1e-3, 60.0, 3600.0, 86400.0, 365 * 86400.0

_PREFIX = {
    "": 1.0,
    "k": 1e3,
    "K": 1e3,
    "M": 1e6,
    "G": 1e9,
    "B": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
}
_BINARY = {"Ki": 1024.0, "Mi": 1024.0**2, "Gi": 1024.0**3, "Ti": 1024.0**4, "Pi": 1024.0**5}
_TIME = {
    "ns": 1e-9, "us": US, "µs": US, "ms": MS, "s": 1.0, "min": MINUTE,
    "h": HOUR, "hour": HOUR, "hours": HOUR, "day": DAY, "days": DAY, "d": DAY,
}  # fmt: skip
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\d\s].*?)?\s*$")

BYTES_PER_ELEMENT = {
    "fp64": 8.0, "fp32": 4.0, "f32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "f16": 2.0,
    "fp8": 1.0, "int8": 1.0, "s8": 1.0, "int4": 0.5, "fp4": 0.5, "int32": 4.0,
}  # fmt: skip


def _split(text: str, what: str) -> tuple[float, str]:
    match = _QUANTITY.match(text)
    if not match:
        raise BadUnit(f'{what} "{text}" is not a number. Write a number and a unit.')
    value = float(match[1])
    if not math.isfinite(value):
        raise BadUnit(f'{what} "{text}" is too large to be a number.')
    return value, (match[2] or "").strip()


def parse_count(text: str, what: str = "count") -> float:
    """A plain count: `4096`, `15T`, `4Mi`, `1.5e12`, `2B`. Negative counts are refused.

    >>> parse_count("15T"), parse_count("4Mi")
    (15000000000000.0, 4194304.0)
    """
    value, unit = _split(text, what)
    scale = _PREFIX.get(unit, _BINARY.get(unit))
    if scale is None:
        raise BadUnit(
            f'{what} "{text}": "{unit}" is not a multiplier. Use k, M, B, T or Ki, Mi, Gi.'
        )
    if value < 0:
        raise BadUnit(f'{what} "{text}" is negative.')
    return value * scale


def parse_whole(text: str, what: str = "count", low: int = 1) -> int:
    """A whole number of things, at least `low`: `8`, `4k`, `4Ki`."""
    value = parse_count(text, what)
    if value != int(value):
        raise BadUnit(f'{what} "{text}" is not a whole number.')
    if value < low:
        raise BadUnit(f'{what} "{text}" is below {low}.')
    return int(value)


def parse_sizes(parts: tuple[str, ...] | list[str], what: str = "dim") -> dict[str, int]:
    """`("B=1024", "D=8Ki")` -> {"B": 1024, "D": 8192}.

    Raises:
        BadShape: no `=`, a name given twice, a size that is not a whole number of 1 or more.
    """
    sizes: dict[str, int] = {}
    problems: list[str] = []
    for part in parts:
        name, equals, text = part.partition("=")
        name = name.strip()
        if not equals or not name:
            problems.append(f'"{part}" is not NAME=SIZE. Write {what[0].upper()}=1024.')
        elif name in sizes:
            problems.append(f"{what} {name} is given twice.")
        else:
            try:
                sizes[name] = parse_whole(text, f"{what} {name}")
            except BadInput as error:
                problems += error.problems
    raise_all(BadShape, problems)
    return sizes


def parse_bytes(text: str, what: str = "size") -> Bytes:
    """A size in bytes. GB is 10^9, GiB is 2^30, and a bare number is refused.

    >>> parse_bytes("16GB"), parse_bytes("16 GiB")
    (16000000000.0, 17179869184.0)
    """
    value, unit = _split(text, what)
    if value < 0:
        raise BadUnit(f'{what} "{text}" is negative.')
    stem = unit[:-1] if unit.endswith("B") else None
    scale = None if stem is None else {**_PREFIX, **_BINARY}.get(stem)
    if scale is None or stem == "B":
        if unit:
            raise BadUnit(
                f'{what} "{text}": "{unit}" is not a size. Use B, kB, MB, GB, TB or KiB, MiB, GiB.'
            )
        raise BadUnit(
            f"{what} {text} has no unit. {text}GB = {value * GB:.4g} bytes, "
            f"{text}GiB = {value * GiB:.4g} bytes: a 7 % difference."
        )
    return Bytes(value * scale)


def parse_rate(text: str, what: str = "rate", per: str = "B") -> float:
    """A rate with its unit: `2.8e12 B/s`, `400 Gb/s` (bits), `989 TFLOP/s`, `394 TOP/s`."""
    value, unit = _split(text, what)
    if value < 0:
        raise BadUnit(f'{what} "{text}" is negative.')
    names = {"B": ("B/s", "b/s"), "FLOP": ("FLOP/s", "FLOPs/s", "FLOPS", "OP/s", "OPs/s")}[per]
    for name in names:
        if unit.endswith(name):
            scale = {**_PREFIX, **_BINARY}.get(unit[: -len(name)].strip())
            if scale is not None:
                return value * scale / (8 if name == "b/s" else 1)
    good = "B/s, GB/s, TB/s or Gb/s (bits)" if per == "B" else "FLOP/s, TFLOP/s or TOP/s"
    raise BadUnit(f'{what} "{text}" has {"no" if not unit else "the wrong"} unit. Use {good}.')


def parse_seconds(text: str, what: str = "time") -> Seconds:
    """A duration: `300ms`, `1 us`, `2h`, `46 days`. A bare number is refused."""
    value, unit = _split(text, what)
    if unit not in _TIME:
        raise BadUnit(
            f'{what} "{text}" has {"no" if not unit else "an unknown"} unit. '
            "Use us, ms, s, min, h or days."
        )
    if value < 0:
        raise BadUnit(f'{what} "{text}" is negative.')
    return Seconds(value * _TIME[unit])


def parse_measure(text: str, unit: str, what: str) -> float:
    """Any other quantity in `unit`, with a multiplier before it: `1.75 GHz`, `700 W`, `4.2 USD/h`.

    >>> parse_measure("1.75 GHz", "Hz", "clock")
    1750000000.0
    """
    value, given = _split(text, what)
    scale = _PREFIX.get(given[: -len(unit)].strip()) if given.endswith(unit) else None
    if scale is None:
        raise BadUnit(f'{what} "{text}" has {"no" if not given else "the wrong"} unit. Use {unit}.')
    if value < 0:
        raise BadUnit(f'{what} "{text}" is negative.')
    return value * scale


def bytes_per_element(dtype: str) -> float:
    """Bytes of one element of `dtype` (0.5 for the 4-bit ones)."""
    if dtype not in BYTES_PER_ELEMENT:
        from shardwise.errors import UnknownName

        raise UnknownName("dtype", dtype, BYTES_PER_ELEMENT)
    return BYTES_PER_ELEMENT[dtype]


def _scaled(value: float, steps: tuple[tuple[float, str], ...], digits: int) -> str:
    for scale, name in steps:
        if abs(value) >= scale * 0.9995:
            return f"{significant(value / scale, digits)} {name}"
    return f"{significant(value / steps[-1][0], digits)} {steps[-1][1]}"


def significant(value: float, digits: int = 3) -> str:
    """`digits` significant digits without exponent, thousands separated: 1,234 · 12.3 · 0.0012."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # 9.996 has that of 10.0
    places = max(0, digits - 1 - exponent)
    return f"{value:,.{places}f}" if abs(value) < 1e15 else f"{value:.{digits - 1}e}"


def show_bytes(value: float, digits: int = 3) -> str:
    """Decimal: `131 MB`."""
    return _scaled(
        value, ((1e15, "PB"), (TB, "TB"), (GB, "GB"), (MB, "MB"), (KB, "kB"), (1, "B")), digits
    )


def show_gib(value: float, digits: int = 3) -> str:
    """Binary, as drivers show device memory: `89.4 GiB`."""
    return _scaled(
        value, ((TiB, "TiB"), (GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB"), (1, "B")), digits
    )


def show_count(value: float, digits: int = 3) -> str:
    """`4.59M`, `70.6B`, `15T`."""
    if abs(value) < 1e4:
        return f"{value:,.0f}" if value == int(value) else significant(value, digits)
    return _scaled(
        value, ((1e15, "P"), (1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")), digits
    ).replace(" ", "")


def show_rate(value: float, unit: str, digits: int = 3) -> str:
    """`459 TFLOP/s`, `2.77 TB/s`."""
    steps = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))
    return _scaled(value, tuple((s, p + unit) for s, p in steps), digits)


def show_seconds(value: float, digits: int = 3) -> str:
    """`1.2 us`, `483 ms`, `3.1 s`, `2.5 h`, `46.1 days`."""
    if value == 0:
        return "0 s"
    steps = (
        (YEAR, "years"),
        (DAY, "days"),
        (HOUR, "h"),
        (1, "s"),
        (MS, "ms"),
        (US, "us"),
        (1e-9, "ns"),
    )
    return _scaled(value, steps, digits)


def show_dollars(value: float) -> str:
    """`$41.2M`, `$10.80`."""
    return f"${show_count(value)}" if value >= 1e4 else f"${value:,.2f}"
