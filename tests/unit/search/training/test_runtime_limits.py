"""What the trainer does not run: of models, of jobs, and of layouts one by one and as arrays."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

import shardwise as sw
from shardwise.models.numerics import ACTIVATIONS, ROPE_SCALINGS, Rope, RopeScaling
from shardwise.plan.training.limit_text import limit_text
from shardwise.runtime.blocks.elementwise import ACTIVATIONS as RUNTIME_ACTIVATIONS
from shardwise.runtime.blocks.positions import SCALINGS
from shardwise.search.training.runtime_limits import Kind, RuntimeLimit, is_run, limits
from shardwise.strategy.layout import Layout, Layouts
from shardwise.strategy.mesh import Mesh
from shardwise.vocabulary import REMAT_POLICIES
from tests.hybrid import hybrid

JOB = sw.Train(batch=64, seq=4096)
LLAMA = "llama3-8b"
PIPED = {"schedule": "1f1b", "n_microbatches": 8}
RING = {"context_kind": "ring"}


def kinds(
    model: str | sw.ModelConfig, layout: Layout, job: sw.Train = JOB, machine: str = "v5p:4x4x4"
) -> list[str]:
    config = sw.model(model) if isinstance(model, str) else model
    return [limit.kind for limit in limits(config, job, layout, sw.hardware(machine).chip)]


def layout(mesh: dict[str, int] | None = None, **form: Any) -> Layout:
    sizes = mesh or {}
    return Layout(mesh=Mesh(**sizes), **{"micro_batch": 4, **form})


def test_a_plain_layout_is_within_all_limits() -> None:
    for form in (layout({"fsdp": 8}, zero=3), layout({"tensor": 8, "pipe": 2}, **PIPED)):
        assert kinds(LLAMA, form) == []


@pytest.mark.parametrize(
    ("model", "given", "kind"),
    [
        ("deepseek-v3", layout({"pipe": 4}, **PIPED), "stages"),
        ("gemma3-27b", layout({"pipe": 2}, **PIPED), "stages"),
        (LLAMA, layout({"pipe": 4}, schedule="dualpipe", n_microbatches=8), "schedule"),
        ("mixtral-8x7b", layout({"tensor": 4}, expert_tensor=2), "expert_tensor"),
        ("gemma3-27b", layout({"context": 2}, **RING), "ring_window"),
        (LLAMA, layout({"context": 4096}, **RING), "ring_chunks"),
        ("gpt-oss-20b", layout({"context": 2}, context_kind="ulysses"), "scores"),
        ("gemma2-9b", layout({"context": 2}, **RING), "scores"),
        (LLAMA, layout(offload=("weights",)), "offload"),
        (LLAMA, layout(offload=("optimizer",), offload_layers=2), "offload_layers"),
        (LLAMA, layout({"pipe": 2}, offload=("activations",), **PIPED), "offload_pipeline"),
        (LLAMA, layout(recomputed=REMAT_POLICIES["dots"], remat_layers=3), "remat_layers"),
        (LLAMA, layout(loss_chunks=3), "loss_chunks"),
    ],
)
def test_layouts_that_are_not_run(model: str, given: Layout, kind: str) -> None:
    assert kind in kinds(model, given)
    for limit in limits(sw.model(model), JOB, given, sw.hardware("v5p:4x4x4").chip):
        assert limit_text(limit).endswith(".")


def test_jobs_that_are_not_run() -> None:
    one = layout({"data": 8}, zero=2, n_microbatches=2)
    fp8 = replace(JOB, compute="fp8", weights="fp8")
    assert kinds(LLAMA, one, fp8) == ["dtype", "dtype"]
    assert kinds(LLAMA, one, replace(JOB, compute="tf32")) == ["dtype"]
    assert kinds(LLAMA, one, replace(JOB, reduce="fp8")) == ["reduce"]
    assert kinds(LLAMA, one, replace(JOB, reduce="int8")) == ["int8_rounds"]
    assert kinds(LLAMA, replace(one, n_microbatches=1), replace(JOB, reduce="int8")) == []
    assert kinds("gpt2", layout(), JOB) == ["positions"]


def test_means_over_padded_arrays_are_not_run() -> None:
    job = replace(JOB, optimizer="adafactor")
    assert kinds("gpt2-xl", layout({"tensor": 5}), replace(job, seq=512)) == ["adafactor"]
    assert kinds("llama3.1-405b", layout({"pipe": 4}, **PIPED), job) == ["adafactor"]  # 126 layers
    assert kinds("llama3.1-405b", layout({"pipe": 2}, **PIPED), job) == []


def test_models_that_are_not_run() -> None:
    assert "block" in kinds(hybrid(), layout())
    group = sw.model(LLAMA).groups[0]
    assert group.layer.attention is not None
    scaled = Rope(scaling=RopeScaling(kind="spiral", factor=2.0))
    layer = replace(
        group.layer,
        attention=replace(group.layer.attention, rotary=scaled),
        ffn=replace(group.layer.ffn, activation="mish"),  # type: ignore[type-var]
    )
    odd = replace(sw.model(LLAMA), groups=(replace(group, layer=layer),))
    assert kinds(odd, layout()) == ["activation", "rope_scaling"]


def test_devices_of_a_chip_share_its_sequences_or_heads() -> None:
    """A 7x chip is two devices."""
    narrow = layout({"tensor": 32}, micro_batch=1)
    assert kinds(LLAMA, narrow, machine="7x:2x4x4") == ["devices"]
    assert kinds(LLAMA, replace(narrow, micro_batch=2), machine="7x:2x4x4") == []
    assert kinds(LLAMA, layout({"tensor": 16}, micro_batch=1), machine="7x:2x4x4") == []
    assert kinds(LLAMA, narrow) == []


def test_numbers_of_heads_that_do_not_divide_each_other() -> None:
    group = sw.model(LLAMA).groups[0]
    assert group.layer.attention is not None
    groups = []
    for n_kv_heads in (4, 6):
        attention = replace(group.layer.attention, n_heads=24, n_kv_heads=n_kv_heads)
        groups.append(replace(group, layer=replace(group.layer, attention=attention), count=2))
    model = replace(sw.model(LLAMA), groups=tuple(groups), order=())
    assert kinds(model, layout({"tensor": 12})) == ["kv_heads"]
    assert kinds(model, layout({"tensor": 2})) == []


SIZES: dict[str, tuple[int, ...]] = {
    "tensor": (1, 4),
    "context": (1, 2),
    "pipe": (1, 2),
    "micro_batch": (1, 2),
    "n_microbatches": (4, 6),
}


@pytest.mark.parametrize("machine", ["7x:2x4x4", "h100:64"])
@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
@pytest.mark.parametrize("model", [LLAMA, "gemma3-27b", "gpt-oss-20b", "gpt2-xl,n_positions=8192"])
def test_arrays_of_layouts_are_judged_as_each_alone(
    model: str, optimizer: str, machine: str
) -> None:
    config = sw.model(model)
    chip = sw.hardware(machine).chip
    job = replace(JOB, optimizer=optimizer, reduce="int8")
    rows = [dict(zip(SIZES, row, strict=True)) for row in itertools.product(*SIZES.values())]
    seen = set()
    for zero, kind, schedule in itertools.product(
        (1, 2), ("gather", "ring", "ulysses"), ("none", "1f1b", "dualpipe")
    ):
        form = {"zero": zero, "context_kind": kind, "schedule": schedule}
        piped = schedule != "none"
        some = [row for row in rows if (row["pipe"] > 1) == piped]
        columns = {name: np.array([row[name] for row in some], float) for name in SIZES}
        counts = {name: columns.pop(name) for name in ("micro_batch", "n_microbatches")}
        ones = {role: np.ones(len(some)) for role in Mesh().sizes}
        together = is_run(config, job, Layouts(**form, **counts, sizes=ones | columns), chip)
        for row, run in zip(some, together, strict=True):
            sizes = {role: n for role, n in row.items() if role not in counts}
            alone = layout(sizes, **form, **{name: row[name] for name in counts})
            found = limits(config, job, alone, chip)
            assert bool(run) == (not found), alone
            seen |= {limit.kind for limit in found}
    assert {"schedule", "int8_rounds"} <= seen


def test_every_kind_has_a_sentence() -> None:
    for kind in get_args(Kind):
        sentence = limit_text(RuntimeLimit(kind=kind, part="part", value=2, limit=3))
        assert sentence.endswith(".")


def test_names_are_those_of_the_runtime() -> None:
    assert set(ACTIVATIONS.values()) == set(RUNTIME_ACTIVATIONS)
    assert set(ROPE_SCALINGS) == set(SCALINGS)
