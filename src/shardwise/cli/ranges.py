"""Parsers of lists and ranges of numbers: `8`, `1,2,4`, `8-512*2`, `8-64+8`; and of batches."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

from shardwise import units
from shardwise.cli.inputs import Inputs
from shardwise.errors import BadInput, BadShape, BadUnit

Parser = Callable[[str, str, int], int]  # of a number, its name in errors, and the lowest
RATE_SECONDS = {"s": 1.0, "min": units.MINUTE, "h": units.HOUR}
MAX_POINTS = 1000  # values of one range, and combinations of all ranges of a command

_SIGN = re.compile(r"[-+*]")
_RANGE = re.compile(r"(?P<low>[^-+*]+)-(?P<high>[^-+*]+)(?:(?P<operator>[*+])(?P<step>[^-+*]+))?")

_VALUES = "Write 8, a list 1,2,4, a range that multiplies 8-512*2, or one that adds 8-64+8."
_BATCHES = "Write 1024x4096: SEQUENCESxLENGTH, either one a range, 512-2048*2x4096, 1024x4k-32k*2."


def parse_values(
    text: str, what: str, low: int = 1, parser: Parser = units.parse_whole
) -> tuple[int, ...]:
    """Parse a list or a range of whole numbers, which are at least `low`.

    `what` names the numbers in errors, `parser` reads one of them.

    >>> parse_values("8-64*2", "chips"), parse_values("1k,2k", "chips")
    ((8, 16, 32, 64), (1000, 2000))

    Raises:
        BadUnit: the text is neither, a number is too small, or there are over 1,000 values.
    """
    try:
        return _values(text, what, low, parser)
    except BadInput as error:
        raise BadUnit(*error.problems, _VALUES) from None


def parse_batches(text: str) -> tuple[tuple[int, int], ...]:
    """Parse batches to (sequences, length); each number of sequences is combined with each length.

    >>> parse_batches("512-1024*2x4k")
    ((512, 4096), (1024, 4096))

    Raises:
        BadShape: a part is neither a list nor a range, or there are over 1,000 batches.
    """
    parts = text.replace("X", "x").replace("×", "x").split("x")
    if len(parts) != 2 or not all(part.strip() for part in parts):
        raise BadShape(f'batch "{text}" is not SEQUENCESxLENGTH. {_BATCHES}')
    inputs = Inputs()
    sequences = inputs.read(_values, parts[0], "batch sequences")
    lengths = inputs.read(_values, parts[1], "sequence length", parser=units.parse_length)
    try:
        inputs.done()
    except BadInput as error:
        raise BadShape(*error.problems, _BATCHES) from None
    count = len(sequences) * len(lengths)
    if count > MAX_POINTS:
        raise BadShape(
            f'batch "{text}" is {len(sequences):,} x {len(lengths):,} = {count:,} batches; at most '
            f"{MAX_POINTS:,} are compared. Take larger steps."
        )
    return tuple(product(sequences, lengths))


def parse_ranged_sizes(parts: Sequence[str]) -> dict[str, int | Sequence[int]]:
    """Parse sizes of dims, `("B=1-1024*2", "D=8192")`: one number or several for each dim.

    Raises:
        BadInput: with every part that is wrong.
    """
    ranges: dict[str, str] = {}
    single_sizes: list[str] = []  # with size 1 for a range, so that its name is checked as well
    for part in parts:
        name, equals, text = part.partition("=")
        if _SIGN.search(text) or "," in text:
            ranges[name.strip()] = text
            single_sizes.append(f"{name}{equals}1")
        else:
            single_sizes.append(part)
    inputs = Inputs()
    single: Mapping[str, Any] = inputs.read(units.parse_sizes, single_sizes)
    several: dict[str, Any] = {}
    for name, text in ranges.items():
        several[name] = inputs.read(parse_values, text, f"dim {name}")
    inputs.done()
    return {**single, **several}


def _values(
    text: str, what: str, low: int = 1, parser: Parser = units.parse_whole
) -> tuple[int, ...]:
    words = text.strip().split(",")
    if len(words) > MAX_POINTS:
        raise BadUnit(f"{what} is a list of {len(words):,}; at most {MAX_POINTS:,} are compared.")
    signed = [word for word in words if _SIGN.search(word)]
    if signed and len(words) > 1:
        raise BadUnit(f'{what} "{signed[0].strip()}" is a range inside a list.')
    if signed:
        return _range(words[0], what, low, parser)
    return tuple(parser(word, what, low) for word in words)


def _range(text: str, what: str, minimum: int, parser: Parser) -> tuple[int, ...]:
    """Parse LOW-HIGH*FACTOR, LOW-HIGH+STEP, or LOW-HIGH, whose factor is 2."""
    match = _RANGE.fullmatch(text)
    if not match:
        raise BadUnit(f'{what} "{text}" is neither LOW-HIGH*FACTOR nor LOW-HIGH+STEP.')
    adds = match["operator"] == "+"
    step_name = f"{'step' if adds else 'factor'} of {what}"
    lowest = minimum if adds else 1  # a factor does not change 0
    low = parser(match["low"], what, lowest)
    high = parser(match["high"], what, minimum)
    step = parser(match["step"] or "2", step_name, 1)
    if low > high:
        raise BadUnit(f'{what} "{text}" goes down: {low:,} is above {high:,}.')
    if not adds and step < 2:
        raise BadUnit(f'{what} "{text}" does not grow: a factor is 2 or more.')
    values: list[int] = []
    value = low
    while value <= high:
        values.append(value)
        if len(values) > MAX_POINTS:
            raise BadUnit(f'{what} "{text}" has over {MAX_POINTS:,} values. Take larger steps.')
        value = value + step if adds else value * step
    return tuple(values)


def split_rate(text: str) -> tuple[str, float]:
    """The numbers of a rate, and the seconds of its unit: one without a unit is per second.

    >>> split_rate("600/min"), split_rate("1-8*2")
    (('600', 60.0), ('1-8*2', 1.0))

    Raises:
        BadInput: an unknown unit.
    """
    numbers, slash, unit = (part.strip() for part in text.partition("/"))
    if slash and unit not in RATE_SECONDS:
        raise BadInput(f'--rate "{text}" has an unknown unit. Write 20/s or 600/min.')
    return numbers, RATE_SECONDS[unit or "s"]
