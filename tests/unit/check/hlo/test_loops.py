"""How often computations run: written down, worked out, or said to be unknown."""

from __future__ import annotations

import pytest

from shardwise.check.hlo.loops import count_runs
from tests.unit.check.hlo.kept import NAMES, program, wrap

LOOP = """
%cond (p: (s32[], f32[8])) -> pred[] {{
  %p = (s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[] constant({limit})
  ROOT %c = pred[] compare(%i, %n), direction={direction}
}}

%step (a: s32[]) -> s32[] {{
  %a.1 = s32[] parameter(0)
  %one = s32[] constant({step})
  ROOT %s = s32[] add(%a.1, %one)
}}

%body (q: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %q = (s32[], f32[8]) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %x = f32[8] get-tuple-element(%q), index=1
  %next = s32[] fusion(%j), kind=kLoop, calls=%step
  ROOT %t = (s32[], f32[8]) tuple(%next, %x)
}}
"""
ENTRY = """
  %a = f32[8] parameter(0)
  %start = s32[] {start}
  %carry = (s32[], f32[8]) tuple(%start, %a)
  %w = (s32[], f32[8]) while(%carry), condition=%cond, body=%body
  ROOT %r = f32[8] get-tuple-element(%w), index=1
"""


def loop(limit=5, direction="LT", step=1, start="constant(0)"):
    before = LOOP.format(limit=limit, direction=direction, step=step)
    return count_runs(wrap(ENTRY.format(start=start), before))


@pytest.mark.parametrize(
    ("given", "trips"),
    [
        ({}, 5),
        ({"start": "constant(2)"}, 3),
        ({"limit": 0}, 0),
        ({"step": 2}, 3),
        ({"direction": "LE"}, 6),
        ({"direction": "NE"}, 5),
        ({"limit": -1, "direction": "GT", "step": -1, "start": "constant(7)"}, 8),
    ],
)
def test_trips_are_worked_out_from_condition_start_and_step(given, trips):
    found = loop(**given)
    assert found.by_computation == {"main": 1, "body": trips, "step": trips, "cond": trips + 1}
    assert found.unresolved_loops == ()
    assert found.scheduled == ("main", "cond", "body")


@pytest.mark.parametrize("given", [{"start": "partition-id()"}, {"step": 0}])
def test_an_unknown_trip_count_is_said(given):
    assert loop(**given).unresolved_loops == ("body",)


def test_a_loop_of_no_or_one_trip_runs_as_often_as_the_caller_knows():
    entry = ENTRY.replace("body=%body", 'body=%body, metadata={{op_name="jit(f)/stage/while"}}')
    module = wrap(
        entry.format(start="partition-id()"), LOOP.format(limit=5, direction="LT", step=1)
    )
    found = count_runs(module, {"stage": (6, 8)})
    assert found.by_computation == {"main": 1, "body": 8, "step": 8, "cond": 6 + 2 * 8}
    assert found.unresolved_loops == ()
    assert count_runs(module, {"another": (6, 8)}).unresolved_loops == ("body",)


def test_branches_of_a_predicate_are_counted_by_their_index():
    before = """
%idle (a: f32[8]) -> f32[8] {
  ROOT %a = f32[8] parameter(0)
}

%work (b: f32[8]) -> f32[8] {
  ROOT %b = f32[8] parameter(0)
}
"""
    body = """
  %a = f32[8] parameter(0)
  %k = pred[] constant(true)
  ROOT %r = f32[8] conditional(%k, %a, %a), true_computation=%work, false_computation=%idle, \
metadata={op_name="jit(local)/stage.forward/cond"}"""
    found = count_runs(wrap(body, before), {"stage.forward": (6, 8)})
    assert (found.by_computation["idle"], found.by_computation["work"]) == (6, 8)


def test_a_side_of_a_conditional_is_said():
    before = "%f (p: f32[8]) -> f32[8] {\n  ROOT %p = f32[8] parameter(0)\n}\n"
    body = """  %a = f32[8] parameter(0)
  %k = s32[] constant(0)
  ROOT %r = f32[8] conditional(%k, %a, %a), branch_computations={%f, %f}"""
    assert count_runs(wrap(body, before)).unresolved_branches == ("f",)


def test_sides_count_as_often_as_the_caller_knows_that_they_are_taken():
    before = "".join(
        f"%{name} (p: f32[8]) -> f32[8] {{\n  ROOT %p.{name} = f32[8] parameter(0)\n}}\n"
        for name in ("idle", "forward", "backward")
    )
    body = """  %a = f32[8] parameter(0)
  %k = s32[] constant(0)
  ROOT %r = f32[8] conditional(%k, %a, %a, %a), branch_computations={%idle, %forward, %backward}, \
metadata={op_name="jit(f)/while/body/stage/cond"}"""
    found = count_runs(wrap(body, before), {"stage": (6, 8, 9)})
    assert found.by_computation == {"main": 1, "idle": 6, "forward": 8, "backward": 9}
    assert found.unresolved_branches == ()
    other = count_runs(wrap(body, before), {"another": (6, 8, 9)})
    assert set(other.unresolved_branches) == {"idle", "forward", "backward"}


@pytest.mark.parametrize("name", NAMES)
def test_every_loop_of_the_kept_programs_is_resolved(name):
    assert count_runs(program(name)).unresolved_loops == ()


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith(("train", "keep", "slices"))])
def test_two_loops_over_three_layers(name):
    found = count_runs(program(name))
    bodies = [
        one.attribute("body")
        for one in program(name).entry_computation.instructions.values()
        if one.opcode == "while"
    ]
    # XLA:GPU takes the first trip of the second loop out of it.
    assert [found.by_computation[b] for b in bodies] == [3, 2 if name == "train_gpu" else 3]
