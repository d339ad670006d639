"""Any layout that a framework runs comes back from its file with the same mesh, batch and words."""

from __future__ import annotations

import functools

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.errors import BadInput, NoPlan
from shardwise.frameworks import registry
from shardwise.frameworks.launch import ServingLaunch, TrainingLaunch

MODELS = {"dense": "llama3.2-1b,n_layers=8", "experts": "qwen1.5-moe-a2.7b,n_layers=8"}
SIZES = (1, 2, 4)
TRAIN = registry.names("train")


def meshes(kind: str) -> st.SearchStrategy[sw.Mesh]:
    """Meshes on 16 chips or fewer."""
    sizes = {role: st.sampled_from(SIZES) for role in ("data", "fsdp", "tensor", "context", "pipe")}
    if kind == "experts":
        sizes["expert"] = st.sampled_from(SIZES)
    return (
        st.fixed_dictionaries(sizes).map(lambda s: sw.Mesh(**s)).filter(lambda m: m.n_chips <= 16)
    )


@functools.lru_cache(maxsize=512)
def plan_of(kind: str, mesh: sw.Mesh, zero: int) -> sw.Plan | None:
    job = sw.Train(batch=128, seq=2048, remat="full")
    words = {} if mesh.fsdp * mesh.context > 1 or mesh.data * mesh.expert == 1 else {"zero": zero}
    machine = sw.hardware(f"h100:{max(mesh.n_chips, 1)}")
    try:
        return sw.evaluate(sw.model(MODELS[kind]), machine, job, mesh, words)
    except (BadInput, NoPlan):
        return None


def exported(plan: sw.Plan | sw.ServingPlan, framework: str) -> str | None:
    """The file of a plan; None if the framework refuses it with the nearest plan that it runs."""
    try:
        return registry.export(plan, framework).text
    except BadInput as refusal:
        if "Nearest: plan again with --" not in str(refusal):
            raise
        return None


@pytest.mark.parametrize("kind", MODELS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_training_layouts_come_back(kind: str, data: st.DataObject) -> None:
    mesh = data.draw(meshes(kind))
    plan = plan_of(kind, mesh, data.draw(st.sampled_from((0, 1, 2))))
    assume(plan is not None)
    assert plan is not None
    for framework in TRAIN:
        text = exported(plan, framework)
        if text is None:
            continue
        content = registry.read(text, f"x{registry.find(framework).suffix}")
        assert content.framework.name == framework
        launch = content.launch
        assert isinstance(launch, TrainingLaunch)
        assert launch.mesh(mesh.n_chips) == mesh, framework
        assert launch.batch == plan.job.batch
        choices = launch.choices(mesh, plan.model.n_layers)
        for word in ("micro_batch", "n_microbatches", "expert_tensor", "virtual"):
            if word in choices:
                assert choices[word] == getattr(plan.layout, word), (framework, word)


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(sorted(MODELS)),
    tensor=st.sampled_from((1, 2, 4, 8)),
    expert=st.sampled_from((1, 2, 4)),
    pipe=st.sampled_from((1, 2)),
    whole=st.booleans(),
)
def test_engines_come_back(kind: str, tensor: int, expert: int, pipe: int, whole: bool) -> None:
    assume(kind == "experts" or (expert == 1 and not whole))
    fixed: dict[str, int | str] = {role: 1 for role in sw.Mesh().sizes if role != "data"}
    fixed |= {"tensor": tensor, "expert": expert, "pipe": pipe}
    if whole:
        fixed["expert_tensor"] = 1
    job = sw.Serve(context=2048, batch=64)
    machine = sw.hardware(f"h100:{tensor * expert * pipe}")
    try:
        plan = sw.plan(sw.model(MODELS[kind]), machine, job, fixed, disaggregate=False)
    except (BadInput, NoPlan):
        assume(False)
        return
    for framework in registry.names("serve"):
        text = exported(plan, framework)
        if text is None:
            continue
        launch = registry.read(text, "x.yaml").launch
        assert isinstance(launch, ServingLaunch)
        assert launch.mesh(machine.n_chips).sizes == plan.strategy.servers.mesh, framework
        assert launch.batch == plan.estimate.decode.batch
