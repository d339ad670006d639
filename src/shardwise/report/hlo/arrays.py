"""The arrays of an operation: bytes, padding, memory, and what their layouts mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from shardwise import units
from shardwise.check.explained.arrays import ArrayInMemory
from shardwise.report.words import counted, listed

MAX_ARRAYS = 6  # of the results, and of the operands
WORD_BYTES = 4  # a TPU's vector registers have words of 32 bits


def array_rows(
    label: str, arrays: Sequence[ArrayInMemory], *, named: bool
) -> Iterator[tuple[str, str]]:
    """Labelled lines: each array with its bytes; scalars beside other arrays are only counted."""
    large = [array for array in arrays if array.dims] or list(arrays)
    for array in large[:MAX_ARRAYS]:
        name = f"%{array.name} " if named else ""
        yield label, f"{name}{_typed(array)}: {_size(array)}"
        label = ""
    rest = []
    if len(large) > MAX_ARRAYS:
        n_bytes = sum(array.padded_bytes for array in large[MAX_ARRAYS:])
        rest.append(f"{len(large) - MAX_ARRAYS} more of {units.show_bytes(n_bytes)}")
    if len(large) < len(arrays):
        rest.append(counted(len(arrays) - len(large), "scalar"))
    if rest:
        yield "", f"and {listed(rest)}"


def layout_rows(arrays: Iterable[ArrayInMemory]) -> Iterator[tuple[str, str]]:
    """Labelled lines: each layout that several dims or tiles give a meaning, once."""
    label = "layout"
    sentences: dict[str, None] = {}
    for array in arrays:
        if array.layout and (len(array.dims) > 1 or array.tiles):
            sentences[_layout(array)] = None
    for sentence in list(sentences)[:MAX_ARRAYS]:
        yield label, sentence
        label = ""


def _typed(array: ArrayInMemory) -> str:
    return f"{array.shape}{{{array.layout}}}" if array.layout else array.shape


def _size(array: ArrayInMemory) -> str:
    """Bytes, padding and memory: `60 B, padded to 8 × 128: 4.1 kB (+6,727 %), in HBM`."""
    text = units.show_bytes(array.bytes)
    if array.padded_bytes > array.bytes:
        padded = units.show_bytes(array.padded_bytes)
        dims = f" to {_product(array.tiled_dims)}" if array.tiled_dims else ""
        text += f", padded{dims}: {padded} (+{units.significant(100 * array.padding)} %)"
    elif array.tiles:
        text += ", no padding"
    return f"{text}, in {array.memory}"


def _layout(array: ArrayInMemory) -> str:
    """What the order of dims and the tiles mean."""
    order = array.minor_to_major or tuple(reversed(range(len(array.dims))))
    text = f"{{{array.layout.partition('S(')[0]}}}: "
    if len(order) > 1:
        others = ", ".join(map(str, order[1:]))
        text += f"dim {order[0]} is minor, then {others}{_kind(order)}"
    elif order:
        text += "one dim"
    else:
        text += "a scalar"
    if array.tiles:
        outer, *nested = array.tiles
        tiled = sorted(order[: len(outer)])
        over = (
            f" over dims {listed([str(dim) for dim in tiled])}" if len(tiled) > 1 else " elements"
        )
        text += f"; tiles of {' × '.join(outer)}{over}"
        for tile in nested:
            text += f"; {_nested(array, tile)}"
    return f"{text}."


def _kind(order: tuple[int, ...]) -> str:
    if list(order) == sorted(order, reverse=True):
        return " (row-major)"
    return " (column-major)" if list(order) == sorted(order) else ""


def _nested(array: ArrayInMemory, tile: tuple[str, ...]) -> str:
    """What a tile inside a tile means: on TPUs, rows whose elements share a word."""
    elements = max(1, array.bytes) / max(1, _elements(array))
    if len(tile) == 2 and tile[1] == "1" and int(tile[0]) * elements == WORD_BYTES:
        return f"({','.join(tile)}) packs {tile[0]} rows into words of 32 bits"
    return f"in them tiles of {' × '.join(tile)}"


def _elements(array: ArrayInMemory) -> int:
    n_elements = 1
    for dim in array.dims:
        n_elements *= dim
    return n_elements


def _product(dims: Iterable[int]) -> str:
    return " × ".join(f"{dim:,}" for dim in dims)
