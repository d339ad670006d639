"""The Ultra-Scale Playbook's formulas against each other and against this package's own counts."""

from __future__ import annotations

import numpy as np
import pytest

from shardwise.errors import UnknownName
from shardwise.formulas import playbook
from shardwise.models import count, load


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
    ratios = playbook.bubble(8, np.array([1, 8, 32]))
    assert ratios.tolist() == [7, 0.875, 0.21875]


def test_overlap_turns_where_the_book_s_threshold_is() -> None:
    # Two bytes per element, many replicas: hidden from C/W tokens per GPU on. Book §12.
    tokens = 990e12 / 450e9
    ratio = playbook.data_parallel_overlap(tokens, 1e9, 990e12, 450e9)
    assert ratio == pytest.approx(1)
    assert playbook.data_parallel_overlap(2 * tokens, 1e9, 990e12, 450e9) == pytest.approx(0.5)


def test_tensor_overlap() -> None:
    assert playbook.tensor_parallel_overlap(1, 8192, 990e12, 450e9) == 0


def test_layouts_and_accumulation() -> None:
    row = playbook.Layout(data=32, tensor=16, pipe=1, accumulation=4, microbatch=2, zero=1)
    assert (row.n_gpus, row.samples) == (512, 256)
    assert playbook.accumulation_steps(row.samples, row.microbatch, row.data) == row.accumulation


def test_the_cheat_sheet() -> None:
    assert playbook.recommended_technique(7e9).startswith("one technique")
    assert playbook.recommended_technique(70e9).startswith("TP=8 + PP")
    assert playbook.recommended_technique(70e9, n_gpus=512) == "mix DP with TP or PP"
    assert playbook.recommended_technique(70e9, n_gpus=1024) == "TP=8 + DP (ZeRO-2) + PP"
    assert playbook.recommended_technique(long_sequences=True) == "add CP"
    assert playbook.recommended_technique(moe=True) == "add EP"
