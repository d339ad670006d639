"""Ranges on the command line: `8`, `1,2,4`, `8-512*2`, `8-64+8`; and batches of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from shardwise import units
from shardwise.cli.inputs import Inputs
from shardwise.errors import BadInput, BadShape, BadUnit

MOST_POINTS = 1000  # of a range, and of all ranges of a command together; more cannot be read

_SIGN = re.compile(r"[-+*]")
_RANGE = re.compile(r"(?P<low>[^-+*]+)-(?P<high>[^-+*]+)(?:(?P<how>[*+])(?P<by>[^-+*]+))?")

_VALUES = "Write 8, a list 1,2,4, a range that multiplies 8-512*2, or one that adds 8-64+8."
_BATCHES = "Write 1024x4096: SEQUENCESxLENGTH, either one a range, 512-2048*2x4096, 1024x4k-32k*2."


def parse_values(text: str, what: str, low: int = 1) -> tuple[int, ...]:
    """The whole numbers from `low` of a list or a range, as they are written.

    `what` names them in errors.

    >>> parse_values("8-64*2", "chips"), parse_values("1k,2k", "chips")
    ((8, 16, 32, 64), (1000, 2000))

    Raises:
        BadUnit: what is wrong with it, and what can be written; over 1,000 values.
    """
    try:
        return _values(text, what, low)
    except BadInput as error:
        raise BadUnit(*error.problems, _VALUES) from None


def parse_batches(text: str) -> tuple[tuple[int, int], ...]:
    """Batches as (sequences, length), every length for each number of sequences.

    >>> parse_batches("512-1024*2x4k")
    ((512, 4000), (1024, 4000))

    Raises:
        BadShape: what is wrong with either part, and what can be written; over 1,000 batches.
    """
    parts = text.replace("X", "x").replace("×", "x").split("x")
    if len(parts) != 2 or not all(part.strip() for part in parts):
        raise BadShape(f'batch "{text}" is not SEQUENCESxLENGTH. {_BATCHES}')
    found: list[tuple[int, ...]] = []
    problems: list[str] = []
    for part, what in zip(parts, ("batch sequences", "sequence length"), strict=True):
        try:
            found.append(_values(part, what))
        except BadInput as error:
            problems += error.problems
    if problems:
        raise BadShape(*problems, _BATCHES)
    sequences, lengths = found
    n = len(sequences) * len(lengths)
    if n > MOST_POINTS:
        raise BadShape(
            f'batch "{text}" is {len(sequences):,} x {len(lengths):,} = {n:,} batches; at most '
            f"{MOST_POINTS:,} are compared. Take larger steps."
        )
    return tuple(product(sequences, lengths))


def parse_ranged_sizes(parts: Sequence[str]) -> dict[str, int | Sequence[int]]:
    """`("B=1-1024*2", "D=8192")` -> one size or several for each dim.

    Raises:
        BadInput: with every part that is wrong.
    """
    values: dict[str, str] = {}
    first = []
    for part in parts:
        name, equals, text = part.partition("=")
        ranged = bool(_SIGN.search(text)) or "," in text
        if ranged:
            values[name.strip()] = text
        first.append(f"{name}{equals}1" if ranged else part)
    inputs = Inputs()
    sizes: Mapping[str, Any] = inputs.read(units.parse_sizes, first)
    several = {
        name: inputs.read(parse_values, text, f"dim {name}") for name, text in values.items()
    }
    inputs.done()
    return {**sizes, **several}


def _values(text: str, what: str, low: int = 1) -> tuple[int, ...]:
    words = text.strip().split(",")
    if len(words) > MOST_POINTS:
        raise BadUnit(f"{what} is a list of {len(words):,}; at most {MOST_POINTS:,} are compared.")
    signed = [word for word in words if _SIGN.search(word)]
    if signed and len(words) > 1:
        raise BadUnit(f'{what} "{signed[0].strip()}" is a range inside a list.')
    if signed:
        return _range(words[0], what, low)
    return tuple(units.parse_whole(word, what, low) for word in words)


def _range(text: str, what: str, least: int) -> tuple[int, ...]:
    """LOW-HIGH, which doubles, LOW-HIGH*FACTOR or LOW-HIGH+STEP."""
    form = _RANGE.fullmatch(text)
    if not form:
        raise BadUnit(f'{what} "{text}" is neither LOW-HIGH*FACTOR nor LOW-HIGH+STEP.')
    adds = form["how"] == "+"
    low = units.parse_whole(form["low"], what, 1 if not adds else least)
    high = units.parse_whole(form["high"], what, least)
    by = units.parse_whole(form["by"] or "2", f"{'step' if adds else 'factor'} of {what}")
    if low > high:
        raise BadUnit(f'{what} "{text}" goes down: {low:,} is above {high:,}.')
    if not adds and by < 2:
        raise BadUnit(f'{what} "{text}" does not grow: a factor is 2 or more.')
    found = [low]
    while (following := found[-1] + by if adds else found[-1] * by) <= high:
        found.append(following)
        if len(found) > MOST_POINTS:
            raise BadUnit(f'{what} "{text}" has over {MOST_POINTS:,} values. Take larger steps.')
    return tuple(found)
