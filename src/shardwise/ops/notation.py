"""Parse the book's notation: `A[I_X,J] . B[J,K_Y] -> C[I_X,K_Y] {U_Z}`."""

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
    """Parse an array: `A[I_X,J]`, `W[D_XY,F]`, `C[I,K] {U_X}`, `x[B_{data,fsdp},T,D]`.

    >>> str(parse_array("A[I_XY,J]").dims[0].axes)
    "('X', 'Y')"

    Raises:
        BadSharding: the text is not an array, or uses a mesh axis twice.
    """
    match = _ARRAY.fullmatch(text)
    if not match:
        raise BadSharding(f'"{text.strip()}" is not an array. {_EXAMPLE}')
    return _array(match).check()


def parse_einsum(text: str) -> Einsum:
    """Parse two arrays and their product: `A[I_X,J] . B[J,K_Y] -> C[I_X,K_Y]`.

    The dot may also be written `·`, `*`, `@` or left out; the arrow `->` or `→`.

    Raises:
        BadSharding: the text is not an einsum; the message has every problem.
    """
    return read_einsum(text).check()


def read_einsum(text: str) -> Einsum:
    """Parse an einsum without `Einsum.check`: its output may have dims that no input has."""
    sides = re.split(r"->|→", text)
    if len(sides) != 2:
        raise BadSharding(f'"{text.strip()}" needs one arrow to its output. {_EXAMPLE}')
    inputs = _arrays(sides[0])
    outputs = _arrays(sides[1])
    if len(inputs) != 2:
        raise BadSharding(
            f'"{sides[0].strip()}" has {len(inputs)} arrays before the arrow, not 2. {_EXAMPLE}'
        )
    if len(outputs) != 1:
        raise BadSharding(
            f'"{sides[1].strip()}" has {len(outputs)} arrays after the arrow, not 1. {_EXAMPLE}'
        )
    left, right = inputs
    return Einsum(left, right, outputs[0])


def _arrays(side: str) -> list[Array]:
    """The arrays on one side of the arrow."""
    arrays = []
    remaining = side
    while remaining.strip():
        match = _ARRAY.match(remaining)
        if not match:
            raise BadSharding(f'"{remaining.strip()}" is not an array. {_EXAMPLE}')
        arrays.append(_array(match))
        remaining = re.sub(r"^\s*[.·*@]\s*", "", remaining[match.end() :])
    return arrays


def _array(match: re.Match[str]) -> Array:
    """The array that a match of `_ARRAY` describes."""
    dims: list[Dim] = []
    if match["dims"].strip():
        dims = [_dim(text) for text in _split(match["dims"])]
    partial: tuple[str, ...] = ()
    if match["sums"]:
        partial = _axes(match["sums"].strip())
    return Array(match["name"] or "", tuple(dims), partial)


def _split(text: str) -> list[str]:
    """Split on commas that are not inside braces."""
    return re.split(r",(?![^{}]*\})", text)


def _dim(text: str) -> Dim:
    match = _DIM.match(text.strip())
    if not match:
        raise BadSharding(f'"{text.strip()}" is not a dim. Write I, I_X, I_XY or I_{{data,fsdp}}.')
    if not match[2]:
        return Dim(match[1])
    return Dim(match[1], _axes(match[2]))


def _axes(text: str) -> tuple[str, ...]:
    """The mesh axes in a subscript: `XY` is X and Y, `{data,fsdp}` and `fsdp` are whole names."""
    if text.startswith("{"):
        return tuple(part.strip() for part in text[1:-1].split(",") if part.strip())
    if text.isupper() or text.isdigit():
        return tuple(re.findall(r"[A-Z0-9]", text))
    return (text,)
