"""Timelines of compiled programs that are kept: of each chip and each form of a collective."""

import gzip
import json
import math
from collections import Counter
from pathlib import Path

import pytest

from shardwise.check.hlo.collectives import collectives
from shardwise.check.hlo.costs import Cost, program_costs
from shardwise.check.hlo.text import parse
from shardwise.check.timeline.build import time_program
from shardwise.check.timeline.places import compiler_places
from shardwise.errors import BadInput
from shardwise.hardware import parse_system
from tests.unit.check.timeline.places import row_major_places

KEPT = Path(__file__).parents[1] / "hlo" / "programs"
CLOCK = 197e12 / 131072  # v5e: peak over FLOPs in a cycle
PROGRAMS = {
    "train_v5e": ("v5e:2x2", 1, CLOCK),
    "keep_v5e": ("v5e:2x2", 1, CLOCK),
    "jit_v5e": ("v5e:2x2", 1, CLOCK),
    "slices_v5e": ("v5e:2x2*2", 1, CLOCK),
    "train_v5p": ("v5p:2x2x1", 1, 1.75e9),
    "train_v6e": ("v6e:2x2", 1, 1.75e9),
    "train_tpu7x": ("7x:2x2x1", 2, 2.2e9),
    "train_gpu": ("h100:8", 1, None),
    "moe_v5e": ("v5e:2x2", 1, CLOCK),
    "moe_gpu": ("h100:4", 1, None),
    "ring_v5e": ("v5e:2x2", 1, CLOCK),
    "decode_v5e": ("v5e:2x2", 1, CLOCK),
    "pallas_v5e": ("v5e:2x2", 1, CLOCK),
}


def program(name):
    text = gzip.decompress((KEPT / f"{name}.hlo.gz").read_bytes()).decode()
    return parse(text), json.loads((KEPT / f"{name}.json").read_text())["mesh"]


def timed(name, mode="cycles", change="", **options):
    machine, per_chip, clock = PROGRAMS[name]
    module, mesh = program(name)
    system = parse_system(machine + change)
    places = row_major_places(system, per_chip)
    return time_program(module, system, places, mesh, mode=mode, clock_hz=clock, **options)


