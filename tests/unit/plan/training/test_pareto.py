"""Nothing on a front is beaten, and what is on it are plans."""

from __future__ import annotations

import pytest

import shardwise as sw
from shardwise.errors import BadInput, NoPlan
from shardwise.plan.training.pareto import Front, chips_front, machines, memory_front
from shardwise.search.given import Choices

MODEL, JOB = sw.model("llama3-8b"), sw.Train(batch=16, seq=2048, gradients="bf16", master=None)
SLICE = sw.hardware("v5e:4x4")


@pytest.fixture(scope="module")
def against_memory() -> Front:
    return memory_front(MODEL, SLICE, JOB)


def test_no_point_beats_another(against_memory: Front) -> None:
    points = against_memory.points
    assert len(points) > 3
    steps = [p.step_s.expected for p in points if p.step_s]
    memory = [p.memory_bytes for p in points]
    assert steps == sorted(steps)
    assert memory == sorted(memory, reverse=True)
    assert len(set(steps)) == len(set(memory)) == len(points)


def test_the_fastest_is_the_plan(against_memory: Front) -> None:
    plan = sw.plan(MODEL, SLICE, JOB)
    assert against_memory.points[0].step_s is not None
    assert against_memory.points[0].step_s.expected <= plan.step.expected * (1 + 1e-9)


@pytest.mark.parametrize("fixed", [{"tensor": 4}, {"remat": "full"}, {"zero": 1, "fsdp": 1}])
def test_no_search_finds_a_better_one(against_memory: Front, fixed: Choices) -> None:
    """Any plan is beaten by, or is, a point of the front."""
    plan = sw.plan(MODEL, SLICE, JOB, fixed)
    assert any(
        p.step_s.expected <= plan.step.expected * (1 + 1e-9)
        and p.memory_bytes <= plan.memory.total * (1 + 1e-9)
        for p in against_memory.points
        if p.step_s and p.memory_bytes
    )


def test_against_chips_each_is_the_best_plan_of_its_machine() -> None:
    front = chips_front(MODEL, SLICE, JOB, peak=True)
    sizes = [p.n_chips for p in front.points]
    assert sizes == sorted(sizes)
    assert 16 in sizes
    best = float("inf")
    for point in front.points:
        if point.step_s is None:
            assert point.problem
            assert not point.on_front
            continue
        plan = sw.plan(MODEL, sw.hardware(point.hardware), JOB, peak=True)
        assert point.step_s == plan.step
        assert point.chip_s == plan.step.expected * point.n_chips
        assert point.on_front == (plan.step.expected < best)
        best = min(best, plan.step.expected)


@pytest.mark.parametrize(
    ("machine", "sizes"),
    [
        ("h100:8", [1, 2, 4, 8, 16, 32, 64]),
        ("h100:24", [3, 6, 24, 48, 96, 192]),
        ("v5e:4x4", [4, 8, 16, 32, 64, 128]),
        ("v5e:16x16", [32, 64, 128, 256]),
        ("v5e:4x4*2", [16, 32, 64, 128, 256]),
        ("v5p:4x4x4", [8, 16, 32, 64, 128, 256, 512]),
    ],
)
def test_machines_of_other_sizes(machine: str, sizes: list[int]) -> None:
    found = machines(sw.hardware(machine))
    assert [m.n_chips for m in found] == sizes
    assert sw.hardware(machine) in found
    assert [sw.hardware(m.name) for m in found] == found


def test_no_plan_at_all() -> None:
    big = sw.model("llama3.1-405b")
    with pytest.raises(NoPlan, match="does not fit"):
        memory_front(big, SLICE, JOB)
    with pytest.raises(NoPlan, match=r"llama3.1-405b on v5e:2x2 "):
        chips_front(big, sw.hardware("v5e:2x2"), JOB)
    with pytest.raises(BadInput):
        memory_front(MODEL, SLICE, JOB, {"tensro": 2})
