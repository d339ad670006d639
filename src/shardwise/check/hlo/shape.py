"""Shapes as a compiled program writes them: element type, dims, layout, tiles, memory space."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from shardwise.errors import BadInput

# Bits of one element. Tokens and opaque handles hold nothing.
BITS = {
    **dict.fromkeys(("token", "opaque"), 0),
    **dict.fromkeys(("s1", "u1"), 1),
    **dict.fromkeys(("s2", "u2"), 2),
    **dict.fromkeys(("s4", "u4", "f4e2m1fn"), 4),
    **dict.fromkeys(("pred", "s8", "u8", "f8e5m2", "f8e4m3", "f8e4m3fn", "f8e4m3b11fnuz"), 8),
    **dict.fromkeys(("f8e5m2fnuz", "f8e4m3fnuz", "f8e3m4", "f8e8m0fnu"), 8),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 16),
    **dict.fromkeys(("s32", "u32", "f32"), 32),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 64),
    "c128": 128,
}
HBM, VMEM, HOST = 0, 1, 5  # memory spaces as TPU programs number them: S(1), S(5)

_SHAPE = re.compile(r"([a-z][a-z0-9]*)\[([^\]]*)\](?:\{([^{}]*)\})?")
_TILES = re.compile(r"T((?:\([\d,*]+\))+)")
_SPACE = re.compile(r"S\((\d+)\)")
_ELEMENT = re.compile(r"E\((\d+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One array: `bf16[8,128]{1,0:T(8,128)(2,1)S(1)}`.

    Args:
        layout: the text between the braces.
        memory_space: 0 is HBM; on a TPU 1 is VMEM and 5 the memory of the host.
        bytes: of the elements alone.
        padded_bytes: of whole tiles, which is what memory holds.
    """

    dtype: str
    dims: tuple[int, ...]
    layout: str
    memory_space: int
    bytes: int
    padded_bytes: int

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


def shapes(text: str) -> tuple[Shape, ...]:
    """The arrays of a shape or of a (nested) tuple of shapes, in order.

    Raises:
        BadInput: for an element type that this reader does not know.
    """
    return tuple(_shape(*found.groups()) for found in _SHAPE.finditer(text))


def _shape(dtype: str, dims_text: str, layout: str | None) -> Shape:
    if dtype not in BITS:
        raise BadInput(
            f'the compiled program has the element type "{dtype}", which this reader does not '
            f"know. It knows {', '.join(BITS)}."
        )
    # A dynamic dim is written `<=8`: its bound is what memory holds.
    dims = tuple(int(d.strip().lstrip("<=")) for d in dims_text.split(",") if d.strip())
    layout = layout or ""
    space = _SPACE.search(layout)
    packed = _ELEMENT.search(layout)
    bits = BITS[dtype]
    stored = int(packed[1]) if packed else max(bits, 8) if bits else 0
    return Shape(
        dtype=dtype,
        dims=dims,
        layout=layout,
        memory_space=int(space[1]) if space else HBM,
        bytes=-(-math.prod(dims) * (int(packed[1]) if packed else bits) // 8),
        padded_bytes=-(-_padded_elements(dims, layout) * stored // 8),
    )


def _padded_elements(dims: tuple[int, ...], layout: str) -> int:
    """Elements of the whole tiles: each tile cuts the last dims of what the one before left."""
    order, _, rest = layout.partition(":")
    physical = [dims[int(i)] for i in reversed(order.split(","))] if order else list(dims)
    found = _TILES.search(rest)
    for tile in re.findall(r"\(([\d,*]+)\)", found[1]) if found else ():
        physical = _tiled(physical, tile.split(","))
    return math.prod(physical)


def _tiled(dims: list[int], tile: list[str]) -> list[int]:
    """Dims of the array in tiles: counts of tiles, then one tile. `*` joins a dim to the next."""
    dims = [1] * (len(tile) - len(dims)) + dims
    outer, inner = dims[: len(dims) - len(tile)], dims[len(dims) - len(tile) :]
    joined: list[int] = []
    sizes: list[int] = []
    carried = 1
    for dim, size in zip(inner, tile, strict=True):
        if size == "*":
            carried *= dim
            continue
        joined.append(carried * dim)
        sizes.append(int(size))
        carried = 1
    counts = [-(-dim // size) for dim, size in zip(joined, sizes, strict=True)]
    return [*outer, *counts, *sizes]
