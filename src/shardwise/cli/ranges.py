"""Ranges on the command line: `8`, `1,2,4`, `8-512*2`, `8-64+8`; and batches of them."""

from __future__ import annotations

import re
from itertools import product

from shardwise import units
from shardwise.cli.inputs import MOST_POINTS, parse_range
from shardwise.errors import BadInput, BadShape, BadUnit

_SIGN = re.compile(r"[-+*]")
_RANGE = re.compile(r"(?P<low>[^-+*]+)-(?P<high>[^-+*]+)(?:\*(?P<factor>[^-+*]+)|\+[^-+*]+)?")

_VALUES = "Write 8, a list 1,2,4, a range that multiplies 8-512*2, or one that adds 8-64+8."
_BATCHES = "Write 1024x4096: SEQUENCESxLENGTH, either one a range, 512-2048*2x4096, 1024x4k-32k*2."


def parse_values(text: str, what: str) -> tuple[int, ...]:
    """The whole numbers of a list or a range, as they are written; `what` names them in errors.

    >>> parse_values("8-64*2", "chips"), parse_values("1k,2k", "chips")
    ((8, 16, 32, 64), (1000, 2000))

    Raises:
        BadUnit: what is wrong with it, and what can be written; over 1,000 values.
    """
    try:
        return _values(text, what)
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


def _values(text: str, what: str) -> tuple[int, ...]:
    words = text.strip().split(",")
    if len(words) > MOST_POINTS:
        raise BadUnit(f"{what} is a list of {len(words):,}; at most {MOST_POINTS:,} are compared.")
    signed = [word for word in words if _SIGN.search(word)]
    if signed and len(words) > 1:
        raise BadUnit(f'{what} "{signed[0].strip()}" is a range inside a list.')
    if signed:
        _check_range(words[0], what)
    return parse_range(text.strip(), what)


def _check_range(text: str, what: str) -> None:
    """Say what keeps LOW-HIGH*FACTOR or LOW-HIGH+STEP from being a range."""
    form = _RANGE.fullmatch(text)
    if not form:
        raise BadUnit(f'{what} "{text}" is neither LOW-HIGH*FACTOR nor LOW-HIGH+STEP.')
    low, high = (units.parse_whole(form[end], what) for end in ("low", "high"))
    if low > high:
        raise BadUnit(f'{what} "{text}" goes down: {low:,} is above {high:,}.')
    if form["factor"] and units.parse_whole(form["factor"], f"factor of {what}") < 2:
        raise BadUnit(f'{what} "{text}" does not grow: a factor is 2 or more.')
