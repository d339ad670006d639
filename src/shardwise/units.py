"""Parse and format quantities with units.

Inside the package every quantity is a plain number in base units: bytes, FLOPs, seconds, bytes/s,
FLOP/s, tokens, dollars. The types below only document signatures. All factors such as 1000, 1024
and the seconds of a day are defined here.
"""

from __future__ import annotations

import math
import re
from typing import NewType

from shardwise.errors import BadInput, BadShape, BadUnit, UnknownName, raise_all

Bytes = NewType("Bytes", float)
Seconds = NewType("Seconds", float)

KB = 1e3
MB = 1e6
GB = 1e9
TB = 1e12
KiB = 1024
MiB = 1024**2
GiB = 1024**3
TiB = 1024**4
US = 1e-6
MS = 1e-3
MINUTE = 60.0
HOUR = 3600.0
DAY = 86400.0
YEAR = 365 * 86400.0

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
    "mxfp4": 4.25 / 8,  # 4 bits, and 8 bits of scale for every 32 elements
}  # fmt: skip
# Formats of one dtype with scales of their own, which have its rates -> that dtype.
DTYPE_FORMATS = {"mxfp8": "fp8", "nvfp4": "fp4"}


def _split(text: str, what: str) -> tuple[float, str]:
    match = _QUANTITY.match(text)
    if not match:
        raise BadUnit(f'{what} "{text}" is not a number. Write a number and a unit.')
    value = float(match[1])
    if not math.isfinite(value):
        raise BadUnit(f'{what} "{text}" is too large to be a number.')
    return value, (match[2] or "").strip()


