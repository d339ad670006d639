"""Slopes and break-evens are those of the evaluation itself."""

from __future__ import annotations

import math

import pytest

import shardwise as sw
from shardwise.errors import BadInput, UnknownName
from shardwise.hardware.scale import SCALABLE, scaled
from shardwise.plan.training.rebuild import rebuild
from shardwise.search.training.problem import Case, relinked
from shardwise.search.training.rank import Candidate
from shardwise.search.training.sensitivity import (
    HARDWARE,
    Sensitivity,
    hardware_names,
    nearest,
    sensitivities,
    with_batch,
    with_seq,
)

CASES = [
    ("llama3-8b", "v6e:4x4", sw.Train(batch=16, seq=2048), {"fsdp": 16}),
    ("llama3-8b", "h100:16", sw.Train(batch=64, seq=4096), {"tensor": 4}),
    ("mixtral-8x7b", "h100:32", sw.Train(batch=128, seq=2048), {"pipe": 2}),
    ("llama3-8b", "v5e:4x4*2", sw.Train(batch=64, seq=2048), {}),
]
Found = tuple[Case, list[Candidate], dict[str, Sensitivity]]


@pytest.fixture(scope="module", params=CASES, ids=lambda c: f"{c[0]}-{c[1]}")
def found(request: pytest.FixtureRequest) -> Found:
    name, machine, job, fixed = request.param
    plan = sw.plan(sw.model(name), sw.hardware(machine), job, fixed, peak=True)
    case = rebuild(plan)
    others = [c for c in case.rank().candidates if c.mesh != case.layout.mesh]
    return case, others, sensitivities(case, others, search=False)


def test_every_number_in_use_is_told(found: Found) -> None:
    case, _, told = found
    assert set(told) == {*hardware_names(case.system), "batch", "seq"}
    chip = case.system.chip
    assert told["peak_flops"].value == chip.peak("bf16")
    assert told["batch"].value == case.job.batch
    assert ("dcn_bandwidth" in told) == (case.system.n_slices > 1)


def test_slopes_add_up_to_minus_one(found: Found) -> None:
    """A machine that is faster in everything takes as much less time: latencies are the rest."""
    case, _, told = found
    rates = [told[name] for name in told if name in HARDWARE and name != "hbm_capacity"]
    slopes = [s.elasticity or 0.0 for s in rates]
    assert all(slope <= 1e-9 for slope in slopes)
    assert sum(slopes) == pytest.approx(-1, abs=0.06)
    everything = {HARDWARE[s.name]: 2.0 for s in rates}
    twice = case.with_system(scaled(case.system, everything)).evaluate().time.step_s
    assert twice == pytest.approx(case.evaluate().time.step_s / 2, rel=0.06)
    assert told["hbm_capacity"].elasticity == 0


def test_a_slope_predicts_a_small_change(found: Found) -> None:
    case, _, told = found
    now = case.evaluate().time.step_s
    for name in hardware_names(case.system):
        there = (
            case.with_system(scaled(case.system, {HARDWARE[name]: 1.0005})).evaluate().time.step_s
        )
        assert there / now == pytest.approx(1.0005 ** (told[name].elasticity or 0.0), rel=1e-5)


def binds(candidate: Candidate) -> str:
    roofline = candidate.roofline
    return "communication" if roofline.lower_s > roofline.on_chip_s else "chip"


def test_break_evens_part_two_states(found: Found) -> None:
    """Just before a break-even everything is as now, just beyond it is as it is told."""
    case, others, told = found
    rivals = [case.with_candidate(c) for c in others if c.fits][:4]
    for name in hardware_names(case.system):
        for kind in ("binds", "fits", "overtaken"):
            even = getattr(told[name], kind)
            if even is None:
                continue
            outward = 1.002 if even.factor > 1 else 1 / 1.002
            states = []
            for factor in (even.factor / outward, even.factor * outward):
                system = scaled(case.system, {HARDWARE[name]: factor})
                mine = case.with_system(system).evaluate()
                if kind == "binds":
                    states.append(binds(mine))
                elif kind == "fits":
                    states.append("fits" if mine.fits else "does not fit")
                else:
                    every = [r.with_system(system).evaluate() for r in rivals]
                    best = min([mine, *every], key=lambda c: c.time.step_s)
                    states.append("other" if best is not mine else "mine")
            assert states[0] != states[1] or kind == "overtaken"
            if kind != "overtaken":
                assert states[1] == even.to
            else:
                assert states[1] == "other"
            assert even.value == pytest.approx(even.factor * told[name].value)


