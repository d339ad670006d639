"""How schedules cut the layers into stages."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from shardwise.strategy.layout import Layout, Layouts
from shardwise.strategy.mesh import Mesh
from shardwise.strategy.stages import Stages, stages


def cut(n_layers: int, pipe: int, schedule: str = "1f1b", virtual: int = 1) -> Stages:
    mesh = Mesh(pipe=pipe)
    return stages(n_layers, Layout(mesh=mesh, schedule=schedule, virtual=virtual))


def test_one_stage_has_all_layers() -> None:
    found = stages(32, Layout(mesh=Mesh(tensor=8)))
    assert (found.held, found.layers, found.share, found.spare) == (32, 32, 1.0, 0)


@pytest.mark.parametrize(
    ("n_layers", "pipe", "schedule", "virtual", "held", "runs", "spare"),
    [
        (80, 8, "1f1b", 1, 10, 10, 0),
        (126, 16, "interleaved", 8, 8, 8, 2),  # LLaMA-3-405B: 126 layers in 128 places
        (61, 16, "dualpipe", 1, 8, 4, 3),  # DeepSeek-V3: twice the layers, half run each way
        (48, 4, "zb-v", 1, 12, 12, 0),
        (7, 4, "gpipe", 1, 2, 2, 1),
    ],
)
def test_the_fullest_stage(
    n_layers: int, pipe: int, schedule: str, virtual: int, held: int, runs: int, spare: int
) -> None:
    found = cut(n_layers, pipe, schedule, virtual)
    assert (found.held, found.layers, found.spare) == (held, runs, spare)
    assert found.share == pytest.approx(runs / n_layers)


def test_arrays_are_cut_as_numbers_are() -> None:
    pipes = np.array([1, 2, 4, 8, 16, 32])
    mesh = Mesh(pipe=2)
    one = Layout(mesh=mesh, schedule="interleaved", virtual=3)
    split = Layouts(
        schedule="interleaved",
        sizes={**mesh.sizes, "pipe": pipes},
        micro_batch=1,
        n_microbatches=64,
        virtual=3,
    )
    together = stages(96, split)
    for i, pipe in enumerate(pipes):
        alone = stages(96, dataclasses.replace(one, mesh=Mesh(pipe=max(2, int(pipe)))))
        if pipe > 1:
            for field in ("held", "layers", "share", "spare"):
                assert getattr(together, field)[i] == getattr(alone, field)