def parse_count(text: str, what: str = "count") -> float:
    """Parse a count of at least 0: `4096`, `15T`, `4Mi`, `1.5e12`, `2B`.

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
    """Parse a whole number of at least `low`: `8`, `4k`, `4Ki`; `what` names it in messages."""
    value = parse_count(text, what)
    if value != int(value):
        raise BadUnit(f'{what} "{text}" is not a whole number.')
    if value < low:
        raise BadUnit(f'{what} "{text}" is below {low}.')
    return int(value)


def parse_length(text: str, what: str = "length", low: int = 1) -> int:
    """Parse a number of tokens in a sequence, of at least `low`; `what` names it in messages.

    Lengths are powers of two by custom: after a power of two, k is 1,024 and M is 1,024 squared.

    >>> parse_length("32k"), parse_length("1M"), parse_length("100k"), parse_length("32000")
    (32768, 1048576, 100000, 32000)
    """
    value, unit = _split(text, what)
    is_power_of_two = value >= 1 and math.frexp(value)[0] == 0.5
    if is_power_of_two and unit in ("k", "K", "M"):
        text = text.replace(unit, f"{unit.upper()}i")
    return parse_whole(text, what, low)


def parse_batch(text: str) -> tuple[int, int]:
    """Read a batch SEQUENCESxLENGTH: `1024x4096` is 1,024 sequences of 4,096 tokens.

    >>> parse_batch("1024x4k")
    (1024, 4096)
    """
    parts = text.replace("X", "x").replace("×", "x").split("x")
    if len(parts) != 2 or not all(parts):
        raise BadShape(
            f'batch "{text}" is not SEQUENCESxLENGTH. Write 1024x4096 (1,024 of 4,096 tokens).'
        )
    sequences = parse_whole(parts[0], "batch sequences")
    return sequences, parse_length(parts[1], "sequence length")


def parse_sizes(parts: tuple[str, ...] | list[str], what: str = "dim") -> dict[str, int]:
    """Parse named sizes: `("B=1024", "D=8Ki")` -> {"B": 1024, "D": 8192}.

    Raises:
        BadShape: a part has no `=`, a name occurs twice, or a size is not a whole number above 0.
    """
    sizes: dict[str, int] = {}
    problems: list[str] = []
    for part in parts:
        name, equals, text = part.partition("=")
        name = name.strip()
        if not equals or not name:
            example = name if name.isidentifier() else "NAME"
            problems.append(f'"{part}" is not NAME=SIZE. Write {example}=8.')
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
    """Parse a size in bytes; a unit is required. GB is 10^9, GiB is 2^30.

    >>> parse_bytes("16GB"), parse_bytes("16 GiB")
    (16000000000.0, 17179869184.0)
    """
    value, unit = _split(text, what)
    if value < 0:
        raise BadUnit(f'{what} "{text}" is negative.')
    if not unit:
        raise BadUnit(
            f"{what} {text} has no unit. {text}GB = {value * GB:.4g} bytes, "
            f"{text}GiB = {value * GiB:.4g} bytes: a 7 % difference."
        )
    scale = {**_PREFIX, **_BINARY}.get(unit.removesuffix("B"))
    if scale is None or unit == "BB" or not unit.endswith("B"):
        raise BadUnit(
            f'{what} "{text}": "{unit}" is not a size. Use B, kB, MB, GB, TB or KiB, MiB, GiB.'
        )
    return Bytes(value * scale)


def parse_rate(text: str, what: str = "rate", per: str = "B") -> float:
    """Parse a rate with its unit: `2.8e12 B/s`, `400 Gb/s` (bits), `989 TFLOP/s`, `394 TOP/s`.

    `per` is "B" for bytes or bits per second, "FLOP" for FLOP/s.
    """
    value, unit = _split(text, what)
    if value < 0:
        raise BadUnit(f'{what} "{text}" is negative.')
    names = {"B": ("B/s", "b/s"), "FLOP": ("FLOP/s", "FLOPs/s", "FLOPS", "OP/s", "OPs/s")}[per]
    for name in names:
        if unit.endswith(name):
            scale = {**_PREFIX, **_BINARY}.get(unit[: -len(name)].strip())
            if scale is not None:
                bits_per_unit = {"b/s": 8}.get(name, 1)
                return value * scale / bits_per_unit
    units = {"B": "B/s, GB/s, TB/s or Gb/s (bits)", "FLOP": "FLOP/s, TFLOP/s or TOP/s"}[per]
    raise BadUnit(f'{what} "{text}" has {"the wrong" if unit else "no"} unit. Use {units}.')


def parse_seconds(text: str, what: str = "time") -> Seconds:
    """Parse a duration; a unit is required: `300ms`, `1 us`, `2h`, `46 days`."""
    value, unit = _split(text, what)
    if value < 0:
        raise BadUnit(f'{what} "{text}" is negative.')
    if unit not in _TIME:
        raise BadUnit(
            f'{what} "{text}" has {"an unknown" if unit else "no"} unit. '
            "Use us, ms, s, min, h or days."
        )
    return Seconds(value * _TIME[unit])


def parse_measure(text: str, unit: str, what: str) -> float:
    """Parse a number of `unit`, with an optional multiplier: `1.75 GHz`, `700 W`, `4.2 USD/h`.

    >>> parse_measure("1.75 GHz", "Hz", "clock")
    1750000000.0
    """
    value, text_unit = _split(text, what)
    scale = _PREFIX.get(text_unit.removesuffix(unit).strip())
    if scale is None or not text_unit.endswith(unit):
        raise BadUnit(f'{what} "{text}" has {"the wrong" if text_unit else "no"} unit. Use {unit}.')
    if value < 0:
        raise BadUnit(f'{what} "{text}" is negative.')
    return value * scale


def bytes_per_element(dtype: str) -> float:
    """Bytes per element of `dtype` (0.5 for 4-bit dtypes)."""
    if dtype not in BYTES_PER_ELEMENT:
        raise UnknownName("dtype", dtype, BYTES_PER_ELEMENT)
    return BYTES_PER_ELEMENT[dtype]


def _scaled(value: float, steps: tuple[tuple[float, str], ...], digits: int) -> str:
    """Format in the largest unit of `steps`, (factor, name) descending, that `value` reaches."""
    for scale, name in steps:
        if abs(value) >= scale * 0.9995:
            return f"{significant(value / scale, digits)} {name}"
    return f"{significant(value / steps[-1][0], digits)} {steps[-1][1]}"


def significant(value: float, digits: int = 3) -> str:
    """Format with `digits` significant digits, without an exponent: "12.3", "0.0012", "1,234"."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1e15:
        return f"{value:.{digits - 1}e}"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # after rounding: 1 for 9.996
    places = max(0, digits - 1 - exponent)
    return f"{value:,.{places}f}"


def show_bytes(value: float, digits: int = 3) -> str:
    """Format bytes in decimal units: `131 MB`."""
    return _scaled(
        value, ((1e15, "PB"), (TB, "TB"), (GB, "GB"), (MB, "MB"), (KB, "kB"), (1, "B")), digits
    )


def show_gib(value: float, digits: int = 3) -> str:
    """Format bytes in binary units, in which drivers state device memory: `89.4 GiB`."""
    return _scaled(
        value, ((TiB, "TiB"), (GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB"), (1, "B")), digits
    )


def show_count(value: float, digits: int = 3) -> str:
    """Format a count: `4.59M`, `70.6B`, `15T`."""
    if abs(value) < 1e4 and value == int(value):
        return f"{value:,.0f}"
    if abs(value) < 1e4:
        return significant(value, digits)
    return _scaled(
        value, ((1e15, "P"), (1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")), digits
    ).replace(" ", "")


def show_rate(value: float, unit: str, digits: int = 3) -> str:
    """Format a rate in `unit`: `459 TFLOP/s`, `2.77 TB/s`."""
    steps = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))
    return _scaled(value, tuple((s, p + unit) for s, p in steps), digits)


def show_seconds(value: float, digits: int = 3) -> str:
    """Format a time: `1.2 us`, `483 ms`, `3.1 s`, `2.5 h`, `46.1 days`."""
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
    """Format dollars: `$41.2M`, `$10.80`."""
    if value >= 1e4:
        return f"${show_count(value)}"
    return f"${value:,.2f}"
