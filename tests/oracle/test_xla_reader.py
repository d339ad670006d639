"""The reader of compiled programs, on lines as XLA prints them: it sees what it must not miss."""

from __future__ import annotations

import pytest

from tests.oracle.hlo import Collective, Module, groups

pytestmark = pytest.mark.oracle

MESH = {"X": 2, "Y": 2}
ROWS = {frozenset({0, 1}), frozenset({2, 3})}
COLUMNS = {frozenset({0, 2}), frozenset({1, 3})}

PROGRAM = """
%inner (param_0: f32[8,4], param_1: s32[]) -> f32[4,4] {
  %param_0 = f32[8,4]{1,0} parameter(0)
  %param_1 = s32[] parameter(1)
  %copy.1 = f32[8,4]{0,1} copy(%param_0)
  ROOT %cut = f32[4,4]{0,1} dynamic-slice(%copy.1, %param_1, %param_1), dynamic_slice_sizes={4,4}
}

ENTRY %main (a: f32[8,6], b: f32[6,4]) -> f32[4,4] {
  %a = f32[8,6]{1,0} parameter(0)
  %b = f32[6,4]{1,0} parameter(1)
  %i = s32[] constant(0)
  %dot = f32[8,4]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %sum = f32[8,4]{1,0} all-reduce(%dot), replica_groups={{0,1},{2,3}}, to_apply=%add
  ROOT %used = f32[4,4]{1,0} USE
}
"""
SLICED = "fusion(%sum, %i), kind=kLoop, calls=%inner"
SLICED_AND_READ = "fusion(%sum, %sum), kind=kLoop, calls=%inner"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("replica_groups={{0,1},{2,3}}, to_apply", ROWS),
        ("replica_groups={}, x", {frozenset(range(4))}),
        ("replica_groups=[2,2]<=[4], dimensions={0}", ROWS),
        ("replica_groups=[2,2]<=[2,2]T(1,0), dimensions={0}", COLUMNS),
        ("replica_groups=mesh['a'=2,'b'=2] {'b'}, x={y}", ROWS),
        ("replica_groups=mesh['a'=2,'b'=2] {'a'}, x", COLUMNS),
        ("replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a'}, x", ROWS),
        ("replica_groups=mesh['a'=1,'b'=4] {'b'}, x", {frozenset(range(4))}),
    ],
)
def test_groups_of_devices_in_every_notation(text, expected):
    assert groups(text, 4) == expected


def test_an_unknown_notation_is_refused():
    with pytest.raises(AssertionError, match="does not know"):
        groups("replica_groups=mesh['a'=4] {'a':(1)2}, x", 4)


@pytest.mark.parametrize(
    ("use", "kind"),
    [(SLICED, "reduce_scatter"), (SLICED_AND_READ, "all_reduce"), ("add(%sum, %i)", "all_reduce")],
)
def test_only_a_sliced_sum_is_a_reduce_scatter(use, kind):
    found = Module(PROGRAM.replace("USE", use)).collectives(MESH)
    assert found == {Collective(kind, ("Y",), 128): 1}


def test_a_slice_of_another_size_is_no_shard():
    text = PROGRAM.replace("f32[4,4]", "f32[2,4]").replace("USE", SLICED)
    assert Module(text).collectives(MESH) == {Collective("all_reduce", ("Y",), 128): 1}


def test_flops_of_a_dot():
    assert Module(PROGRAM.replace("USE", SLICED)).dot_flops() == 2 * 8 * 4 * 6


@pytest.mark.parametrize("opcode", ["while", "custom-call", "all-gather-start"])
def test_what_it_does_not_follow_is_refused(opcode):
    with pytest.raises(AssertionError, match="does not follow"):
        Module(PROGRAM.replace("USE", f"{opcode}(%sum)"))
