"""Megatron Bridge: files that override a recipe, whose values they do not repeat."""

from __future__ import annotations

from typing import Any

import pytest

import shardwise as sw
from shardwise.errors import BadInput
from shardwise.frameworks import registry, replan

QWEN = """
model:
  tensor_model_parallel_size: 2
  expert_model_parallel_size: 8
  seq_length: 4096
  sequence_parallel: true
train:
  global_batch_size: 64
  micro_batch_size: 1
ddp:
  grad_reduce_in_fp32: true
"""
H100 = "h100:32"


def launch(text: str) -> Any:
    return registry.read(text, "a.yaml", "megatron-bridge").launch


def test_experts_are_whole_unless_the_file_splits_them() -> None:
    run = launch(QWEN)
    assert (run.sizes["expert"], run.expert_tensor) == (4, 1)  # 8 ranks: 2 x 4
    (note,) = run.notes
    assert note.startswith("expert_tensor_parallel_size is not in the file; 1 is planned")
    plan = replan.training_plan(run, sw.model("qwen3-30b-a3b"), sw.hardware(H100))
    assert plan.layout.expert_degree == 8
    split = launch(QWEN.replace("  seq_l", "  expert_tensor_parallel_size: 2\n  seq_l"))
    assert (split.sizes["expert"], split.expert_tensor, split.notes) == (8, None, ())


def test_sizes_of_the_model_that_a_file_overrides_are_named() -> None:
    sizes = "  num_layers: 8\n  num_moe_experts: 48\n  seq_l"
    run = launch(QWEN.replace("  seq_l", sizes))
    with pytest.raises(BadInput, match="8 layers and 48 experts, deepseek-v3 has 61 and 256") as e:
        replan.training_plan(run, sw.model("deepseek-v3"), sw.hardware("h100:512"))
    name = "deepseek-v3,n_layers=8,n_experts=48"
    assert f"or {name}." in str(e.value)
    plan = replan.training_plan(run, sw.model(name), sw.hardware("h100:64"))
    assert (plan.model.n_layers, plan.model.n_experts) == (8, 48)
    note = launch(QWEN.replace("  seq_l", "  moe_layer_freq: [0, 1]\n  seq_l")).notes[0]
    assert note.startswith("moe_layer_freq of the file is not read")
