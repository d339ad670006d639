"""The ranking of strategies: against every strategy one by one, and what is asked of it."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from shardwise.errors import NoStrategy
from shardwise.estimate.calibration import PEAK, calibration
from shardwise.estimate.training.memory.framework import planned_framework
from shardwise.estimate.training.memory.peak import step_memory
from shardwise.hardware import parse_system
from shardwise.models import load
from shardwise.ops.program import training_step
from shardwise.search.given import Fixed, fixed_of
from shardwise.search.training import rank as train
from shardwise.search.training.best import MAX_SLOWDOWN
from shardwise.search.training.rank import Candidate, Ranking
from shardwise.search.training.runtime_limits import limits
from shardwise.strategy.layout import Layout, table
from shardwise.strategy.mesh import INSIDE_OUT, Mesh, place
from shardwise.vocabulary import REMAT_POLICIES
from shardwise.workload import Train
from tests.strategies import every_layout, every_mesh

K = TypeVar("K")
near = functools.partial(pytest.approx, rel=1e-9)

LLAMA = "llama3.2-1b,n_layers=4"
MOE, MLA = "mixtral-8x7b,n_layers=2", "deepseek-v2-lite,n_layers=2"
SHORT = (LLAMA, "h100:4", Train(batch=2, seq=2048, reduce="int8"))
# On memory that is too small for most, strategies that hold less must be found.
CASES = [
    (LLAMA, "v5e:2x2,hbm=6GiB", Train(batch=2, seq=2048)),
    SHORT,
    (MOE, "h100:4,hbm=24GB", Train(batch=2, seq=2048)),
    (MLA, "v5e:2x2,hbm=14GiB", Train(batch=2, seq=1024)),
]


def rank(name: str, machine: str, job: Train, **given: Any) -> Ranking:
    """The ranking of any layout, unless `any_layout` says otherwise."""
    system = parse_system(machine)
    any_layout = given.pop("any_layout", True)
    fixed = fixed_of(given.pop("fixed", {}), given.pop("most", {}), any_layout=any_layout)
    return train.rank(load(name), system, job, calibration(system.chip), fixed, **given)


def one_by_one(name: str, machine: str, job: Train) -> list[Candidate]:
    """Every legal layout on every placement."""
    config, system = load(name), parse_system(machine)
    cal = calibration(system.chip)
    return [
        train.evaluate(config, system, job, layout, cal, placement)
        for layout in every_layout(config, system, job)
        for placement in place(system, layout.sizes)
    ]


def fastest(candidates: Iterable[Candidate], key: Callable[[Candidate], K]) -> dict[K, float]:
    """Seconds of the best that fits, for each kind."""
    found: dict[K, float] = {}
    for one in candidates:
        if one.fits:
            kind = key(one)
            found[kind] = min(one.time.step_s, found.get(kind, math.inf))
    return found


@pytest.mark.parametrize(
    ("name", "machine", "job"),
    [pytest.param(*case, marks=() if case is SHORT else pytest.mark.oracle) for case in CASES],
)
def test_the_best_are_the_best_of_all(name: str, machine: str, job: Train) -> None:
    """Every strategy evaluated one by one, against the evaluation on arrays."""
    every = one_by_one(name, machine, job)
    assert {c.fits for c in every} == ({True, False} if "hbm" in machine else {True})
    meshes, widths = (fastest(every, key) for key in (mesh_of, tensor_of))
    shown = {w: t for w, t in widths.items() if t < MAX_SLOWDOWN * min(widths.values())}
    for exhaustive in (True, False):
        found = rank(name, machine, job, exhaustive=exhaustive, keep=4).candidates
        times = [c.time.step_s for c in found if c.fits]
        assert times[:4] == near(sorted(meshes.values())[:4])
        ours = fastest(found, tensor_of)
        assert {w: ours.get(w) for w in shown} == near(shown)
    front = rank(name, machine, job, front=True).front
    assert front[0].time.step_s == near(min(meshes.values()))
    assert all(c.fits for c in front)
    for one, other in itertools.pairwise(front):
        assert other.time.step_s > one.time.step_s * (1 - 1e-9)
        assert other.memory.total < one.memory.total
    assert [c.layout for c in every if c.fits and not any(beats(f, c) for f in front)] == []
    config, chip = load(name), parse_system(machine).chip
    run = [c for c in every if not limits(config, job, c.layout, chip)]
    assert (len(run) < len(every)) == (name == MLA or job.reduce == "int8")
    times = sorted(fastest(run, mesh_of).values())[:4]
    found = rank(name, machine, job, any_layout=False, keep=4).candidates
    assert [c.time.step_s for c in found if c.fits][:4] == near(times)
    assert [limits(config, job, c.layout, chip) for c in found] == [[]] * len(found)


def mesh_of(one: Candidate) -> Mesh:
    return one.mesh


def tensor_of(one: Candidate) -> int:
    return one.mesh.tensor


def beats(one: Candidate, other: Candidate) -> bool:
    """It is neither slower nor larger."""
    slack = 1 + 1e-9
    larger = one.memory.total > other.memory.total * slack
    return not larger and one.time.step_s <= other.time.step_s * slack


@pytest.mark.parametrize("exhaustive", [True, False], ids=["all", "best first"])
def test_where_nothing_fits_the_smallest_is_first(exhaustive: bool) -> None:
    config, system = load(LLAMA), parse_system("v5e:2x2,hbm=1GiB")
    job = Train(batch=2, seq=2048)
    least = math.inf
    for layout in every_layout(config, system, job):
        batch = layout.micro_batch * layout.data_shards
        works = training_step(config, batch, job.seq, table(layout), remat="none")
        held = step_memory(config, job, works, layout, 2**30, planned_framework(system.chip.kind))
        least = min(least, float(held.total))
    found = rank(LLAMA, system.name, job, exhaustive=exhaustive)
    assert found.n_fitting == 0
    assert found.candidates[0].memory.total == near(least)


def test_the_ranking_is_in_order_and_holds_every_tensor_size() -> None:
    config, system = load("llama3-70b"), parse_system("v5p:4x8x8")
    job = Train(batch=256, seq=4096)
    found = rank("llama3-70b", "v5p:4x8x8", job, keep=3).candidates
    assert [c.rank for c in found] == sorted(c.rank for c in found)
    assert len({c.mesh for c in found}) == len(found)
    whole = rank("llama3-70b", "v5p:4x8x8", job, keep=3, exhaustive=True).candidates
    assert [c.time.step_s for c in found[:3]] == near([c.time.step_s for c in whole[:3]])
    widths, ours = (fastest(some, tensor_of) for some in (whole, found))
    assert set(widths) == {m.tensor for m in every_mesh(config, system, job)}
    shown = {w: t for w, t in widths.items() if t < MAX_SLOWDOWN * min(widths.values())}
    assert {w: ours.get(w) for w in shown} == near(shown)


@pytest.mark.parametrize(("name", "machine", "job"), CASES)
def test_a_limit_leaves_out_no_faster_strategy(name: str, machine: str, job: Train) -> None:
    config, system = load(name), parse_system(machine)
    cal = calibration(system.chip)
    best = rank(name, machine, job, keep=1).candidates[0]
    for share in (1.001, 0.999):
        limited = Fixed(any_layout=True, limit_s=share * float(best.time.step_s))
        try:
            found = train.rank(config, system, job, cal, limited, keep=1).candidates[0]
        except NoStrategy:
            assert share < 1
            continue
        if share > 1:
            assert found.time.step_s == best.time.step_s
        assert not found.fits or found.time.step_s >= best.time.step_s


def test_what_fits_comes_first() -> None:
    found = rank("llama3-70b", "v5e:16x16", Train(batch=256, seq=4096)).candidates
    fits = [c.fits for c in found]
    assert fits == sorted(fits, reverse=True)
    assert fits[0]


def test_the_best_first_search_looks_at_less() -> None:
    """It would find the same if it looked at everything."""
    case = ("llama3-8b", "h100:64", Train(batch=512, seq=2048))
    quick, whole = rank(*case, keep=1), rank(*case, keep=1, exhaustive=True)
    assert quick.n_strategies < whole.n_strategies
    assert quick.candidates[0].time.step_s == near(whole.candidates[0].time.step_s)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("llama3-70b", {"data": 2, "fsdp": 8, "tensor": 4}),
        ("llama3-70b", {"data": 8, "tensor": 4, "pipe": 2}),
        ("llama3-70b", {"tensor": 8, "context": 2, "pipe": 4}),
        ("llama3-70b", {"data": 64}),  # fits under no form
        ("qwen3-30b-a3b", {"data": 4, "expert": 8, "pipe": 2}),
        ("qwen3-30b-a3b", {"fsdp": 4, "expert": 8, "tensor": 2}),
    ],
    ids=str,
)
@pytest.mark.parametrize("batch", [64, 512])
def test_the_best_of_one_mesh_is_the_best_of_all_its_forms(
    name: str, sizes: dict[str, int], batch: int
) -> None:
    """What ends early: cells by their bounds, more remat and ZeRO-2 where less of them fits."""
    job = Train(batch=batch, seq=4096)
    fixed = {**dict.fromkeys(INSIDE_OUT, 1), **sizes}
    quick = rank(name, "h100:64", job, fixed=fixed, keep=1)
    whole = rank(name, "h100:64", job, fixed=fixed, keep=1, exhaustive=True)
    assert quick.candidates[0].layout == whole.candidates[0].layout
    assert quick.n_strategies < whole.n_strategies or not whole.n_fitting


MODELS = (LLAMA, MOE, MLA, "gemma-2b,n_layers=6", "qwen1.5-moe-a2.7b,n_layers=4")
MACHINES = ("v5e:2x4", "v5p:2x2x4", "v5e:4x4*2", "h100:16", "gb200:12", "h100:8,hbm=30GB")


@pytest.mark.parametrize("seed", range(16))
def test_a_limit_leaves_out_only_what_takes_longer(seed: int) -> None:
    """Cells whose compute alone takes the limit are not even placed: the best one never is."""
    draw = random.Random(seed)
    name, machine = draw.choice(MODELS), draw.choice(MACHINES)
    system = parse_system(machine)
    sequences = draw.choice((1, 2, 3)) * system.n_chips
    job = Train(batch=sequences, seq=draw.choice((1024, 2048)), remat=draw.choice(("auto", "full")))
    problem = (load(name), system, job, calibration(system.chip))
    best = train.rank(*problem, keep=1).candidates[0]
    if not best.fits:
        pytest.skip("nothing fits, so that no time limits the search")
    for slack in (1e-6, 0.1, 0.5):
        limited = Fixed(limit_s=(1 + slack) * float(best.time.step_s))
        fast = train.rank(*problem, limited, keep=1).candidates[0]
        assert (fast.layout, fast.placement, fast.rank) == (best.layout, best.placement, best.rank)
    too_short = Fixed(limit_s=0.95 * float(best.time.step_s))
    try:
        slower = train.rank(*problem, too_short, keep=1).candidates[0]
    except NoStrategy:
        return
    assert slower.rank >= best.rank


def test_strategies_are_counted() -> None:
    """All that are legal, but what is tried only when it is asked for."""
    case = ("llama3.2-1b,n_layers=4", "v5e:2x2", Train(batch=2, seq=2048, remat="none"))
    found = rank(*case, exhaustive=True)
    legal = every_layout(load(case[0]), parse_system(case[1]), case[2])
    tried = [
        one
        for one in legal
        if one.schedule != "gpipe" and (one.zero > 0) == (one.mesh.n_chips != only_split(one))
    ]
    assert found.n_strategies == found.n_fitting == len(tried)


def only_split(layout: Layout) -> int:
    """Chips that hold different weights: without copies ZeRO has nothing to shard."""
    mesh = layout.mesh
    return mesh.tensor * mesh.pipe * mesh.expert


def test_the_fewest_microbatches_that_fit_are_taken() -> None:
    config, system = load("llama3-8b"), parse_system("v5e:16x16")
    job = Train(batch=2048, seq=1024, remat="none")
    fixed = {"fsdp": 256, "pipe": 1}
    best = rank("llama3-8b", "v5e:16x16", job, fixed=fixed).candidates[0]
    assert best.fits
    assert best.layout.n_microbatches > 1
    for n in range(1, best.layout.n_microbatches):
        if 8 % n == 0:
            given = fixed_of({**fixed, "n_microbatches": n}, any_layout=True)
            less = train.rank(config, system, job, calibration(system.chip), given).candidates[0]
            assert less.layout.n_microbatches == n
            assert not less.fits


@pytest.mark.parametrize("remat", REMAT_POLICIES)
def test_a_remat_policy_that_is_asked_for(remat: str) -> None:
    job = Train(batch=64, seq=2048, remat=remat)
    found = rank("llama3-8b", "v5p:4x4x4", job).candidates
    assert {c.layout.policy for c in found} == {remat}


@pytest.mark.parametrize(
    "fixed",
    [
        {"tensor": 2, "pipe": 2},
        {"schedule": "gpipe", "micro_batch": 2},
        {"schedule": "interleaved", "virtual": 4},
        {"schedule": "none", "zero": 3},
        {"zero": 0, "data": 4},
        {"context": 4, "context_kind": "ulysses"},
        {"remat": "mlp", "n_microbatches": 4},
        {"expert": 2, "tensor": 2, "expert_tensor": 1},
        {"loss_chunks": 8},
    ],
    ids=str,
)
def test_what_is_given_is_kept(fixed: dict[str, int | str]) -> None:
    found = rank("mixtral-8x7b,n_layers=8", "h100:16", Train(batch=32, seq=4096), fixed=fixed)
    assert found.candidates
    for one in found.candidates:
        layout = one.layout
        known = {**layout.sizes, "remat": layout.policy}
        assert {k: known.get(k, getattr(layout, k, None)) for k in fixed} == fixed


def test_chunks_of_the_loss_are_tried_where_nothing_fits_without() -> None:
    """65,536 tokens of 128,256 logits on a chip; as few chunks as it takes."""
    long, fixed = Train(batch=8, seq=65536), {"fsdp": 8}
    whole = rank("llama3-8b", "h100:8", long, fixed={**fixed, "loss_chunks": 1}).candidates[0]
    assert not whole.fits
    best = rank("llama3-8b", "h100:8", long, fixed=fixed).candidates[0]
    assert best.fits
    assert best.layout.loss_chunks == 4
    halves = Train(batch=4, seq=16384, gradients="bf16", master=None)
    wide = rank("gemma2-2b", "v5e:2x2", halves, fixed={"fsdp": 4}).candidates
    assert wide[0].layout.loss_chunks == 16
    short = rank("llama3-8b", "h100:8", replace(long, seq=8192), fixed=fixed).candidates
    assert {c.layout.loss_chunks for c in short} == {1}
    hopeless = rank("llama3-70b", "h100:8", long, fixed=fixed).candidates[0]
    assert not hopeless.fits
    assert hopeless.layout.loss_chunks == 1


def test_largest_sizes_are_kept() -> None:
    most = {"tensor": 2, "pipe": 1}
    found = rank("llama3-8b", "h100:16", Train(batch=32, seq=4096), most=most, keep=20).candidates
    assert {c.mesh.tensor for c in found} == {1, 2}
    assert {c.mesh.pipe for c in found} == {1}


def test_no_mesh() -> None:
    job = Train(batch=7, seq=99)
    with pytest.raises(NoStrategy, match="no split of 4,096 chips is legal"):
        rank("llama3-8b", "v5p:16x16x16", job)


def test_no_schedule_fits_the_numbers() -> None:
    fixed = {"pipe": 4, "schedule": "interleaved", "n_microbatches": 2}
    with pytest.raises(NoStrategy, match="no schedule, microbatch and mesh go together"):
        rank("llama3-8b", "h100:16", Train(batch=32, seq=4096), fixed=fixed)


def test_rates_of_the_chip_and_peak_rates() -> None:
    """The search ranks by the rates that it is given."""
    config, system, job = load("llama3-8b"), parse_system("h100:16"), Train(batch=32, seq=4096)
    peak = train.rank(config, system, job, PEAK).candidates[0]
    real = train.rank(config, system, job, calibration(system.chip)).candidates[0]
    assert peak.time.step_s < real.time.step_s
    assert peak.roofline.lower_s <= peak.time.step_s
