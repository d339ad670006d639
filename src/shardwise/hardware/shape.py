"""Shapes of slices and tiles as text: `16x20x28`."""

from __future__ import annotations

import math
import re

from shardwise.errors import BadShape

Shape = tuple[int, ...]

# No machine is within a factor of ten of this; a larger number is a slip of the keyboard.
MAX_CHIPS = 10_000_000

_SHAPE = re.compile(r"[0-9]+(?:x[0-9]+)*")


def parse_shape(text: str, what: str = "shape") -> Shape:
    """`4x4` -> (4, 4). Every dimension is a whole number from 1, and the product is bounded.

    >>> parse_shape("16x20x28")
    (16, 20, 28)
    """
    low = text.strip().lower()
    if not _SHAPE.fullmatch(low):
        raise BadShape(
            f'{what} "{_short(text)}" is not a shape. Write whole numbers joined by x: 4x4.'
        )
    parts = [part.lstrip("0") for part in low.split("x")]
    if "" in parts:
        raise BadShape(f'{what} "{text}" has a dimension of 0. The smallest is 1.')
    # The length comes first: Python refuses to read thousands of digits.
    if max(map(len, parts)) > 9 or math.prod(map(int, parts)) > MAX_CHIPS:
        raise BadShape(
            f'{what} "{_short(text)}" is more than {MAX_CHIPS:,} chips, '
            "more than any machine that exists."
        )
    return tuple(map(int, parts))


def show_shape(shape: Shape) -> str:
    """(4, 4) -> `4x4`."""
    return "x".join(map(str, shape))


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
