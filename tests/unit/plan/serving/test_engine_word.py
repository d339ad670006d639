"""The serving engine as an input of a plan: it changes the answer, and is saved with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.errors import BadInput, UnknownName
from shardwise.estimate.serving.overhead import ENGINES
from shardwise.plan.serving.rebuild import rebuild
from tests.golden.terminal import run


def planned(engine: str) -> sw.ServingPlan:
    job = sw.Serve(prompt=1024, output=128, batch=16, weights="fp8", engine=engine)
    plan = sw.plan(sw.model("llama3-8b"), sw.hardware("h100:1"), job)
    assert isinstance(plan, sw.ServingPlan)
    return plan


def test_an_engine_changes_the_first_token() -> None:
    slow = planned("sglang")
    fast = planned("vllm")
    assert ENGINES["sglang"].request_s > ENGINES["vllm"].request_s
    assert slow.estimate.ttft_s > fast.estimate.ttft_s


def test_a_saved_plan_keeps_its_engine(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = planned("trtllm")
    plan.save(path)
    read = sw.load(path)
    assert isinstance(read, sw.ServingPlan)
    assert read.workload.engine == "trtllm"
    request, chosen = rebuild(read)
    assert request.job.engine == "trtllm"
    assert chosen.server.rates.overhead is ENGINES["trtllm"]
    assert chosen.ttft_s == pytest.approx(plan.estimate.ttft_s)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_plan_of_every_engine_on_several_chips_is_read_back(engine: str, tmp_path: Path) -> None:
    """The parts of a pass sum to its time, also where collectives overlap."""
    path = tmp_path / "plan.json"
    job = sw.Serve(prompt=1024, output=128, engine=engine)
    plan = sw.plan(sw.model("llama3-8b"), sw.hardware("h100:8"), job, fixed={"tensor": 8})
    plan.save(path)
    assert sw.load(path) == plan


def test_a_plan_without_an_engine_is_of_an_unknown_one(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    planned("unknown").save(path)
    document = json.loads(path.read_text())
    del document["workload"]["engine"]
    path.write_text(json.dumps(document))
    read = sw.load(path)
    assert isinstance(read, sw.ServingPlan)
    assert read.workload.engine == "unknown"


def test_an_engine_that_is_not_in_the_table() -> None:
    with pytest.raises(UnknownName, match="vlm"):
        planned("vlm")
    said = run("plan", "llama3-8b", "h100:1", "--serve", "--engine", "vlm")
    assert said.code == 2
    assert 'unknown engine "vlm"' in said.err
    assert "vllm" in said.err


def test_the_screen_names_the_engine() -> None:
    said = run("plan", "llama3-8b", "h100:1", "--serve", "--engine", "sglang")
    assert said.code == 0, said.err
    assert "under sglang" in " ".join(said.out.split())


@pytest.mark.parametrize(
    ("engine", "chip", "runs"),
    [("trtllm", "v5e:2x4", False), ("trtllm", "mi300x:8", False), ("trtllm", "h100:8", True),
     ("sglang", "v6e:2x4", False), ("sglang", "mi300x:8", True), ("llama.cpp", "v5p:2x2x1", False),
     ("vllm", "v6e:2x4", True), ("jax", "v5e:2x4", True)],
)  # fmt: skip
def test_an_engine_is_planned_only_on_chips_that_it_runs_on(
    engine: str, chip: str, runs: bool
) -> None:
    model, job = sw.model("llama3-8b"), sw.Serve(context=4096, engine=engine)
    if runs:
        assert sw.plan(model, sw.hardware(chip), job).workload.engine == engine
        return
    with pytest.raises(BadInput, match=rf"engine {engine} runs on GPUs.*On it: .*\bvllm\b"):
        sw.plan(model, sw.hardware(chip), job)
