"""What must hold of every plan: better machines are never slower, better plans never missed."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.errors import NoPlan
from shardwise.estimate.calibration import PEAK, calibration
from shardwise.estimate.training.memory.peak import step_memory
from shardwise.hardware import System
from shardwise.ops.program import training_step
from shardwise.search.given import fixed_of
from shardwise.search.training import rank
from shardwise.strategy.layout import Layout, table
from shardwise.strategy.mesh import Mesh, place
from tests.strategies import every_mesh, layouts

MODELS = [  # of few layers: fewer ways to cut them
    "llama3.2-1b,n_layers=6",
    "qwen2-0.5b,n_layers=4",
    "gemma-2b,n_layers=4",
    "qwen1.5-moe-a2.7b,n_layers=4",
    "deepseek-v2-lite,n_layers=4",
]
MACHINES = [
    "v5e:4x4,hbm=4GiB",
    "v5p:2x4x4",
    "v5e:4x4*2",
    "h100:16",
    "h100:8,sharp=on,hbm=12GB",
    "a100:16",
]
JOBS = [
    sw.Train(batch=64, seq=2048, remat="none"),
    sw.Train(batch=16, seq=8192, remat="mlp", overlap=("tp_comm",)),
    sw.Train(batch=48, seq=1024, remat="full", reduce="fp32"),
]
ANY_REMAT = sw.Train(batch=64, seq=2048)
FASTER = ["ici", "hbm", "node", "scale_out", "dcn", "peak", "capacity"]
LOOSE = 1 + 1e-9
ANY = fixed_of({}, any_layout=True)


def cases(*jobs: sw.Train) -> st.SearchStrategy[tuple[str, str, sw.Train]]:
    return st.tuples(
        st.sampled_from(MODELS), st.sampled_from(MACHINES), st.sampled_from(jobs or JOBS)
    )


@functools.lru_cache(maxsize=256)
def best(name: str, system: System, job: sw.Train, peak: bool = False) -> rank.Candidate | None:
    """The best strategy, or None where no mesh is legal or fits."""
    cal = PEAK if peak else calibration(system.chip)
    try:
        found = rank.rank(sw.model(name), system, job, cal, ANY, keep=1).candidates[0]
    except NoPlan:
        return None
    return found if found.fits else None


@functools.cache
def meshes(name: str, machine: str, job: sw.Train) -> list[Mesh]:
    return list(every_mesh(sw.model(name), sw.hardware(machine), job))


def faster(system: System, what: str, times: float) -> System:
    """The machine with one of its rates, or its memory, raised."""
    chip = system.chip
    if what == "peak":
        peaks = {d: p * times for d, p in chip.peak_flops_per_s.items()}
        chip = dataclasses.replace(chip, peak_flops_per_s=peaks)
    elif what == "hbm":
        chip = dataclasses.replace(chip, hbm_bytes_per_s=chip.hbm_bytes_per_s * times)
    elif what == "capacity":
        chip = dataclasses.replace(chip, hbm_bytes=chip.hbm_bytes * times)
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


@settings(max_examples=6)
@given(cases(), st.sampled_from(FASTER), st.floats(1.01, 10), st.booleans())
def test_a_faster_machine_is_never_slower(
    case: tuple[str, str, sw.Train], what: str, times: float, peak: bool
) -> None:
    name, machine, job = case
    system = sw.hardware(machine)
    before = best(name, system, job, peak)
    after = best(name, faster(system, what, times), job, peak)
    assert before is None or after is not None
    if before and after:
        assert after.time.step_s <= before.time.step_s * LOOSE
        assert after.roofline.lower_s > 0


@settings(max_examples=40)
@given(cases(), st.sampled_from(FASTER), st.floats(1.01, 10), st.booleans(), st.data())
def test_a_layout_on_a_faster_machine_is_never_slower(
    case: tuple[str, str, sw.Train], what: str, times: float, peak: bool, data: st.DataObject
) -> None:
    """Of any layout, not of the best alone."""
    name, machine, job = case
    model, system = sw.model(name), sw.hardware(machine)
    if not meshes(*case):
        return
    layout = data.draw(layouts(model, system, job, meshes(*case)))
    cal = PEAK if peak else calibration(system.chip)
    other = faster(system, what, times)
    ways = zip(place(system, layout.sizes), place(other, layout.sizes), strict=True)
    for here, there in itertools.islice(ways, 3):
        before = rank.evaluate(model, system, job, layout, cal, here)
        after = rank.evaluate(model, other, job, layout, cal, there)
        assert after.time.step_s <= before.time.step_s * LOOSE
        assert after.roofline.lower_s <= before.roofline.lower_s * LOOSE
        assert after.time.upper_s <= before.time.upper_s * LOOSE
        assert after.fits >= before.fits


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("what", ["ici", "peak", "hbm"])
def test_what_hides_does_not_count_twice(zero: int, what: str) -> None:
    """Work hides traffic; a chip that works twice as fast hides less, and is no slower for it."""
    model, job = sw.model("llama3-8b"), sw.Train(batch=64, seq=2048)
    mesh = Mesh(data=4, fsdp=4, context=2) if zero == 3 else Mesh(data=16, context=2)
    layout = Layout(mesh=mesh, zero=zero, n_microbatches=4, context_kind="ring",
                    overlap=("grad_reduce", "param_gather", "pipe_p2p"))  # fmt: skip
    for slow in (1.0, 1 / 8, 1 / 64):
        system = faster(sw.hardware("v5p:2x4x4"), "ici", slow)
        times = [
            rank.evaluate(model, faster(system, what, 2.0**k), job, layout, PEAK).time.step_s
            for k in range(5)
        ]
        assert all(b <= a * LOOSE for a, b in itertools.pairwise(times))


def test_where_the_head_is_the_longest_stage_no_more_is_waited_for() -> None:
    """HBM twice as fast: layers take less, and the head stands out by as much more."""
    model, job = sw.model("gemma-2b"), sw.Train(batch=64, seq=2048)
    layout = Layout(mesh=Mesh(fsdp=2, pipe=8), zero=3, n_microbatches=32, schedule="1f1b")
    slow, fast = (
        rank.evaluate(model, faster(sw.hardware("v5e:4x4"), "hbm", times), job, layout, PEAK).time
        for times in (1.0, 2.0)
    )
    assert fast.compute_s < slow.compute_s
    assert fast.step_s <= slow.step_s * LOOSE


def test_a_faster_machine_can_be_faster() -> None:
    """The property above would hold of a search that read no rate at all."""
    name, job = MODELS[0], JOBS[0]
    for machine, what in (("v5p:2x4x4", "peak"), ("v5e:4x4", "ici"), ("v5e:4x4", "hbm"),
                          ("h100:8", "node"), ("h100:16", "scale_out"),
                          ("v5e:4x4*2", "dcn"), ("v5e:2x2", "capacity")):  # fmt: skip
        slow = faster(sw.hardware(machine), what, 1 / 8 if what == "capacity" else 1 / 50)
        before, after = best(name, slow, job), best(name, sw.hardware(machine), job)
        assert after
        assert before is None or after.time.step_s < before.time.step_s * 0.999, what


@settings(max_examples=15)
@given(cases(ANY_REMAT, JOBS[1]), st.data())
def test_no_legal_strategy_beats_the_plan(
    case: tuple[str, str, sw.Train], data: st.DataObject
) -> None:
    """Any schedule, stage of ZeRO, remat, microbatch and way of the context."""
    name, machine, job = case
    model, system = sw.model(name), sw.hardware(machine)
    if not meshes(*case):
        assert best(*case[:1], system, job) is None
        return
    layout = data.draw(layouts(model, system, job, meshes(*case)))
    one = rank.evaluate(model, system, job, layout, calibration(system.chip))
    if one.fits:
        found = best(name, system, job)
        assert found is not None
        assert found.time.step_s <= one.time.step_s * LOOSE


@settings(max_examples=40)
@given(
    st.sampled_from(MODELS),
    st.sampled_from(["fsdp", "tensor", "context", "data", "expert"]),
    st.tuples(*[st.sampled_from([1, 2, 4])] * 5),
)
def test_more_shards_hold_no_more(name: str, role: str, sizes: tuple[int, ...]) -> None:
    model, job = sw.model(name), sw.Train(batch=64, seq=512)
    mesh = dict(zip(("data", "fsdp", "tensor", "context", "expert"), sizes, strict=True))

    def held(sizes: dict[str, int]) -> float:
        layout = Layout(mesh=Mesh(**sizes), zero=3)
        works = training_step(model, layout.data_shards, 512, table(layout), remat="none")
        return float(step_memory(model, job, works, layout, 1.0).weights)

    before, after = held(mesh), held({**mesh, role: 2 * mesh[role]})
    assert after <= before
    if role == "data":
        assert after == before
    if role == "fsdp":
        assert after < before


@pytest.mark.parametrize(
    ("one", "other"),
    [("v5p:4x4x8", "v5p:8x4x4"), ("v5p:4x4x8", "v5p:4x8x4"), ("v5e:4x8", "v5e:8x4"),
     ("v5p:2x2x4*2", "v5p:4x2x2*2")],
)  # fmt: skip
def test_the_order_of_physical_axes_changes_nothing(one: str, other: str) -> None:
    job = sw.Train(batch=256, seq=2048)
    first, second = (best(MODELS[0], sw.hardware(m), job) for m in (one, other))
    assert first
    assert second
    assert first.rank == pytest.approx(second.rank, rel=1e-9)
    assert first.mesh == second.mesh
    assert first.time.comm_s == pytest.approx(second.time.comm_s, rel=1e-9)


@settings(max_examples=30)
@given(cases(), st.data())
def test_a_word_about_an_axis_of_one_chip_changes_nothing(
    case: tuple[str, str, sw.Train], data: st.DataObject
) -> None:
    """ZeRO over no copies, a way of the context without one, experts that are on one chip."""
    name, machine, job = case
    model, system = sw.model(name), sw.hardware(machine)
    if not meshes(*case):
        return
    layout = data.draw(layouts(model, system, job, meshes(*case)))
    mesh, same = layout.mesh, []
    if mesh.context == 1:
        same += [dataclasses.replace(layout, context_kind=k) for k in ("gather", "ring", "ulysses")]
    if mesh.tensor == 1 and model.is_moe:
        same += [dataclasses.replace(layout, expert_tensor=n) for n in (None, 1)]
    if mesh.data * mesh.fsdp * mesh.context * mesh.expert == 1:
        same += [dataclasses.replace(layout, zero=z) for z in range(4)]
    cal = calibration(system.chip)
    times = [rank.evaluate(model, system, job, one, cal).time for one in (layout, *same)]
    for time in times[1:]:
        assert time.step_s == pytest.approx(times[0].step_s, rel=1e-12)
        assert time.upper_s == pytest.approx(times[0].upper_s, rel=1e-12)


@settings(max_examples=4)
@given(cases(), st.sampled_from(["fsdp", "tensor", "context", "pipe"]), st.sampled_from([1, 2, 4]))
def test_fixing_a_role_is_never_faster(
    case: tuple[str, str, sw.Train], role: str, size: int
) -> None:
    name, machine, job = case
    model, system = sw.model(name), sw.hardware(machine)
    cal = calibration(system.chip)
    try:
        given = ANY.change(**{role: size})
        fixed = rank.rank(model, system, job, cal, given, keep=1).candidates[0]
    except NoPlan:
        return
    assert getattr(fixed.mesh, role) == size
    # Few tokens of a sequence on a chip are tried only where they are asked for.
    if fixed.fits and job.seq >= 1024 * fixed.mesh.context:
        free = best(name, system, job)
        assert free is not None
        assert free.time.step_s <= fixed.time.step_s * LOOSE


@pytest.mark.parametrize(("name", "machine"), [(MODELS[0], MACHINES[0]), (MODELS[3], MACHINES[0])])
def test_remat_auto_is_the_best_of_all(name: str, machine: str) -> None:
    system, job = sw.hardware(machine), ANY_REMAT
    found = [
        best(name, system, dataclasses.replace(job, remat=remat))
        for remat in ("auto", "none", "norms", "dots", "mlp", "full")
    ]
    auto, *each = (c.time.step_s if c else float("inf") for c in found)
    assert auto == pytest.approx(min(each), rel=1e-9)
