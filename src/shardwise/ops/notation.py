"""Read the book's notation: `A[I_X,J] . B[J,K_Y] -> C[I_X,K_Y] {U_Z}`."""

from __future__ import annotations

import re

from shardwise.errors import BadSharding
from shardwise.ops.einsum import Array, Dim, Einsum

_ARRAY = re.compile(
    r"\s*(?P<name>[A-Za-z][A-Za-z0-9_']*)?\s*\[(?P<dims>[^\[\]]*)\]\s*"
    r"(?:_?\{\s*U_(?P<sums>[^{}]+|\{[^{}]*\})\s*\}\s*)?"
)
_DIM = re.compile(r"([A-Za-z][A-Za-z0-9']*)(?:_(\{[^{}]*\}|[A-Za-z0-9]+))?$")
_EXAMPLE = "Write it as A[I_X,J] . B[J,K_Y] -> C[I_X,K_Y]."


def parse_array(text: str) -> Array:
    """One array: `A[I_X,J]`, `W[D_XY,F]`, `C[I,K] {U_X}`, `x[B_{data,fsdp},T,D]`.

    >>> str(parse_array("A[I_XY,J]").dims[0].axes)
    "('X', 'Y')"

    Raises:
        BadSharding: when it is not an array, or uses a mesh axis twice.
    """
    match = _ARRAY.fullmatch(text)
    if not match:
        raise BadSharding(f'"{text.strip()}" is not an array. {_EXAMPLE}')
    return _array(match).check()


def parse_einsum(text: str) -> Einsum:
    """Two arrays and their product.

    The dot may also be written `·`, `*`, `@` or left out; the arrow `->` or `→`.

    Raises:
        BadSharding: with every problem found.
    """
    return read_einsum(text).check()


def read_einsum(text: str) -> Einsum:
    """As `parse_einsum`, without asking that every output dim come from an input."""
    sides = re.split(r"->|→", text)
    if len(sides) != 2:
        raise BadSharding(f'"{text.strip()}" needs one arrow to its output. {_EXAMPLE}')
    arrays = []
    for side, want in zip(sides, (2, 1), strict=True):
        rest = side
        found: list[Array] = []
        while rest.strip():
            match = _ARRAY.match(rest)
            if not match:
                raise BadSharding(f'"{rest.strip()}" is not an array. {_EXAMPLE}')
            found.append(_array(match))
            rest = re.sub(r"^\s*[.·*@]\s*", "", rest[match.end() :])
        if len(found) != want:
            where = "before" if want == 2 else "after"
            raise BadSharding(
                f'"{side.strip()}" has {len(found)} arrays {where} the arrow, not {want}. '
                + _EXAMPLE
            )
        arrays += found
    left, right, output = arrays
    return Einsum(left, right, output)


def _array(match: re.Match[str]) -> Array:
    text = match["dims"]
    dims = tuple(_dim(part) for part in _split(text)) if text.strip() else ()
    sums = _axes(match["sums"].strip()) if match["sums"] else ()
    return Array(match["name"] or "", dims, sums)


def _split(text: str) -> list[str]:
    """Split on commas that are not inside braces."""
    return re.split(r",(?![^{}]*\})", text)


def _dim(text: str) -> Dim:
    match = _DIM.match(text.strip())
    if not match:
        raise BadSharding(f'"{text.strip()}" is not a dim. Write I, I_X, I_XY or I_{{data,fsdp}}.')
    return Dim(match[1], _axes(match[2]) if match[2] else ())


def _axes(text: str) -> tuple[str, ...]:
    if text.startswith("{"):
        return tuple(part.strip() for part in text[1:-1].split(",") if part.strip())
    if text.isupper() or text.isdigit():
        return tuple(re.findall(r"[A-Z0-9]", text))
    return (text,)
