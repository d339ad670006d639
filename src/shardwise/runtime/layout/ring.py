"""The order of chips on a ring, in which neighbors are linked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Position = tuple[int, ...]


def ring_order(positions: Sequence[Position]) -> tuple[int, ...]:
    """Indices of chips in an order in which each is one hop from the next, the last from the first.

    The given order where no closed path through the links of a grid is known: chips along one axis,
    which a torus closes; an odd number of chips along every axis; chips that are no grid.

    Args:
        positions: coordinates of each chip on a torus.

    >>> ring_order([(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)])
    (2, 4, 5, 3, 1, 0)
    """
    chips = np.array(positions)
    given = tuple(range(len(chips)))
    if chips.ndim < 2:
        return given
    chips = chips - chips.min(axis=0)
    axes = [axis for axis in range(chips.shape[1]) if chips[:, axis].any()]
    shape = [int(chips[:, axis].max()) + 1 for axis in axes]
    even = [i for i, size in enumerate(shape) if size % 2 == 0]
    if len(axes) < 2 or not even or np.prod(shape) != len(chips):
        return given
    index = {tuple(chip[axes].tolist()): i for i, chip in enumerate(chips)}
    if len(index) < len(chips):
        return given
    return tuple(index[position] for position in _cycle(shape, even[0]))


def _cycle(shape: Sequence[int], even: int) -> list[Position]:
    """A closed path through a grid: rows back and forth, and back along their first column.

    Args:
        even: axis of the rows, of which there are an even number.
    """
    columns = _path([*shape[:even], *shape[even + 1 :]])
    cells: list[tuple[int, Position]] = []
    for row in range(shape[even]):
        cells += [(row, column) for column in columns[1:][:: -1 if row % 2 else 1]]
    cells += [(row, columns[0]) for row in reversed(range(shape[even]))]
    return [(*column[:even], row, *column[even:]) for row, column in cells]


def _path(shape: Sequence[int]) -> list[Position]:
    """An open path through a grid, one hop at a time."""
    if not shape:
        return [()]
    inner = _path(shape[1:])
    path: list[Position] = []
    for i in range(shape[0]):
        path += [(i, *rest) for rest in inner[:: -1 if i % 2 else 1]]
    return path
