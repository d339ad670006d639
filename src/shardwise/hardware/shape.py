"""Shapes of slices and tiles as text: `16x20x28`."""

from __future__ import annotations

import math
import re

from shardwise.errors import BadShape

Shape = tuple[int, ...]

# The largest number of chips: ten times that of any machine, so that more is a typing error.
MAX_CHIPS = 10_000_000

_SHAPE = re.compile(r"[0-9]+(?:x[0-9]+)*")


def parse_shape(text: str, what: str = "shape") -> Shape:
    """Parse a shape: `4x4` -> (4, 4).

    Raises:
        BadShape: a dimension is not a whole number of at least 1, or the product is above
            `MAX_CHIPS`.

    >>> parse_shape("16x20x28")
    (16, 20, 28)
    """
    normal = text.strip().lower()
    if not _SHAPE.fullmatch(normal):
        raise BadShape(
            f'{what} "{_short(text)}" is not a shape. Write whole numbers joined by x: 4x4.'
        )
    parts = [part.lstrip("0") for part in normal.split("x")]
    if "" in parts:
        raise BadShape(f'{what} "{text}" has a dimension of 0. The smallest is 1.')
    # The number of digits is checked first: Python refuses to convert thousands of digits.
    if max(map(len, parts)) > 9 or math.prod(map(int, parts)) > MAX_CHIPS:
        raise BadShape(
            f'{what} "{_short(text)}" is more than {MAX_CHIPS:,} chips, '
            "more than any machine that exists."
        )
    return tuple(map(int, parts))


def show_shape(shape: Shape) -> str:
    """Format a shape: (4, 4) -> `4x4`."""
    return "x".join(map(str, shape))


def _short(text: str) -> str:
    if len(text) <= 40:
        return text
    return f"{text[:37]}..."
