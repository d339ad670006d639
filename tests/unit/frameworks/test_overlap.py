"""Overlaps that a run switches on, as fields of Megatron Core."""

from __future__ import annotations

import pytest
import yaml

import shardwise as sw
from shardwise.frameworks import megatron_overlap, registry, replan

MODEL = "qwen3-30b-a3b"


def plan(hardware: str = "gb300:8", **fixed: int | str) -> sw.Plan:
    job = sw.Train(batch=512, seq=4096, compute="fp8", framework="nemo")
    given = {"expert": 8, "zero": 1, "remat": "none", **fixed}
    return sw.plan(sw.model(MODEL), sw.hardware(hardware), job, given)


@pytest.mark.parametrize(
    ("framework", "name"), [("megatron", "a.sh"), ("megatron-bridge", "a.yaml"), ("nemo", "a.sh")]
)
def test_overlap_of_experts_comes_back_from_a_file(framework: str, name: str) -> None:
    chosen = plan()
    assert "expert_all_to_all" in chosen.strategy.overlap
    written = registry.export(chosen, framework)
    assert "overlap" not in " ".join(written.notes)
    launch = registry.read(written.text, name, framework).launch
    assert launch.overlap == ("expert_all_to_all",)
    again = replan.training_plan(launch, sw.model(MODEL), sw.hardware("gb300:8"))
    assert "expert_all_to_all" in again.strategy.overlap


def test_bridge_has_it_beside_the_overlaps_of_its_recipes() -> None:
    file = yaml.safe_load(registry.export(plan(), "megatron-bridge").text)
    assert file["comm_overlap"] == {megatron_overlap.EXPERTS: True}
    assert file["model"]["virtual_pipeline_model_parallel_size"] is None
    staged = plan("gb300:16", pipe=2, schedule="interleaved", virtual=4)
    file = yaml.safe_load(registry.export(staged, "megatron-bridge").text)
    assert file["comm_overlap"] == {megatron_overlap.EXPERTS: True}
    assert file["model"]["virtual_pipeline_model_parallel_size"] == 4


@pytest.mark.parametrize(
    ("fixed", "why"),
    [
        ({"remat": "full"}, "remat full"),
        ({"remat": "mlp"}, "remat mlp"),
        ({"pipe": 2, "schedule": "1f1b"}, "stages of one chunk"),
    ],
)
def test_what_megatron_refuses_is_left_out_and_said(fixed: dict[str, int | str], why: str) -> None:
    written = registry.export(plan("gb300:16", **fixed), "megatron-bridge")
    assert megatron_overlap.EXPERTS not in written.text
    assert any("AllToAll of experts" in note and f"with {why}:" in note for note in written.notes)


@pytest.mark.parametrize(
    ("values", "tensor", "degree", "words"),
    [
        ({megatron_overlap.TENSOR: True}, 2, 1, ("tp_comm",)),
        ({megatron_overlap.TENSOR: True, megatron_overlap.EXPERTS: True}, 1, 8,
         ("expert_all_to_all",)),
        ({megatron_overlap.EXPERTS: True}, 2, 1, ()),
        ({megatron_overlap.EXPERTS: False}, 2, 8, ()),
    ],
)  # fmt: skip
def test_only_what_is_sharded_overlaps(
    values: dict[str, bool], tensor: int, degree: int, words: tuple[str, ...]
) -> None:
    assert megatron_overlap.read(values, tensor=tensor, degree=degree) == words
