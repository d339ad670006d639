"""The Ultra-Scale Playbook's formulas against each other and against this package's own counts."""

from __future__ import annotations

import numpy as np
import pytest

from shardwise.errors import UnknownName
from shardwise.estimate import playbook
from shardwise.models import ModelConfig, count, load


def test_parameters_of_a_gpt_block() -> None:
    gpt2 = load("gpt2")
    ours = count.parameters(gpt2).total - gpt2.n_positions * gpt2.d_model
    assert playbook.gpt_parameters(gpt2.d_model, gpt2.vocab, gpt2.n_layers) == ours


def test_state_without_sharding_is_zero_of_stage_0() -> None:
    assert playbook.state_bytes(7e9) == playbook.zero_bytes(7e9, 64, 0) == 112e9
    stages = [playbook.zero_bytes(7e9, 64, stage) for stage in range(4)]
    assert stages == sorted(stages, reverse=True)
    assert stages[3] == 112e9 / 64
    assert [playbook.zero_traffic(s) for s in range(4)] == [2, 2, 2, 3]
    with pytest.raises(UnknownName, match="ZeRO stage"):
        playbook.zero_bytes(7e9, 64, 4)


def test_activations_of_the_three_ways_to_recompute() -> None:
    none, selective, full = (
        playbook.activation_bytes(32, 4096, 1, 4096, 32, recompute=r)
        for r in ("none", "selective", "full")
    )
    assert selective == 34 * 32 * 4096 * 4096
    assert full == 2 * 32 * 4096 * 4096
    saving = playbook.selective_saving(32, 4096, 4096)
    assert none * (1 - saving) == pytest.approx(selective)
    with pytest.raises(UnknownName, match="recompute policy"):
        playbook.activation_bytes(1, 1, 1, 1, recompute="some")


def test_sequence_parallelism_splits_everything() -> None:
    args = (32, 4096, 1, 4096, 32)
    whole = playbook.activation_bytes(*args)
    assert playbook.activation_bytes(*args, tensor=8, sequence_parallel=True) == whole / 8
    assert whole / 8 < playbook.activation_bytes(*args, tensor=8) < whole
    full = playbook.activation_bytes(*args, recompute="full", tensor=8, sequence_parallel=True)
    assert full == playbook.activation_bytes(*args, recompute="full") / 8


def test_bubbles() -> None:
    assert playbook.bubble(1) == 0
    assert playbook.bubble_share(8, 8) == pytest.approx(0.875 / 1.875)
    ratios = playbook.bubble(8, np.array([1, 8, 32]))
    assert ratios.tolist() == [7, 0.875, 0.21875]
    assert playbook.stored_microbatches("afab", 4, 32) == 32
    assert playbook.stored_microbatches("1f1b", 4, 32) == 4
    assert playbook.stored_microbatches("1f1b", 8, 2) == 2
    with pytest.raises(UnknownName, match="unknown schedule"):
        playbook.stored_microbatches("none", 4, 32)


def test_overlap_turns_where_the_book_s_threshold_is() -> None:
    # Two bytes per element, many replicas: hidden from C/W tokens per GPU on. Book §12.
    tokens = 990e12 / 450e9
    ratio = playbook.data_parallel_overlap(tokens, 1e9, 990e12, 450e9)
    assert ratio == pytest.approx(1)
    assert playbook.data_parallel_overlap(2 * tokens, 1e9, 990e12, 450e9) == pytest.approx(0.5)


def test_other_overlaps() -> None:
    assert playbook.tensor_parallel_overlap(1, 8192, 990e12, 450e9) == 0
    assert playbook.pipeline_overlap(8192, 4, 32.0 * 8192 * 4, 1.0, 1.0) == 1
    assert playbook.expert_parallel_overlap(13, 8, 4096, 8.0 * 4096, 1.0, 1.0) == 1
    ring = playbook.context_parallel_overlap(
        65_536, 8, n_heads=64, n_kv_heads=8, flops_per_s=990e12, bytes_per_s=450e9
    )
    # 2 e K H T bytes over 4 T^2 N H FLOPs: K C / (N T W) in bf16.
    assert ring == pytest.approx(8 * 990e12 / (64 * 8192 * 450e9))
    assert playbook.context_parallel_overlap(
        65_536, 1, n_heads=64, n_kv_heads=8, flops_per_s=1.0, bytes_per_s=1.0
    ) == 0  # fmt: skip


def test_flops_count_the_full_square_of_scores() -> None:
    model = ModelConfig.dense(
        n_layers=8, d_model=1024, d_ff=4096, n_heads=8, vocab=1000, gated=False
    )
    found = count.flops(model, 2048, causal=False)
    params = count.parameters(model)
    ours = playbook.flops_per_sequence(params.matmul, 8, 1024, 2048)
    assert ours == pytest.approx(2048 * found.training)


def test_layouts_and_accumulation() -> None:
    row = playbook.Layout(data=32, tensor=16, pipe=1, accumulation=4, microbatch=2, zero=1)
    assert (row.n_gpus, row.samples) == (512, 256)
    assert playbook.accumulation_steps(row.samples, row.microbatch, row.data) == row.accumulation


def test_the_cheat_sheet() -> None:
    assert playbook.first_step(7e9).startswith("one technique")
    assert playbook.first_step(70e9).startswith("TP=8 + PP")
    assert playbook.first_step(70e9, n_gpus=512) == "mix DP with TP or PP"
    assert playbook.first_step(70e9, n_gpus=1024) == "TP=8 + DP (ZeRO-2) + PP"
    assert playbook.first_step(long_sequences=True) == "add CP"
    assert playbook.first_step(moe=True) == "add EP"
