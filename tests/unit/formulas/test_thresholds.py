"""Where splits stop being compute-bound: worked answers of the book, and what they follow from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import UnknownFigure, UnknownName
from shardwise.formulas import thresholds
from shardwise.formulas.thresholds import (
    SCOPES,
    alpha,
    microbatches_for_bubble,
    mixed_times,
    ring_tokens,
)
from shardwise.hardware import find_chip
from shardwise.models import ModelConfig, load

V5P = 2550.0
C, W = 1e15, 4.5e11


def test_alpha_of_each_network() -> None:
    v5p, h100 = find_chip("v5p").quoted("book"), find_chip("h100").quoted("book")
    assert alpha(v5p) == V5P
    assert alpha(v5p, dtype="int8") == 2 * V5P
    # Across pods: 73,440 tokens a pod chip in the later edition.
    assert alpha(v5p, "dcn") == 73_440
    assert alpha(v5p, "hbm") == pytest.approx(4.59e14 / 2.8e12)
    assert alpha(h100, "node") == 2200
    assert alpha(h100, "scale_out") == 2475
    assert alpha(find_chip("v5e").quoted("book"), "ici") == pytest.approx(2189, abs=1)


@pytest.mark.parametrize("scope", SCOPES)
def test_alpha_needs_the_figure(scope: str) -> None:
    with pytest.raises(UnknownFigure):
        alpha(find_chip("cpu"), scope)


def test_alpha_of_no_network() -> None:
    with pytest.raises(UnknownName, match='unknown scope "ether"'):
        alpha(find_chip("v5p"), "ether")


def test_data_parallel_tokens() -> None:
    assert thresholds.data_parallel_tokens(V5P, n_axes=3) == 850
    # DeepSeek-V3 has 256 experts, 8 of them per token.
    moe = thresholds.data_parallel_tokens(2475, n_experts=256, experts_per_token=8)
    assert moe == 2475 * 32
    assert thresholds.data_parallel_tokens(2475, model_nodes=3) == 825
    assert thresholds.data_parallel_tokens(2475, replicas=4) == 2475 * 0.75


def test_tensor_width_is_the_inverse_of_the_limit() -> None:
    # Two nodes exactly: F > alpha (Y - 8).
    assert thresholds.tensor_width(16, 2475, inner=8) == 19_800
    for inner in (0, 8):
        limit = thresholds.tensor_limit(28_672, 2475, inner=inner)
        assert thresholds.tensor_width(limit, 2475, inner=inner) == pytest.approx(28_672)
    assert thresholds.tensor_limit(28_672, V5P, n_axes=2) == pytest.approx(22.49, abs=0.01)


@given(
    tokens=st.floats(1e4, 1e8),
    d_ff=st.sampled_from([8192, 28_672]),
    n_chips=st.sampled_from([256, 4096]),
)
def test_the_best_split_moves_least_and_balances(tokens: float, d_ff: int, n_chips: int) -> None:
    def comms(fsdp: float) -> float:
        times = mixed_times(
            tokens, 8192, d_ff, fsdp=fsdp, tensor=n_chips / fsdp,
            flops_per_s=4.59e14, ici_bytes_per_s=1.8e11,
        )  # fmt: skip
        return float(times.comms_s)

    best = thresholds.best_fsdp(n_chips, tokens, d_ff)
    assert comms(best) <= min(comms(best * 1.01), comms(best / 1.01))
    times = mixed_times(
        tokens, 8192, d_ff, fsdp=best, tensor=n_chips / best,
        flops_per_s=4.59e14, ici_bytes_per_s=1.8e11,
    )  # fmt: skip
    assert times.fsdp_s == pytest.approx(times.tensor_s)


@pytest.mark.parametrize("overlap", [False, True])
def test_the_mixed_threshold_is_where_both_times_meet(overlap: bool) -> None:
    n_chips, d_ff = 4096, 32_768
    tokens = n_chips * thresholds.mixed_tokens(V5P, d_ff, overlap=overlap)
    fsdp = thresholds.best_fsdp(n_chips, tokens, d_ff)
    times = mixed_times(
        tokens, 8192, d_ff, fsdp=fsdp, tensor=n_chips / fsdp,
        flops_per_s=4.59e14, ici_bytes_per_s=1.8e11,
    )  # fmt: skip
    comms = times.fsdp_s if overlap else times.comms_s
    assert times.math_s == pytest.approx(comms)


def test_two_chips_hide_the_exchange_of_sums_from_8755_on() -> None:
    width = thresholds.split_contraction_width(2, 1.97e14, 4.5e10)
    assert width == pytest.approx(8755.6, abs=0.1)


def test_strategies_of_one_matmul() -> None:
    assert thresholds.reduce_output_limit(5100, V5P) == 1
    assert thresholds.latency_bound_bytes(4.5e10, 1e-6, shards=8) == pytest.approx(360e3)


def test_prefill_attention_with_groups() -> None:
    assert thresholds.attention_prefill_tokens(240, 8) == 270


def test_score_crossover_of_a_real_model() -> None:
    llama = load("llama3-70b")
    layers = thresholds.score_crossover(llama)
    assert layers == pytest.approx(
        thresholds.score_crossover(llama, against="mlp")
        + thresholds.score_crossover(llama, against="projections")
    )
    assert thresholds.score_crossover(llama, causal=True) == pytest.approx(2 * layers)
    square = ModelConfig.dense(n_layers=3, d_model=512, d_ff=2048, n_heads=4, vocab=10)
    assert thresholds.score_crossover(square) == 8 * 512
    with pytest.raises(UnknownName, match="part of the FLOPs"):
        thresholds.score_crossover(llama, against="norms")


def test_thresholds_take_arrays() -> None:
    widths = np.array([8192, 28_672])
    limits = thresholds.tensor_limit(widths, V5P)
    assert limits.tolist() == [thresholds.tensor_limit(int(f), V5P) for f in widths]
    assert thresholds.best_fsdp(4096, 1e6, widths).shape == (2,)
    assert thresholds.mixed_tokens(V5P, widths)[1] == thresholds.mixed_tokens(V5P, 28_672)


@pytest.mark.parametrize("causal", [True, False])
def test_a_ring_hides_under_attention(causal: bool) -> None:
    N, K, H = 32, 8, 128
    kv = 2 * K * H * 2
    t = ring_tokens(C / W, n_heads=N, head_width=2 * H, kv_bytes=kv, causal=causal)
    flops = 4 * t * t * N * H * (0.5 if causal else 1.0)
    assert flops / C == pytest.approx(t * kv / W)


def test_microbatches_for_a_small_bubble() -> None:
    """(p-1) / (m + p-1) <= 1/10; interleaving divides the bubble by its chunks."""
    for p in (2, 4, 8):
        assert microbatches_for_bubble(0.1, stages=p) == 9 * (p - 1)
    fewer = microbatches_for_bubble(0.1, stages=4, chunks=3, schedule="interleaved")
    assert fewer is not None
    assert 9 * 3 / 3 <= fewer < 9 * 3 / 3 + 4
    assert microbatches_for_bubble(1e-9, stages=64) is None
