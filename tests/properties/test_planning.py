"""What must hold of every plan: better machines are never slower, better plans never missed."""

from __future__ import annotations

import dataclasses
import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.errors import NoPlan
from shardwise.estimate.memory import held_parameters
from shardwise.hardware import System
from shardwise.search import train
from shardwise.search.legal import legal_meshes
from shardwise.strategy.rules import TRAIN

MODELS = ["llama3.2-1b", "qwen2-0.5b", "qwen1.5-moe-a2.7b", "gemma-2b", "deepseek-v2-lite"]
MACHINES = ["v5e:4x4", "v5p:4x4x4", "v5e:4x8*2", "h100:16", "h100:8", "gb200:72"]
JOBS = [
    sw.Train(batch=64, seq=2048),
    sw.Train(batch=16, seq=8192),
    sw.Train(batch=144, seq=1024, remat="full"),
]
FASTER = ["ici", "hbm", "node", "scale_out", "dcn", "peak"]


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, str, sw.Train]:
    return (
        draw(st.sampled_from(MODELS)),
        draw(st.sampled_from(MACHINES)),
        draw(st.sampled_from(JOBS)),
    )


@functools.lru_cache(maxsize=64)
def best(name: str, system: System, job: sw.Train) -> train.Candidate | None:
    """The best strategy, or None where no mesh is legal or fits."""
    try:
        found = train.rank(sw.model(name), job, system, keep=1)[0]
    except NoPlan:
        return None
    return found if found.fits else None


def faster(system: System, what: str, times: float) -> System:
    """The machine with one of its rates raised."""
    chip = system.chip
    if what == "peak":
        peaks = {d: p * times for d, p in chip.peak_flops_per_s.items()}
        chip = dataclasses.replace(chip, peak_flops_per_s=peaks)
    elif what == "hbm":
        chip = dataclasses.replace(chip, hbm_bytes_per_s=chip.hbm_bytes_per_s * times)
    elif what == "dcn" and chip.dcn_bytes_per_s_per_chip:
        rate = chip.dcn_bytes_per_s_per_chip * times
        chip = dataclasses.replace(chip, dcn_bytes_per_s_per_chip=rate)
    elif what == "ici" and chip.ici:
        rate = chip.ici.link_bytes_per_s_one_way * times
        ici = dataclasses.replace(chip.ici, link_bytes_per_s_one_way=rate)
        chip = dataclasses.replace(chip, ici=ici)
    elif what in ("node", "scale_out") and getattr(chip, what):
        part = getattr(chip, what)
        rate = part.bytes_per_s_per_gpu_one_way * times
        part = dataclasses.replace(part, bytes_per_s_per_gpu_one_way=rate)
        chip = dataclasses.replace(chip, **{what: part})
    return dataclasses.replace(system, chip=chip)


@settings(max_examples=16)
@given(cases(), st.sampled_from(FASTER), st.floats(1.01, 10))
def test_a_faster_machine_is_never_slower(
    case: tuple[str, str, sw.Train], what: str, times: float
) -> None:
    name, machine, job = case
    system = sw.hardware(machine)
    before = best(name, system, job)
    after = best(name, faster(system, what, times), job)
    assert (before is None) == (after is None)
    if before and after:
        assert after.cost.expected <= before.cost.expected * (1 + 1e-12)


def test_a_faster_machine_can_be_faster() -> None:
    """The property above would hold of a search that read no rate at all."""
    name, job = "llama3.2-1b", JOBS[0]
    for machine, what in (("v5p:4x4x4", "peak"), ("v5e:4x4", "ici"), ("v5e:4x4", "hbm"),
                          ("h100:8", "node"), ("h100:16", "scale_out"),
                          ("v5e:4x8*2", "dcn")):  # fmt: skip
        slow = faster(sw.hardware(machine), what, 1 / 50)
        before, after = best(name, slow, job), best(name, sw.hardware(machine), job)
        assert after.cost.expected < before.cost.expected * 0.999, what


@settings(max_examples=16)
@given(cases(), st.data())
def test_no_legal_mesh_beats_the_plan(case: tuple[str, str, sw.Train], data: st.DataObject) -> None:
    name, machine, job = case
    model, system = sw.model(name), sw.hardware(machine)
    meshes = list(legal_meshes(model, job, system, {}))
    if not meshes:
        assert best(name, system, job) is None
        return
    plan = sw.evaluate(model, system, job, data.draw(st.sampled_from(meshes)))
    if plan.memory.total <= plan.memory.capacity:
        assert best(name, system, job).cost.expected <= plan.step.expected * (1 + 1e-12)


@settings(max_examples=40)
@given(
    st.sampled_from(MODELS),
    st.sampled_from(["fsdp", "tensor", "context", "data"]),
    st.tuples(*[st.sampled_from([1, 2, 4])] * 4),
)
def test_more_shards_hold_no_more(name: str, role: str, sizes: tuple[int, ...]) -> None:
    model = sw.model(name)
    mesh = dict(zip(("data", "fsdp", "tensor", "context"), sizes, strict=True))
    before = held_parameters(model, TRAIN, mesh)
    after = held_parameters(model, TRAIN, {**mesh, role: 2 * mesh[role]})
    assert after <= before
    if role == "data":
        assert after == before
    if role == "fsdp":
        assert after < before


@pytest.mark.parametrize(
    ("one", "other"),
    [("v5p:4x8x8", "v5p:8x4x8"), ("v5p:4x8x8", "v5p:8x8x4"), ("v5e:4x8", "v5e:8x4"),
     ("v5p:4x4x8*2", "v5p:8x4x4*2")],
)  # fmt: skip
def test_the_order_of_physical_axes_changes_nothing(one: str, other: str) -> None:
    job = sw.Train(batch=256, seq=2048)
    first, second = (best("llama3-8b", sw.hardware(m), job) for m in (one, other))
    assert first.rank == pytest.approx(second.rank, rel=1e-12)
    assert first.mesh == second.mesh
    assert first.cost.comm_s == pytest.approx(second.cost.comm_s, rel=1e-12)


@settings(max_examples=10)
@given(cases(), st.sampled_from(["fsdp", "tensor", "context"]), st.sampled_from([1, 2, 4]))
def test_fixing_a_role_is_never_faster(
    case: tuple[str, str, sw.Train], role: str, size: int
) -> None:
    name, machine, job = case
    model, system = sw.model(name), sw.hardware(machine)
    try:
        fixed = train.rank(model, job, system, {role: size}, keep=1)[0]
    except NoPlan:
        return
    assert getattr(fixed.mesh, role) == size
    if fixed.fits:
        assert best(name, system, job).cost.expected <= fixed.cost.expected * (1 + 1e-12)


@settings(max_examples=10)
@given(cases())
def test_remat_auto_is_the_better_of_both(case: tuple[str, str, sw.Train]) -> None:
    name, machine, job = case
    system = sw.hardware(machine)
    found = [
        best(name, system, dataclasses.replace(job, remat=remat))
        for remat in ("auto", "none", "full")
    ]
    auto, *each = (c.cost.expected if c else float("inf") for c in found)
    assert auto == pytest.approx(min(each), rel=1e-12)