@pytest.mark.parametrize("mode", ["cycles", "roofline"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_collective_is_on_the_timeline_and_every_second_has_a_name(name, mode):
    module, mesh = program(name)
    found = timed(name, mode)
    line = found.timeline
    sent = Counter()
    for one in collectives(module, mesh):
        sent[one.instruction] += one.total_bytes
    shown = {t.name: t.bytes for t in line.transfers if t.kind not in ("copy", "work")}
    assert shown == dict(sent)
    assert math.isclose(line.step_s, line.compute_s + sum(line.exposed_s.values()), rel_tol=1e-9)
    assert line.step_s >= max(line.busy_s.values()) * (1 - 1e-9)
    assert sum(line.operation_s.values()) == pytest.approx(line.compute_s)
    assert (found.unresolved_loops, found.inexact_collectives) == ((), ())


def test_operations_by_roofline_take_at_least_their_flops_and_their_bytes():
    module, _ = program("train_v5e")
    ops = [op for op in program_costs(module) if op.instruction.opcode != "custom-call"]
    line = timed("train_v5e", "roofline").timeline
    moved = [op for op in ops if not op.instruction.opcode.endswith("-start")]
    assert line.compute_s >= sum(op.flops for op in ops) / 197e12
    floor = sum(max(op.flops / 197e12, op.hbm_bytes / 819e9) for op in moved)
    assert line.compute_s == pytest.approx(floor, rel=0.02)


def test_cycles_of_the_large_products_are_those_of_the_program():
    module, _ = program("jit_v5e")
    written = sum(
        int(one.backend_config["window_config"]["estimated_cycles"])
        for one in module.entry_computation.instructions.values()
        if "estimated_cycles" in one.backend_config.get("window_config", {})
    )
    assert timed("jit_v5e").timeline.compute_s == pytest.approx(written / CLOCK, rel=0.01)


def test_a_program_without_collectives_is_the_sum_of_its_operations():
    line = timed("pallas_v5e", "roofline").timeline
    assert (line.exposed_s, line.transfers) == ({}, ())
    assert line.step_s == line.compute_s == line.busy_s["core"]


def test_a_kernel_of_which_nobody_says_the_cost_is_named():
    """One that states its cost is not, and a hook has the last word."""
    assert timed("pallas_v5e").unknown_kernels == ()
    hook = lambda one: Cost(flops=197 * 10**12, elementwise=0, hbm_bytes=0, dtype="bf16")
    assert timed("pallas_v5e", "roofline", kernel_cost=hook).timeline.step_s == pytest.approx(1.0)
    slower = timed("pallas_v5e", kernel_cost=hook)
    assert slower.timeline.step_s == pytest.approx(1 / slower.kernel_share)


def test_fused_collectives_hide_behind_what_drives_them():
    fused = [t for t in timed("train_v5e").timeline.transfers if t.form == "fused"]
    assert len(fused) == 8
    assert all(t.n_runs in (1, 3) for t in fused)
    assert sum(t.hidden_s for t in fused) > 0.3 * sum(t.seconds for t in fused)
    assert all(0 < t.hidden_s <= sum(t.overlapped_s.values()) * (1 + 1e-9) for t in fused)
    sync = [t for t in timed("train_v5e").timeline.transfers if t.form == "sync"]
    assert all(t.hidden_s == pytest.approx(0.0, abs=1e-12) for t in sync)


def test_slices_talk_over_the_network_of_the_datacenter():
    line = timed("slices_v5e").timeline
    sums = [t for t in line.transfers if t.label == "data"]
    assert line.busy_s["dcn"] == pytest.approx(sum(t.bytes for t in sums) / 3.125e9)
    assert {t.kind for t in sums} == {"all_reduce"}


def test_offloaded_collectives_run_on_the_sparse_cores_beside_the_core():
    line = timed("train_tpu7x").timeline
    offloaded = [t for t in line.transfers if t.form == "offloaded"]
    assert line.busy_s["sparsecore"] == pytest.approx(sum(t.seconds for t in offloaded))
    assert sum(t.hidden_s for t in offloaded) > 0


def test_programs_of_gpus_have_no_cycles():
    found = timed("train_gpu")
    assert (found.mode, found.timeline.busy_s["node"] > 0) == ("roofline", True)
    assert found.timeline == timed("train_gpu", "roofline").timeline


@pytest.mark.parametrize("name", ["train_v5e", "ring_v5e", "slices_v5e"])
def test_faster_links_never_slow_a_program(name):
    steps = [timed(name, change=f",ici={rate}GB/s").timeline.step_s for rate in (10, 45, 400)]
    assert steps == sorted(steps, reverse=True)


def test_places_told_by_the_compiler_are_those_of_the_usual_order():
    system = parse_system("v5e:2x2")
    told = compiler_places(system, [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)], [0] * 4, [0] * 4)
    usual = row_major_places(system)
    assert (told.chips == usual.chips).all()
    assert (told.domains == usual.domains).all()
    with pytest.raises(BadInput, match="no coordinates"):
        compiler_places(system, [()], [0], [0])


def test_another_mode_is_bad_input():
    with pytest.raises(BadInput, match='not "fast"'):
        timed("jit_v5e", "fast")


OFFLOAD = """HloModule offload, is_scheduled=true

ENTRY %main (p: f32[1024,1024]) -> f32[1024,1024] {
  %p = HOST parameter(0)
  %in = (HERE, HOST, u32[]{:S(2)}) copy-start(%p)
  %here = HERE copy-done(%in)
  %out = (HOST, HERE, u32[]{:S(2)}) copy-start(%here)
  ROOT %gone = HOST copy-done(%out)
}
"""
HERE, HOST = "f32[1024,1024]{1,0:T(8,128)}", "f32[1024,1024]{1,0:T(8,128)S(5)}"


def test_copies_from_and_to_the_host_take_its_link():
    system = parse_system("v5e:2x2")
    text = OFFLOAD.replace("HOST", HOST).replace("HERE", HERE)
    found = time_program(
        parse(text), system, row_major_places(system), {}, mode="roofline", clock_hz=None
    )
    each = 4 * 2**20 / 16e9
    assert found.timeline.busy_s == pytest.approx({"host in": each, "host out": each})
    assert found.timeline.exposed_s == {"host": pytest.approx(2 * each)}


BRANCHES = """HloModule branches, is_scheduled=true

%idle (p.0: f32[8192,8192]) -> f32[8192,8192] {
  ROOT %p.0 = f32[8192,8192]{1,0:T(8,128)} parameter(0)
}

%work (p.1: f32[8192,8192]) -> f32[8192,8192] {
  %p.1 = f32[8192,8192]{1,0:T(8,128)} parameter(0)
  ROOT %d = f32[8192,8192]{1,0:T(8,128)} dot(%p.1, %p.1), lhs_contracting_dims={1}, \
rhs_contracting_dims={0}
}

ENTRY %main (p: f32[8192,8192], k: s32[]) -> f32[8192,8192] {
  %p = f32[8192,8192]{1,0:T(8,128)} parameter(0)
  %k = s32[] parameter(1)
  ROOT %r = f32[8192,8192]{1,0:T(8,128)} conditional(%k, %p, %p), branch_computations={FIRST, LAST}
}
"""


@pytest.mark.parametrize("order", [("%idle", "%work"), ("%work", "%idle")])
def test_a_conditional_takes_as_long_as_its_longest_branch(order):
    """Whichever branch a stage takes itself: it waits for the stage that takes the longest."""
    system = parse_system("v5e:2x2")
    text = BRANCHES.replace("FIRST", order[0]).replace("LAST", order[1])
    places = row_major_places(system)
    line = time_program(parse(text), system, places, {}, mode="roofline", clock_hz=None).timeline
    assert line.step_s == line.busy_s["core"] >= 2 * 8192**3 / 197e12


TICKS = """HloModule ticks, is_scheduled=true

%idle (p.0: f32[8192,8192]) -> f32[8192,8192] {
  ROOT %p.0 = f32[8192,8192]{1,0:T(8,128)} parameter(0)
}

%work (p.1: f32[8192,8192]) -> f32[8192,8192] {
  %p.1 = f32[8192,8192]{1,0:T(8,128)} parameter(0)
  ROOT %d = f32[8192,8192]{1,0:T(8,128)} dot(%p.1, %p.1), lhs_contracting_dims={1}, \
rhs_contracting_dims={0}
}

%body (c.0: (s32[], f32[8192,8192])) -> (s32[], f32[8192,8192]) {
  %c.0 = (s32[], f32[8192,8192]{1,0:T(8,128)}) parameter(0)
  %i = s32[] get-tuple-element(%c.0), index=0
  %x = f32[8192,8192]{1,0:T(8,128)} get-tuple-element(%c.0), index=1
  %y = f32[8192,8192]{1,0:T(8,128)} conditional(%i, %x, %x), branch_computations={%idle, %work}, \
metadata={op_name="jit(local)/while/body/stage.backward/cond"}
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  ROOT %t = (s32[], f32[8192,8192]{1,0:T(8,128)}) tuple(%next, %y)
}

%condition (c.1: (s32[], f32[8192,8192])) -> pred[] {
  %c.1 = (s32[], f32[8192,8192]{1,0:T(8,128)}) parameter(0)
  %j = s32[] get-tuple-element(%c.1), index=0
  %n = s32[] constant(10)
  ROOT %less = pred[] compare(%j, %n), direction=LT
}

ENTRY %main (p: f32[8192,8192]) -> f32[8192,8192] {
  %p = f32[8192,8192]{1,0:T(8,128)} parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[8192,8192]{1,0:T(8,128)}) tuple(%zero, %p)
  %loop = (s32[], f32[8192,8192]{1,0:T(8,128)}) while(%start), condition=%condition, body=%body
  ROOT %r = f32[8192,8192]{1,0:T(8,128)} get-tuple-element(%loop), index=1
}
"""
WORKS, IDLES = {"stage.backward": 1}, {"stage.backward": 0}


@pytest.mark.parametrize(
    ("lockstep", "n_working"),
    [
        (((6, (IDLES,)), (4, (IDLES, WORKS))), 4),  # in 4 of 10 ticks a stage works
        (((10, (WORKS, IDLES)),), 10),
        ((), 10),  # unknown: the longest branch
        (((3, (IDLES,)),), 10),  # ticks of another loop
    ],
)
@pytest.mark.parametrize(
    "branches",
    [
        "branch_computations={%idle, %work}",
        "true_computation=%work, false_computation=%idle",  # of a predicate
    ],
)
def test_a_tick_in_lockstep_takes_as_long_as_its_slowest_stage(lockstep, n_working, branches):
    system = parse_system("v5e:2x2")
    options = {"mode": "roofline", "clock_hz": None, "lockstep": lockstep}
    text = TICKS.replace("branch_computations={%idle, %work}", branches)
    found = time_program(parse(text), system, row_major_places(system), {}, **options)
    product_s = 2 * 8192**3 / 197e12
    assert found.timeline.step_s == pytest.approx(n_working * product_s, rel=0.01)
