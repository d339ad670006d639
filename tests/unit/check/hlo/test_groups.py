"""Groups of devices: every notation of XLA, and back to the mesh axes that they are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.check.hlo.groups import (
    axes_of_groups,
    axes_of_pairs,
    replica_groups,
    source_target_pairs,
)
from shardwise.errors import BadInput

ROWS = [[0, 1], [2, 3]]
COLUMNS = [[0, 2], [1, 3]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("replica_groups={{0,1},{2,3}}, to_apply", ROWS),
        ("replica_groups={}, x", [[0, 1, 2, 3]]),
        ("replica_groups={{0,1,2},{3}}, x", [[0, 1, 2], [3, -1, -1]]),
        ("replica_groups=[2,2]<=[4], dimensions={0}", ROWS),
        ("replica_groups=[2,2]<=[2,2]T(1,0), dimensions={0}", COLUMNS),
        ("replica_groups=mesh['a'=2,'b'=2] {'b'}, x={y}", ROWS),
        ("replica_groups=mesh['a'=2,'b'=2] {'a'}, x", COLUMNS),
        ("replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a'}, x", ROWS),
        ("replica_groups=mesh['a'=1,'b'=4] {'b'}, x", [[0, 1, 2, 3]]),
        ("replica_groups=mesh['a'=4] {'a':(1)2}, x", COLUMNS),
        ("replica_groups=mesh['a'=4] {'a':(2)2}, x", ROWS),
    ],
)
def test_groups_of_devices_in_every_notation(text, expected):
    assert replica_groups(text, 4).tolist() == expected


def test_an_unknown_notation_is_refused():
    with pytest.raises(BadInput, match="unknown notation"):
        replica_groups("replica_groups=@mesh, x", 4)
    with pytest.raises(BadInput, match="unknown notation"):
        source_target_pairs("no pairs")


def listed(sizes: list[int], chosen: list[int]) -> str:
    """Groups along the chosen axes, written out in a scrambled order."""
    devices = np.arange(math.prod(sizes)).reshape(sizes)
    size = math.prod(sizes[a] for a in chosen)
    rows = np.moveaxis(devices, chosen, range(-len(chosen), 0)).reshape(-1, size)[::-1, ::-1]
    return "replica_groups={" + ",".join("{" + ",".join(map(str, r)) + "}" for r in rows) + "}, x"


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    picks=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_groups_of_axes_are_read_back_as_these_axes(sizes, picks):
    mesh = {f"x{i}": n for i, n in enumerate(sizes)}
    chosen = [i for i, _ in enumerate(sizes) if picks[i]]
    found = replica_groups(listed(sizes, chosen), math.prod(sizes))
    # An axis of size 1 joins nobody.
    assert axes_of_groups(found, mesh) == tuple(f"x{i}" for i in chosen if sizes[i] > 1)


def test_twelve_axes_are_no_search():
    mesh = {f"x{i}": 2 for i in range(12)}
    found = replica_groups(listed([2] * 12, [1, 4, 7, 10]), 2**12)
    assert axes_of_groups(found, mesh) == ("x1", "x4", "x7", "x10")


@pytest.mark.parametrize("rows", [[[0, 3], [1, 2]], [[0, 1, 2], [3, -1, -1]], [[0, 1, 2]]])
def test_groups_of_no_axes_are_none(rows):
    assert axes_of_groups(np.array(rows), {"a": 2, "b": 2}) is None


def test_part_of_an_axis_is_no_axis():
    assert axes_of_groups(np.array(ROWS), {"a": 4}) is None
    assert axes_of_groups(np.array(ROWS), {"a.0": 2, "a.1": 2}) == ("a.1",)


def test_a_program_for_several_slices_numbers_the_devices_of_one():
    assert axes_of_groups(np.array(ROWS), {"data": 2, "fsdp": 2, "tensor": 2}) == ("tensor",)
    assert axes_of_groups(np.array(COLUMNS), {"data": 4, "tensor": 2}) == ("data",)


def test_axes_of_a_permutation():
    ring = source_target_pairs("source_target_pairs={{0,1},{1,0},{2,3},{3,2}}, x")
    assert axes_of_pairs(ring, {"a": 2, "b": 2}) == ("b",)
    assert axes_of_pairs(np.array([[0, 3], [3, 0]]), {"a": 2, "b": 2}) == ("a", "b")
    assert axes_of_pairs(np.array([[0, 9]]), {"a": 2}) is None
