"""The grid of devices that replica groups suggest when no mesh is known."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardwise.check.hlo.device_grid import grid_of_groups, order_of_axes
from shardwise.check.hlo.groups import axes_of_groups, replica_groups


def test_the_groups_of_the_book_are_the_first_axis_of_8_by_16() -> None:
    rows = ",".join(f"{{{','.join(str(16 * i + j) for i in range(8))}}}" for j in range(16))
    grid = grid_of_groups(replica_groups(f"replica_groups={{{rows}}}, x", 128))
    assert grid is not None
    assert (grid.sizes, grid.axes, grid.stride(0)) == ((8, 16), (0,), 16)


def test_neighbours_are_the_last_axis() -> None:
    grid = grid_of_groups(replica_groups("replica_groups=[8,4]<=[32], x", 32))
    assert grid is not None
    assert (grid.sizes, grid.axes, grid.stride(1)) == ((8, 4), (1,), 1)


def test_groups_along_two_axes() -> None:
    grid = grid_of_groups(replica_groups("replica_groups={{0,1,4,5},{2,3,6,7}}, x", 8))
    assert grid is not None
    assert (grid.sizes, grid.axes) == ((2, 2, 2), (0, 2))


def test_irregular_groups_are_on_no_grid() -> None:
    for text in ("{{0,3},{1,2}}", "{{0,1,2},{3}}", "{{0,1},{2,4}}"):
        assert grid_of_groups(replica_groups(f"replica_groups={text}, x", 4)) is None


@given(
    sizes=st.lists(st.integers(2, 4), min_size=1, max_size=4),
    data=st.data(),
)
def test_groups_along_axes_of_any_mesh_are_axes_of_their_grid(sizes: list[int], data) -> None:
    chosen = data.draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1))
    devices = np.arange(math.prod(sizes)).reshape(sizes)
    size = math.prod(sizes[axis] for axis in chosen)
    groups = np.moveaxis(devices, sorted(chosen), range(-len(chosen), 0)).reshape(-1, size)
    grid = grid_of_groups(groups)
    assert grid is not None
    assert math.prod(grid.sizes) == devices.size
    assert math.prod(grid.sizes[axis] for axis in grid.axes) == size
    names = {str(axis): length for axis, length in enumerate(grid.sizes)}
    assert axes_of_groups(groups, names) == tuple(map(str, grid.axes))


def test_another_order_of_the_axes() -> None:
    groups = replica_groups("replica_groups=[4,8]<=[8,4]T(1,0), x", 32)
    assert axes_of_groups(groups, {"data": 4, "model": 8}) is None
    assert order_of_axes(groups, {"data": 4, "model": 8}) == {"model": 8, "data": 4}
    assert order_of_axes(groups, {"data": 2, "model": 16}) is None
