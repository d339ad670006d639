"""Ways to divide a torus among mesh axes, and those of them that no other one beats."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

from shardwise.hardware import Shape

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

# `undominated` returns all factorings up to this number.
MAX_EXHAUSTIVE = 64


def factorings(sizes: Shape, shape: Shape) -> list[tuple[Shape, ...]]:
    """Every way to divide a torus among mesh axes: for each mesh axis, its part of each torus axis.

    The parts of a mesh axis multiply to its size. They divide what the mesh axes before it leave of
    `shape`.
    """
    if not sizes:
        return [()]
    divisions: list[tuple[Shape, ...]] = []
    for parts in _splits(sizes[0], shape):
        remaining = tuple(map(operator.floordiv, shape, parts))
        divisions += [(parts, *others) for others in factorings(sizes[1:], remaining)]
    return divisions


@functools.lru_cache(maxsize=65536)
def undominated(
    sizes: Shape, shape: Shape, wrapped: tuple[bool, ...], pipe: int | None
) -> tuple[tuple[Shape, ...], ...]:
    """The factorings that no other one matches or beats in bandwidth on every mesh axis.

    Of equal factorings the first stays. Cached, since chips of many models have tori of the same
    shapes.

    Args:
        shape, wrapped: those of the torus.
        pipe: index of the mesh axis `pipe`, if there is one.
    """
    if _n_factorings(sizes, shape) <= MAX_EXHAUSTIVE:
        return tuple(factorings(sizes, shape))
    import numpy as np

    factors, links = _undominated_arrays(sizes, shape, wrapped, pipe)
    rows = _is_undominated(links, np.zeros(len(links))).nonzero()[0]
    return tuple(tuple(map(tuple, parts)) for parts in factors[rows].tolist())


@functools.lru_cache(maxsize=65536)
def _n_factorings(sizes: Shape, shape: Shape) -> int:
    """Number of `factorings`."""
    if not sizes:
        return 1
    remaining = (tuple(map(operator.floordiv, shape, parts)) for parts in _splits(sizes[0], shape))
    return sum(_n_factorings(sizes[1:], rest) for rest in remaining)


@functools.lru_cache(maxsize=4096)
def _undominated_arrays(
    sizes: Shape, shape: Shape, wrapped: tuple[bool, ...], pipe: int | None
) -> tuple[Array, Array]:
    """The factorings that no other one that leaves the same of the torus matches or beats.

    Whatever leaves the same has the same choices for the mesh axes that follow, so that a factoring
    that begins with a worse one is worse. Cached, since the meshes of a search have the sizes of
    their first mesh axes in common. The arguments are those of `undominated`.

    Returns:
        factors [factoring, mesh axis, torus axis], links [factoring, mesh axis]: bandwidths in
        links. A mesh axis receives over all its rings: over two links of a closed ring, over one of
        a line. A ring of stride s shares its links with s - 1 other groups. `pipe` sends over one
        ring at a time, so that its slowest ring counts.
    """
    import numpy as np

    if not sizes:
        return np.ones((1, 0, len(shape)), int), np.zeros((1, 0))
    *_, size = sizes
    is_pipe = pipe == len(sizes) - 1
    prefixes, prefix_links = _undominated_arrays(
        sizes[:-1], shape, wrapped, None if is_pipe else pipe
    )
    stride = prefixes.prod(axis=1)
    remaining = np.array(shape) // stride
    splits = [_split_array(size, tuple(row)) for row in remaining.tolist()]
    rows = np.repeat(np.arange(len(prefixes)), [len(split) for split in splits])
    parts = np.concatenate(splits)
    ends = stride[rows] * parts
    closed = (ends == np.array(shape)) & np.array(wrapped)
    if is_pipe:
        links = np.where(parts > 1, parts / ends, np.inf).min(axis=1)
    else:
        links = np.where(parts > 1, (1 + closed) * parts / ends, 0.0).sum(axis=1)
    factors = np.concatenate([prefixes[rows], parts[:, None]], axis=1)
    links = np.concatenate([prefix_links[rows], links[:, None]], axis=1)
    remainder = np.ravel_multi_index(tuple(ends.T), tuple(n + 1 for n in shape))
    undominated_rows = _is_undominated(links, remainder).nonzero()[0]
    return factors[undominated_rows], links[undominated_rows]


def _is_undominated(links: Array, remainder: Array) -> Array:
    """Whether no other row with the same `remainder` has as many links on every axis.

    Of equal rows the first is undominated.
    """
    import numpy as np

    matches = remainder[:, None] == remainder
    for column in links.T:
        matches &= column[:, None] >= column
    index = np.arange(len(links))
    is_earlier = index[:, None] < index
    beaten: Array = (matches & (is_earlier | ~matches.T)).any(axis=0)
    return ~beaten


@functools.lru_cache(maxsize=65536)
def _split_array(size: int, shape: Shape) -> Array:
    """`_splits` as an array [split, torus axis]."""
    import numpy as np

    return np.array(_splits(size, shape), int).reshape(-1, len(shape))


@functools.lru_cache(maxsize=65536)
def _splits(size: int, shape: Shape) -> tuple[Shape, ...]:
    """Every way to write `size` as a product of factors, one dividing each axis of `shape`."""
    if not shape:
        if size == 1:
            return ((),)
        return ()
    splits = []
    for factor in range(shape[0], 0, -1):
        if shape[0] % factor == 0 and size % factor == 0:
            splits += [(factor, *others) for others in _splits(size // factor, shape[1:])]
    return tuple(splits)
