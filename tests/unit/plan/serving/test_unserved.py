"""A search proposes what `serve` runs; a plan that the user fixed otherwise says so."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

import shardwise as sw
from shardwise.models import load
from shardwise.plan.schema.serving_reasons import NotServed
from shardwise.plan.serving.rebuild import rebuild
from shardwise.plan.serving.unserved import unserved, unserved_layout
from shardwise.report.serving.reasons import reason_text
from shardwise.search.serving.runtime_limits import served
from shardwise.strategy.mesh import Mesh
from shardwise.strategy.serving_layout import ServeLayout

MODELS = ("deepseek-v3", "gpt-oss-120b", "gemma3-27b", "llama3-70b", "mixtral-8x7b")
MESHES = [
    Mesh(pipe=pipe, tensor=tensor, fsdp=fsdp, expert=expert)
    for pipe, tensor, fsdp, expert in itertools.product((1, 3), (1, 4, 16), (1, 3, 4), (1, 8))
]


@pytest.mark.parametrize("name", MODELS)
def test_the_search_and_the_messages_know_the_same_limits(name: str) -> None:
    config = load(name)
    verdicts = set()
    for mesh, expert_tensor in itertools.product(MESHES, (None, 1)):
        weights = "2d" if mesh.fsdp > 1 else "stationary"
        layout = ServeLayout(mesh=mesh, weights=weights, expert_tensor=expert_tensor)
        server = SimpleNamespace(config=config, layout=layout)
        is_served = bool(served(config, layout, layout.sizes))
        assert is_served == (not unserved_layout(server)), (mesh, expert_tensor)  # type: ignore[arg-type]
        verdicts.add(is_served)
    assert verdicts == {True, False}


@pytest.mark.parametrize("machine", ["h100:32", "v5e:8x16"])
def test_what_is_proposed_is_served(machine: str) -> None:
    job = sw.Serve(prompt=2048, output=256, weights="int8", kv="int8", compute="int8")
    plan = sw.plan(sw.model("deepseek-v3"), sw.hardware(machine), job)
    candidate = rebuild(plan)[1]
    assert unserved(candidate.server) == []
    assert not [reason for reason in plan.why if isinstance(reason, NotServed)]


def test_a_plan_that_is_not_served_says_so() -> None:
    job = sw.Serve(prompt=2048, output=256, weights="fp8", kv="fp8")
    plan = sw.plan(sw.model("deepseek-v3"), sw.hardware("h100:32"), job, {"pipe": 2, "tensor": 16})
    (reason,) = (reason for reason in plan.why if isinstance(reason, NotServed))
    expected = "shardwise serve does not run pipe 2 of a model with 2 runs of different layers yet."
    assert reason_text(reason) == expected
