"""How copies of a weight share its update, on meshes without devices."""

from __future__ import annotations

import math

import pytest
from jax.sharding import AbstractMesh, PartitionSpec

from shardwise.models.weights import Weight
from shardwise.runtime.layout.mesh import RoleMesh
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.training.gradient_sync import partition_update, state_spec
from shardwise.runtime.weights.descriptions import ArrayInfo
from shardwise.strategy.layout import Layout, rules_of
from shardwise.strategy.mesh import ROLES, Mesh

LAYOUT = Layout(mesh=Mesh(data=12), zero=1)
AXES = {"data.0": 3, "data.1": 2, "data.2": 2}


def table() -> Table:
    """Twelve copies, as three mesh axes of the prime factors."""
    others = [role for role in ROLES if role != "data"]
    mesh = AbstractMesh((*AXES.values(), *(1 for _ in others)), (*AXES, *others))
    axes = {"data": tuple(AXES), **{role: (role,) for role in others}}
    sizes = {**dict.fromkeys(ROLES, 1), "data": math.prod(AXES.values())}
    return Table(rules=rules_of(LAYOUT), mesh=RoleMesh(jax_mesh=mesh, axes=axes, sizes=sizes))


def weight(*shape: int, matmul: bool = True) -> ArrayInfo:
    dims = ("D", "F")[: len(shape)]
    one = Weight(
        name="w", dims=dims, shape=shape, part="mlp" if matmul else "norm", is_matmul=matmul
    )
    return ArrayInfo(weight=one, n_layers=5)


@pytest.mark.parametrize(
    ("shape", "cuts", "summed"),
    [
        ((24, 7), ((("data.2", "data.1", "data.0"), 12, -2),), ()),
        ((8, 9), ((("data.2", "data.1"), 4, -2), (("data.0",), 3, -1)), ()),
        ((6, 5), ((("data.2", "data.0"), 6, -2),), ("data.1",)),
    ],
)
def test_axes_that_cut_one_dim_do_it_in_one_collective(
    shape: tuple[int, int], cuts: tuple[object, ...], summed: tuple[str, ...]
) -> None:
    found = partition_update(weight(*shape), table(), zero=1, n_microbatches=1)
    assert (found.cuts, found.sum_axes) == (cuts, summed)


def test_the_state_lies_as_the_update_is_dealt_out() -> None:
    info = weight(8, 9)
    spec = state_spec(info, table(), partition_update(info, table(), zero=1, n_microbatches=1))
    assert spec == PartitionSpec(None, ("data.2", "data.1"), ("data.0",))


def test_scales_of_norms_are_updated_by_every_copy() -> None:
    found = partition_update(weight(12, matmul=False), table(), zero=1, n_microbatches=1)
    assert (found.cuts, found.sum_axes, found.in_backward) == ((), tuple(AXES)[::-1], False)
