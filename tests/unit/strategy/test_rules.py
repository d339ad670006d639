"""The table of a strategy."""

from __future__ import annotations

import itertools

import pytest

from shardwise.strategy.mesh import INSIDE_OUT
from shardwise.strategy.rules import TRAIN, layout, only


@pytest.mark.parametrize(
    ("kind", "dims", "axes"),
    [
        ("weights", "DF", {"D": ("fsdp", "context", "expert"), "F": ("tensor",)}),
        ("weights", "FD", {"D": ("fsdp", "context", "expert"), "F": ("tensor",)}),
        ("weights", "VD", {"D": ("fsdp", "context", "expert"), "V": ("tensor",)}),
        ("weights", "EDF", {"E": ("expert",), "D": ("fsdp", "context"), "F": ("tensor",)}),
        ("weights", "DE", {"D": ("fsdp", "context", "expert")}),
        ("weights", "DQ", {"D": ("fsdp", "context", "expert")}),
        ("weights", "QNH", {"Q": ("fsdp", "context", "expert"), "N": ("tensor",)}),
        ("weights", "H", {}),
        ("activations", "BTF", {"B": ("data", "fsdp"), "T": ("context",), "F": ("tensor",)}),
        ("activations", "BTNS", {"B": ("data", "fsdp"), "T": ("context",), "N": ("tensor",)}),
        ("residual", "BTD", {"B": ("data", "fsdp"), "T": ("context", "tensor")}),
    ],
)
def test_the_layout_of_an_array(kind: str, dims: str, axes: dict[str, tuple[str, ...]]) -> None:
    assert layout(TRAIN, kind, tuple(dims)) == axes


def test_no_array_uses_an_axis_twice() -> None:
    letters = ("B", "T", "S", "D", "F", "N", "K", "H", "V", "E", "Q", "C", "C'")
    for kind in ("weights", "activations", "residual"):
        for dims in itertools.combinations(letters, 3):
            used = [a for axes in layout(TRAIN, kind, dims).values() for a in axes]
            assert len(used) == len(set(used))


def test_the_earlier_row_has_an_axis() -> None:
    rules = {"weights.D": ("fsdp",), "weights.F": ("fsdp", "tensor")}
    assert layout(rules, "weights", ("F", "D")) == {"D": ("fsdp",), "F": ("tensor",)}
    assert layout({"weights.D": ("x",), "weights.F": ("x",)}, "weights", ("F", "D")) == {
        "D": ("x",)
    }


def test_the_rows_that_a_mesh_uses() -> None:
    assert only(TRAIN, {"fsdp": 8, "tensor": 1, "data": 1}) == {
        "weights.D": ("fsdp",),
        "weights.Q": ("fsdp",),
        "weights.C": ("fsdp",),
        "weights.C'": ("fsdp",),
        "activations.B": ("fsdp",),
        "residual.B": ("fsdp",),
    }
    assert only(TRAIN, {}) == {}
    assert only(TRAIN, dict.fromkeys(INSIDE_OUT, 2)) == TRAIN


def test_the_table_speaks_of_roles() -> None:
    assert {axis for axes in TRAIN.values() for axis in axes} <= set(INSIDE_OUT)
    assert {row.split(".")[0] for row in TRAIN} == {"weights", "activations", "residual"}
