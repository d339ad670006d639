"""What is not trained is said before devices are looked for and before data is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardwise as sw
from shardwise.errors import BadInput
from shardwise.runtime.processes.rendezvous import Rendezvous
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from tests.golden.terminal import run
from tests.host import host

MODEL = sw.ModelConfig.dense(n_layers=1, d_model=32, d_ff=64, n_heads=4, vocab=261)


def planned(folder: Path, **job: Any) -> sw.Plan:
    """A plan of a small model for this machine."""
    layout = Layout(mesh=Mesh(), micro_batch=8)
    return sw.evaluate(MODEL, host(folder, 1), sw.Train(batch=8, seq=16, **job), layout)


def test_no_steps_are_not_those_of_the_plan(tmp_path: Path) -> None:
    plan = planned(tmp_path, tokens=1e6)
    with pytest.raises(BadInput, match="steps 0 is below 1"):
        sw.train(plan, data="none", steps=0)
    plan.save(str(tmp_path / "plan.json"))
    said = run("train", str(tmp_path / "plan.json"), "--data", "none", "--steps", "0")
    assert (said.code, said.err.splitlines()[0]) == (2, '✗ --steps "0" is below 1.')
    assert "none has no tokens" in said.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nonsense", 2, 1), "--coordinator nonsense is not HOST:PORT"),
        (("127.0.0.1:99999", 2, 1), "is not HOST:PORT"),
        (("127.0.0.1:8476", 2, 2), "--process 2 is not between 0 and 1"),
    ],
)
def test_processes_that_cannot_meet(words: tuple[str, int, int], said: str) -> None:
    coordinator, processes, process = words
    with pytest.raises(BadInput, match=said):
        Rendezvous(coordinator=coordinator, processes=processes, process=process)


@pytest.mark.parametrize(("word", "dtype"), [("compute", "fp8"), ("moments", "int8")])
def test_numbers_without_scales_are_not_trained(word: str, dtype: str) -> None:
    layout = Layout(mesh=Mesh(data=8), micro_batch=1)
    held: dict[str, Any] = {word: dtype}
    job = sw.Train(batch=8, seq=16, **held)
    plan = sw.evaluate(MODEL, sw.hardware("h100:8"), job, layout)
    with pytest.raises(
        BadInput,
        match=f"{word} in {dtype}: the planner supports it, training does not yet. Use bf16.",
    ):
        sw.train(plan, data="none", steps=1)
