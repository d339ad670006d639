"""Parser for array shapes in HLO text: element type, dims, layout, tiles, memory space."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

from shardwise.errors import BadInput

# Bits of one element. Tokens and opaque handles take no memory.
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
# Memory spaces as TPU programs number them: S(1), S(5).
HBM = 0
VMEM = 1
HOST = 5
SMEM = 6

_SHAPE = re.compile(r"([a-z][a-z0-9]*)\[([^\]]*)\](?:\{([^{}]*)\})?")
_TILES = re.compile(r"T((?:\([\d,*]+\))+)")
_SPACE = re.compile(r"S\((\d+)\)")
_ELEMENT = re.compile(r"E\((\d+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The shape of one array, such as `bf16[8,128]{1,0:T(8,128)(2,1)S(1)}`.

    Args:
        layout: the text between the braces.
        memory_space: 0 is HBM; on a TPU, 1 is VMEM and 5 is host memory.
        bytes: bytes of the elements, without padding.
        padded_bytes: bytes that the array occupies, in whole tiles.
    """

    dtype: str
    dims: tuple[int, ...]
    layout: str
    memory_space: int
    bytes: int
    padded_bytes: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @property
    def minor_to_major(self) -> tuple[int, ...]:
        """Dims in the order of memory, the one with adjacent elements first; () if unknown."""
        order = self.layout.partition(":")[0]
        return tuple(map(int, order.split(","))) if order else ()

    @property
    def tiles(self) -> tuple[tuple[str, ...], ...]:
        """Sizes of nested tiles: `T(8,128)(2,1)` -> (("8", "128"), ("2", "1")); () without."""
        return tuple(_tiles(self.layout))

    @property
    def tiled_dims(self) -> tuple[int, ...]:
        """Dims from major to minor, rounded up to whole outermost tiles; () without tiles.

        A tile with `*`, which combines dims, gives (), too.
        """
        if not self.tiles or "*" in self.tiles[0]:
            return ()
        tile = tuple(map(int, self.tiles[0]))
        order = self.minor_to_major[::-1] or tuple(range(len(self.dims)))
        physical = [self.dims[dim] for dim in order]
        physical = [1] * (len(tile) - len(physical)) + physical
        outer = physical[: len(physical) - len(tile)]
        pairs = zip(physical[len(outer) :], tile, strict=True)
        return (*outer, *(-(-dim // size) * size for dim, size in pairs))

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Parse the arrays of a shape or of a (nested) tuple of shapes, in order.

    Raises:
        BadInput: an element type that this parser does not know.
    """
    return tuple(_parse_shape(*match.groups()) for match in _SHAPE.finditer(text))


@functools.lru_cache(maxsize=1 << 14)  # a program repeats its shapes
def _parse_shape(dtype: str, dims_text: str, layout: str | None) -> Shape:
    if dtype not in BITS:
        raise BadInput(
            f'the compiled program has the element type "{dtype}", which is unknown here. '
            f"Known types: {', '.join(BITS)}."
        )
    # A dynamic dim is written `<=8`; memory is allocated for its upper bound.
    dims = tuple(int(d.strip().lstrip("<=")) for d in dims_text.split(",") if d.strip())
    layout = layout or ""
    space = _SPACE.search(layout)
    packing = _ELEMENT.search(layout)
    bits = BITS[dtype]
    stored_bits = max(bits, 8) if bits else 0
    if packing:
        bits = int(packing[1])
        stored_bits = bits
    return Shape(
        dtype=dtype,
        dims=dims,
        layout=layout,
        memory_space=int(space[1]) if space else HBM,
        bytes=-(-math.prod(dims) * bits // 8),
        padded_bytes=-(-_padded_elements(dims, layout) * stored_bits // 8),
    )


def _padded_elements(dims: tuple[int, ...], layout: str) -> int:
    """Elements of an array padded to whole tiles.

    A layout may nest several tiles, `T(8,128)(2,1)`: each tiles the last dims of the array that the
    previous one has tiled.
    """
    order, _, tiling = layout.partition(":")
    physical = list(dims)
    if order:
        physical = [dims[int(i)] for i in reversed(order.split(","))]
    for tile in _tiles(tiling):
        physical = _tiled(physical, list(tile))
    return math.prod(physical)


def _tiles(layout: str) -> list[tuple[str, ...]]:
    """The sizes of the nested tiles of a layout, outermost first."""
    tiles = _TILES.search(layout)
    if tiles is None:
        return []
    return [tuple(tile.split(",")) for tile in re.findall(r"\(([\d,*]+)\)", tiles[1])]


def _tiled(dims: list[int], tile: list[str]) -> list[int]:
    """Dims of a tiled array: outer dims, counts of tiles, dims of one tile.

    A tile size `*` combines its dim with the next one.
    """
    dims = [1] * (len(tile) - len(dims)) + dims
    n_outer = len(dims) - len(tile)
    counts: list[int] = []
    sizes: list[int] = []
    combined_dim = 1
    for dim, size in zip(dims[n_outer:], tile, strict=True):
        combined_dim *= dim
        if size == "*":
            continue
        counts.append(-(-combined_dim // int(size)))
        sizes.append(int(size))
        combined_dim = 1
    return [*dims[:n_outer], *counts, *sizes]
