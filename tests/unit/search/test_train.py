"""The ranking of strategies."""

from __future__ import annotations

import pytest

from shardwise.errors import NoStrategy
from shardwise.hardware import parse_system
from shardwise.models import load
from shardwise.search import train
from shardwise.search.legal import legal_meshes
from shardwise.strategy.mesh import Mesh, place
from shardwise.workload import Train

JOB = Train(batch=32, seq=2048)


@pytest.mark.parametrize(
    ("name", "machine"), [("llama3-8b", "v5e:2x4"), ("mixtral-8x7b", "h100:16")]
)
def test_the_first_is_the_best_of_all(name: str, machine: str) -> None:
    """Every strategy evaluated one by one, against the one evaluation on arrays."""
    config, system = load(name), parse_system(machine)
    every = [
        train.evaluate(config, JOB, system, mesh, placement, remat, n)
        for remat in ("none", "full")
        for mesh in legal_meshes(config, JOB, system, {})
        for placement in place(system, mesh.sizes)
        for n in train.microbatch_counts(JOB, mesh)
    ]
    best = min(every, key=lambda c: c.rank)
    first = train.rank(config, JOB, system)[0]
    assert first.rank == pytest.approx(best.rank, rel=1e-12)
    assert first.mesh == best.mesh


def test_the_ranking_is_in_order_and_holds_every_tensor_size() -> None:
    config, system = load("llama3-70b"), parse_system("v5p:4x8x8")
    found = train.rank(config, Train(batch=256, seq=4096), system, keep=3)
    assert [c.rank for c in found] == sorted(c.rank for c in found)
    assert len({c.mesh for c in found}) == len(found)
    meshes = legal_meshes(config, Train(batch=256, seq=4096), system, {})
    assert {c.mesh.tensor for c in found} == {m.tensor for m in meshes}


def test_what_fits_comes_first() -> None:
    config, system = load("llama3-70b"), parse_system("v5e:16x16")
    found = train.rank(config, Train(batch=256, seq=4096), system)
    fits = [c.fits for c in found]
    assert fits == sorted(fits, reverse=True)
    assert fits[0]


def test_microbatches_hold_less_and_take_no_less_time() -> None:
    config, system = load("llama3-8b"), parse_system("h100:16")
    mesh = Mesh(fsdp=4, data=2, tensor=2)
    placement = place(system, mesh.sizes)[0]
    assert train.microbatch_counts(JOB, mesh) == [1, 2, 4]
    found = [train.evaluate(config, JOB, system, mesh, placement, "none", n) for n in (1, 2, 4)]
    costs = [c.cost for c in found]
    kept = [c.memory.activations for c in costs]
    assert kept == [kept[0], kept[0] / 2, kept[0] / 4]
    assert costs[0].compute_s == pytest.approx(costs[2].compute_s, rel=1e-12)
    assert [c.comm_s["fsdp"] for c in costs] == [costs[0].comm_s["fsdp"] * n for n in (1, 2, 4)]
    assert len({c.comm_s["data"] for c in costs}) == 1
    assert costs[0].expected <= costs[1].expected <= costs[2].expected


def test_the_fewest_microbatches_that_fit_are_taken() -> None:
    config, system = load("llama3-8b"), parse_system("v5e:16x16")
    job = Train(batch=2048, seq=2048, remat="none")
    best = train.rank(config, job, system, {"fsdp": 256})[0]
    smaller = [n for n in train.microbatch_counts(job, best.mesh) if n < best.n_microbatches]
    assert best.fits
    assert smaller
    for n in smaller:
        less = train.evaluate(config, job, system, best.mesh, best.placement, "none", n)
        assert not less.fits


def test_a_remat_policy_that_is_asked_for() -> None:
    assert train.remat_policies(JOB) == ("none", "full")
    for remat in ("none", "full"):
        job = Train(batch=64, seq=2048, remat=remat)
        assert train.remat_policies(job) == (remat,)
        found = train.rank(load("llama3-8b"), job, parse_system("v5p:4x4x4"))
        assert {c.remat for c in found} == {remat}


def test_no_mesh() -> None:
    with pytest.raises(NoStrategy, match="no split of 64 chips is legal"):
        train.rank(load("llama3-8b"), Train(batch=7, seq=99), parse_system("v5p:4x4x4"))
