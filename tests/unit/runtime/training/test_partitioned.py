"""A step that XLA's partitioner cuts is the step of one device; what it cannot cut is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardwise.models import ModelConfig
from shardwise.runtime.training.partitioned import unsupported_partitioned
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from shardwise.workload import Train
from tests.unit.runtime.distance import beyond
from tests.unit.runtime.expert_cases import MIXTRAL
from tests.unit.runtime.parity_partitioned import LAYOUTS
from tests.unit.runtime.scripts import answer, rows, selected

QUICK = ("fsdp, context, tensor, full remat",)


@pytest.fixture(scope="module")
def runs(root: Path, request: pytest.FixtureRequest) -> Any:
    return answer(root, "parity_partitioned", *selected(request))


def test_one_device_has_something_to_learn(runs: Any) -> None:
    assert runs["one"]["losses"][0] > 5.0


@pytest.mark.parametrize("name", rows(LAYOUTS, QUICK))
def test_numbers_are_those_of_one_device(runs: Any, name: str) -> None:
    assert beyond(runs[name]) == {}


JOB = Train(batch=8, seq=64)
DENSE = ModelConfig.dense(n_layers=4, d_model=64, d_ff=128, n_heads=8, vocab=256)


@pytest.mark.parametrize(
    ("model", "layout", "words"),
    [
        (
            DENSE,
            Layout(mesh=Mesh(pipe=2), micro_batch=1, n_microbatches=4, schedule="1f1b"),
            "schedule 1f1b is a program for each stage",
        ),
        (
            DENSE,
            Layout(mesh=Mesh(context=2), micro_batch=4, context_kind="ring"),
            "context_kind ring is implemented by explicit collectives only",
        ),
        (MIXTRAL, Layout(mesh=Mesh(data=2), micro_batch=4), "small has experts"),
        (
            DENSE,
            Layout(mesh=Mesh(data=2), micro_batch=4, loss_chunks=2),
            "loss_chunks 2 is implemented by explicit collectives only",
        ),
    ],
)
def test_what_is_not_partitioned_is_refused(model: ModelConfig, layout: Layout, words: str) -> None:
    (told,) = unsupported_partitioned(model, layout, JOB)
    assert told.startswith(words)


def test_what_is_cut_is_not_refused() -> None:
    layout = Layout(mesh=Mesh(data=2, context=2), micro_batch=4)
    assert unsupported_partitioned(DENSE, layout, JOB) == []