def test_memory_fits_down_to_what_it_needs(found: Found) -> None:
    case, _, told = found
    memory = case.evaluate().memory
    need = float(memory.total + memory.margin) / memory.capacity
    even = told["hbm_capacity"].fits
    assert even is not None
    assert even.factor == pytest.approx(need, rel=2e-3)
    assert even.to == "does not fit"


def test_work_is_scaled_whole(found: Found) -> None:
    case, _, told = found
    for factor in (0.25, 0.5, 2.0, 8.0):
        other = with_batch(case, factor)
        if other is not None:
            assert other.layout.global_batch == other.job.batch == factor * case.job.batch
        longer = with_seq(case, factor)
        if longer is not None:
            assert longer.job.seq == factor * case.job.seq
    slope = told["batch"].elasticity
    assert slope is not None
    assert 0 < slope <= 1.05
    twice, now = with_batch(case, 2.0), case.evaluate().time.step_s
    assert twice is not None
    assert math.log2(twice.evaluate().time.step_s / now) == pytest.approx(slope, abs=0.25)


def test_a_relinked_placement_is_that_of_the_machine(found: Found) -> None:
    case, _, _ = found
    assert relinked(case.placement, case.system.chip) == case.placement


def test_half_and_twice_the_work_are_searched() -> None:
    plan = sw.plan(sw.model("llama3-8b"), sw.hardware("v5e:4x4"), sw.Train(batch=1, seq=2048))
    told = sensitivities(rebuild(plan), [])
    half, twice = told["batch"].searched
    assert (half.step_s, half.mesh, half.same) == (None, None, False)
    assert half.problem == "0.5 is not a whole number, or too large"
    again = sw.plan(sw.model("llama3-8b"), sw.hardware("v5e:4x4"), sw.Train(batch=2, seq=2048))
    assert (twice.value, twice.step_s) == (2.0, again.step.expected)
    assert twice.mesh == again.strategy.mesh
    assert twice.same == (again.strategy.mesh == plan.strategy.mesh)
    assert [s.factor for s in told["seq"].searched] == [0.5, 2.0]


def test_nearest_change() -> None:
    def above(limit: float) -> object:
        return lambda f: "b" if f > limit else "a"

    assert nearest(above(3.3)) == (pytest.approx(3.3, rel=1e-3), "b")
    assert nearest(above(0.3)) == (pytest.approx(0.3, rel=1e-3), "a")
    assert nearest(above(3.3), powers_of_two=True) == (4.0, "b")
    assert nearest(above(100)) is None
    # The nearer of two, on the scale of factors.
    assert nearest(lambda f: "in" if 0.6 < f < 3 else "out") == (
        pytest.approx(0.6, rel=1e-3),
        "out",
    )
    # A side on which there is nothing ends; the other goes on.
    assert nearest(lambda f: None if f > 1 else "b" if f < 0.2 else "a") is not None
    assert nearest(lambda f: None if f != 1 else "a") is None


def test_scaled_machines() -> None:
    h100 = sw.hardware("h100:64")
    twice = scaled(h100, {"flops": 2, "hbm": 0.5})
    assert twice.chip.peak("bf16") == 2 * h100.chip.peak("bf16")
    assert twice.chip.peak("fp8") == 2 * h100.chip.peak("fp8")
    assert twice.chip.need("hbm.capacity") == 0.5 * h100.chip.need("hbm.capacity")
    assert twice.name == h100.name
    assert scaled(h100, {}) == h100
    with pytest.raises(UnknownName, match="number of the hardware"):
        scaled(h100, {"hbn": 2})
    with pytest.raises(BadInput) as error:
        scaled(h100, {"ici": 2, "node": 0})
    assert len(error.value.problems) == 2
    assert "flops" in SCALABLE
