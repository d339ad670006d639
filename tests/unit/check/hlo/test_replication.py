"""Along which axes arrays differ, what their arguments are, and which of these are updated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwise.check.hlo.collectives import collectives
from shardwise.check.hlo.replication import replication
from shardwise.check.hlo.reshards import needless_moves
from shardwise.check.hlo.sharding import sharded_axes
from shardwise.check.hlo.updates import argument_updates
from tests.unit.check.hlo.kept import NAMES, mesh, program, wrap

MESH = {"data": 2, "model": 2}


@pytest.mark.parametrize(
    ("sharding", "axes"),
    [
        ("{replicated}", ((), ())),
        ("{devices=[2,2]<=[4]}", (("data",), ("model",))),
        ("{devices=[2,2]<=[2,2]T(1,0)}", (("model",), ("data",))),
        ("{devices=[2,1,2]<=[4] last_tile_dim_replicate}", (("data",), ())),
        ("{devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}", ((), ("model",))),
        ("{devices=[4,1]<=[4]}", (("data", "model"), ())),
        ("{devices=[2,2]0,2,1,3}", (("model",), ("data",))),
        ("{manual}", None),
        ("{devices=[8,1]<=[8]}", None),
    ],
)
def test_shardings_of_arguments(sharding: str, axes: object) -> None:
    assert sharded_axes(f"sharding={sharding}, metadata={{}}", 2, MESH) == axes


def test_an_argument_without_a_sharding_is_unknown() -> None:
    assert sharded_axes('metadata={op_name="w"}', 2, MESH) is None


LOOP = """
%body (carry: (s32[], f32[8], f32[8])) -> (s32[], f32[8], f32[8]) {
  %carry = (s32[], f32[8], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%carry), index=0
  %x = f32[8] get-tuple-element(%carry), index=1
  %y = f32[8] get-tuple-element(%carry), index=2
  ROOT %next = (s32[], f32[8], f32[8]) tuple(%i, %y, %y)
}

%condition (c: (s32[], f32[8], f32[8])) -> pred[] {
  %c = (s32[], f32[8], f32[8]) parameter(0)
  ROOT %more = pred[] constant(true)
}
"""
BODY = """
  %a = f32[8] parameter(0), sharding={devices=[2,2]<=[4] last_tile_dim_replicate}
  %b = f32[8] parameter(1), sharding={devices=[2,2]<=[2,2]T(1,0) last_tile_dim_replicate}
  %ab = f32[8] add(%a, %b)
  %sum = f32[8] all-reduce(%ab), channel_id=1, replica_groups=[2,2]<=[2,2]T(1,0), to_apply=%add
  %part = f32[4] reduce-scatter(%sum), channel_id=2, replica_groups=[2,2]<=[4], dimensions={0}
  %gathered = f32[16] all-gather(%b), channel_id=3, replica_groups=[2,2]<=[4], dimensions={0}
  %id = u32[] partition-id()
  %n = s32[] constant(0)
  %init = (s32[], f32[8], f32[8]) tuple(%n, %a, %b)
  %loop = (s32[], f32[8], f32[8]) while(%init), condition=%condition, body=%body
  %x_last = f32[8] get-tuple-element(%loop), index=1
  ROOT %y_last = f32[8] get-tuple-element(%loop), index=2
"""


def test_axes_and_arguments_through_collectives_and_loops() -> None:
    module = wrap(BODY, LOOP)
    entry = module.entry_computation
    origins = replication(module, MESH)
    axes = {name: set(origins.axes(entry, name)) for name in entry.instructions}
    assert (axes["a"], axes["b"], axes["ab"]) == ({"data"}, {"model"}, {"data", "model"})
    assert (axes["sum"], axes["part"], axes["gathered"]) == ({"model"}, {"model"}, set())
    assert (axes["id"], axes["n"]) == ({"data", "model"}, set())
    assert (axes["x_last"], axes["y_last"]) == ({"data", "model"}, {"model"})
    assert origins.arguments(entry, "sum") == {0, 1}
    assert origins.arguments(entry, "x_last") == {0, 1}
    assert origins.arguments(entry, "y_last") == {1}


@pytest.mark.parametrize("name", [name for name in NAMES if "slices" not in name])
def test_programs_whose_collectives_are_all_needed(name: str) -> None:
    module = program(name)
    moves = collectives(module, mesh(name))
    assert needless_moves(module, moves, replication(module, mesh(name))) == []
    # A residual stream is an update of what enters it.
    assert {parameter.op_name for parameter in argument_updates(module).unaliased()} <= {"x_BD"}


def test_updated_arguments_that_are_not_donated() -> None:
    module = wrap("""
  %a = f32[8] parameter(0)
  %b = f32[8] parameter(1)
  %ab = f32[8] add(%a, %b)
  %c = f32[8] negate(%b)
  ROOT %results = (f32[8], f32[8]) tuple(%ab, %c)
""")
    assert [parameter.name for parameter in argument_updates(module).unaliased()] == ["a", "b"]
    (aliased,) = argument_updates(replace(module, aliases=((0, 0),))).unaliased()
    assert aliased.name == "b"
