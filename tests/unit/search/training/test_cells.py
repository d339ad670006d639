"""Cells of the search: every legal mesh, placed, with every size of microbatch."""

from __future__ import annotations

import pytest

from shardwise.hardware import System, parse_system
from shardwise.models import ModelConfig, load
from shardwise.ops import collective
from shardwise.search.model_sizes import MIN_TOKENS_PER_CHIP
from shardwise.search.training.cells import Cells, cells, microbatches
from shardwise.search.training.legal import legal_meshes
from shardwise.strategy.mesh import Mesh, place
from shardwise.workload import Train
from tests.strategies import cuts, every_layout, every_mesh

CASES = [
    ("llama3-8b", "v5p:4x4x4", Train(batch=64, seq=4096)),
    ("llama3-8b", "v5e:4x4*3", Train(batch=48, seq=4096)),
    ("mixtral-8x7b", "h100:16", Train(batch=24, seq=2048)),
    ("qwen2-0.5b", "h100:1", Train(batch=1, seq=1024)),
]


def placed_cells(
    config: ModelConfig,
    system: System,
    job: Train,
    fixed: dict[str, int],
    max_sizes: dict[str, int],
) -> Cells:
    found = cells(config, system.n_chips, job, fixed, max_sizes)
    assert found is not None
    return found.placed(system)[0]


@pytest.mark.parametrize(("name", "machine", "job"), CASES)
def test_cells_are_every_mesh_with_every_microbatch(name: str, machine: str, job: Train) -> None:
    config, system = load(name), parse_system(machine)
    found = placed_cells(config, system, job, {}, {})
    rows = set(zip(found.meshes, found.micro_batch.tolist(), found.n_microbatches.tolist(),
                   strict=True))  # fmt: skip
    expected = {(m, *cut) for m in every_mesh(config, system, job) for cut in cuts(job, m)}
    assert rows == expected
    placed = {*zip(found.meshes, found.placements, found.micro_batch.tolist(), strict=True)}
    assert len(placed) == len(found)  # no cell is there twice
    for mesh, placement in zip(found.meshes, found.placements, strict=True):
        assert placement in place(system, mesh.sizes)


@pytest.mark.parametrize("machine", ["v5p:2x4x4", "v5e:4x8", "v5e:2x4*2"])
def test_of_few_placements_none_is_left_out(machine: str) -> None:
    """Of many on a torus only those are tried that no other beats on every axis."""
    config, system = load("qwen1.5-moe-a2.7b,n_layers=4"), parse_system(machine)
    job = Train(batch=64, seq=2048, remat="none")
    for mesh in {one.mesh for one in every_layout(config, system, job)}:
        assert place(system, mesh.sizes, best=True) == place(system, mesh.sizes)


def test_of_many_placements_some_are_left_out() -> None:
    system = parse_system("v5p:16x20x28")
    sizes = {"tensor": 4, "context": 4, "fsdp": 4, "data": 35, "pipe": 4}
    tried, ways = place(system, sizes, best=True), place(system, sizes)
    assert 0 < len(tried) < len(ways)
    assert set(tried) <= set(ways)


def test_the_columns_are_those_of_the_meshes() -> None:
    config, system, job = load("mixtral-8x7b"), parse_system("h100:16"), Train(batch=16, seq=2048)
    found = placed_cells(config, system, job, {}, {})
    some = found.take([3, 1, len(found) - 1])
    for every in (found, some):
        for role, column in every.sizes.items():
            assert column.tolist() == [mesh.sizes[role] for mesh in every.meshes]
    assert some.meshes.tolist() == [found.meshes[i] for i in (3, 1, len(found) - 1)]
    price = some.costs.price("all_gather", ("data", "expert"))
    for i, placement in enumerate(some.placements):
        expected = collective.price("all_gather", placement.span(("data", "expert")))
        assert (price.s_per_byte[i], price.latency_s[i]) == (
            expected.s_per_byte,
            expected.latency_s,
        )


def test_sequences_are_not_cut_into_crumbs_unless_it_is_asked_for() -> None:
    config, system = load("llama3-8b"), parse_system("v5p:4x4x4")
    job = Train(batch=64, seq=2 * MIN_TOKENS_PER_CHIP)
    free = placed_cells(config, system, job, {}, {})
    assert {m.context for m in free.meshes} == {1, 2}
    asked = placed_cells(config, system, job, {"context": 4}, {})
    assert {m.context for m in asked.meshes} == {4}


@pytest.mark.parametrize(
    ("fixed", "most"),
    [
        ({"tensor": 4, "pipe": 2}, {}),
        ({"micro_batch": 2}, {}),
        ({"n_microbatches": 4, "data": 8}, {}),
        ({}, {"tensor": 2, "fsdp": 4}),
    ],
)
def test_what_is_given_and_limited(fixed: dict[str, int], most: dict[str, int]) -> None:
    config, system, job = load("llama3-8b"), parse_system("v5p:4x4x4"), Train(batch=64, seq=4096)
    found = placed_cells(config, system, job, fixed, most)
    columns = {**found.sizes, "micro_batch": found.micro_batch,
               "n_microbatches": found.n_microbatches}  # fmt: skip
    for name, n in fixed.items():
        assert set(columns[name].tolist()) == {n}
    for name, n in most.items():
        assert max(columns[name].tolist()) == n


def test_no_cell() -> None:
    config, system = load("llama3-8b"), parse_system("v5p:4x4x4")
    assert cells(config, system.n_chips, Train(batch=7, seq=99), {"pipe": 1}, {}) is None
    assert cells(config, system.n_chips, Train(batch=64, seq=4096), {"micro_batch": 3}, {}) is None
    assert not list(legal_meshes(config, system.n_chips, Train(batch=7, seq=99), {"pipe": 1}))


def test_microbatches_divide_the_shard() -> None:
    job, mesh = Train(batch=96, seq=128), Mesh(data=2, fsdp=2, expert=2, tensor=8)
    assert microbatches(job, mesh) == [(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)]
