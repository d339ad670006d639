"""The ranking of strategies."""

from __future__ import annotations

import pytest

from shardwise.errors import NoStrategy
from shardwise.hardware import parse_system
from shardwise.models import load
from shardwise.search import train
from shardwise.search.legal import legal_meshes
from shardwise.strategy.mesh import place
from shardwise.workload import Train

JOB = Train(batch=32, seq=2048)


@pytest.mark.parametrize(
    ("name", "machine"), [("llama3-8b", "v5e:4x4"), ("mixtral-8x7b", "h100:32")]
)
def test_the_first_is_the_best_of_all(name: str, machine: str) -> None:
    """Every strategy evaluated one by one, against the one evaluation on arrays."""
    config, system = load(name), parse_system(machine)
    every = [
        train.evaluate(config, JOB, system, mesh, placement, remat)
        for remat in ("none", "full")
        for mesh in legal_meshes(config, JOB, system, {})
        for placement in place(system, mesh.sizes)
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
