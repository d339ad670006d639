"""Counts against closed forms, published figures and a loop over positions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import UnknownName
from shardwise.models import Attention, ModelConfig, count, load, names

LLAMA = load("llama3-70b")


def visible(seq, window=None, chunked=False):
    attention = Attention(n_heads=1, n_kv_heads=1, d_head=1, window=window, chunked=chunked)
    return count.mean_visible(attention, seq)


def test_llama3_70b_by_part():
    counts = count.parameters(LLAMA)
    assert counts.total == 70_553_706_496
    assert counts.mlp == 80 * 3 * 8192 * 28672
    assert counts.attention == 80 * 2 * 8192 * (64 + 8) * 128
    assert counts.embedding == counts.unembedding == 128256 * 8192
    assert counts.norm == (2 * 80 + 1) * 8192
    assert counts.active == counts.total
    assert counts.matmul == counts.total - counts.norm - counts.embedding


def test_llama2_13b_as_the_book_counts_it():
    counts = count.parameters(load("llama2-13b"))
    assert counts.mlp == 8_493_465_600
    assert counts.attention == 4_194_304_000
    assert counts.embedding + counts.unembedding == 327_680_000
    assert counts.total - counts.norm == pytest.approx(13.0155e9, rel=1e-5)


def test_the_books_exercise_model():
    model = ModelConfig.dense(
        n_layers=64, d_model=4096, d_ff=16384, n_heads=32, n_kv_heads=8, d_head=256, vocab=32128,
        tied_embeddings=True,
    )  # fmt: skip
    assert count.parameters(model).total == pytest.approx(18.385e9, rel=1e-4)
    assert count.kv_bytes_per_token(model, "int8") == 262_144


def test_twelve_l_d_squared():
    model = ModelConfig.dense(
        n_layers=64, d_model=8192, d_ff=4 * 8192, n_heads=64, vocab=1, gated=False
    )
    counts = count.parameters(model)
    assert counts.attention + counts.mlp == 12 * 64 * 8192**2
    assert count.kv_bytes_per_token(model, 2) == 2_097_152


def test_mixture_of_experts_per_layer():
    counts = count.parameters(load("mixtral-8x7b"))
    assert counts.moe == 32 * (8 * 3 * 4096 * 14336 + 4096 * 8)
    assert counts.total - counts.active == 32 * 6 * 3 * 4096 * 14336


@pytest.mark.parametrize(
    ("name", "active"),
    [("mixtral-8x7b", 12.9e9), ("deepseek-v2", 21e9), ("deepseek-v3", 37e9),
     ("qwen3-235b-a22b", 22e9), ("gpt-oss-120b", 5.7e9), ("llama4-scout", 17e9)],
)  # fmt: skip
def test_active_parameters_as_published(name, active):
    assert count.parameters(load(name)).active == pytest.approx(active, rel=0.025)


def test_flops_are_six_per_parameter_plus_causal_scores():
    flops = count.flops(LLAMA, 8192)
    matmul = count.parameters(LLAMA).matmul
    scores = 80 * 4 * 64 * 128 * 8192 / 2
    assert flops.forward == 2 * matmul + scores
    assert flops.training == count.model_flops_per_token(LLAMA, 8192) == 6 * matmul + 3 * scores
    assert count.flops(LLAMA, 8192, causal=False).scores == 2 * scores


def test_score_flops_equal_projections_at_twice_d():
    model = ModelConfig.dense(n_layers=1, d_model=4096, d_ff=1, n_heads=32, vocab=1)
    flops = count.flops(model, 8192, causal=False)
    assert flops.scores == flops.attention


def test_moe_flops_count_the_experts_of_a_token():
    flops = count.flops(load("mixtral-8x7b"), 4096)
    assert flops.moe == 2 * 32 * (2 * 3 * 4096 * 14336 + 4096 * 8)
    assert flops.mlp == 0


def test_latent_attention_scores_use_both_widths():
    flops = count.flops(load("deepseek-v3"), 4096)
    assert flops.scores == 61 * 2 * 128 * (192 + 128) * 4096 / 2


def test_a_tied_unembedding_is_still_multiplied():
    assert count.flops(load("gemma-2b"), 128).unembedding == 2 * 2048 * 256000
    assert count.flops(load("llama3-8b"), 128).unembedding == 2 * 4096 * 128256


@given(st.integers(1, 300), st.integers(1, 300))
def test_visible_keys_of_a_window_against_a_loop(seq, window):
    exact = sum(min(t, window) for t in range(seq)) / seq
    # The square is halved, so that a token sees half of itself: the loop is off by at most 1/2.
    assert exact <= visible(seq, window) <= exact + 0.5


@given(st.integers(1, 300), st.integers(1, 300))
def test_visible_keys_of_chunks_against_a_loop(seq, chunk):
    exact = sum(t % chunk for t in range(seq)) / seq
    assert visible(seq, chunk, chunked=True) == pytest.approx(exact + 0.5)


def test_visible_keys():
    assert visible(4096) == 2048
    assert visible(4096, 4096) == visible(4096, 9999) == 2048
    assert visible(8192, 4096) == 4096 - 4096**2 / (2 * 8192)
    assert visible(8192, 4096, chunked=True) == 2048


def test_qwen25_7b_kv_per_token():
    assert count.kv_bytes_per_token(load("qwen2.5-7b")) == 57_344
    assert count.kv_cache_bytes(load("qwen2.5-7b"), 3072) == 3072 * 57_344


def test_kv_of_latent_attention_is_the_latent():
    assert count.kv_bytes_per_token(load("deepseek-v3")) == 61 * (512 + 64) * 2


def test_local_layers_stop_growing_at_their_window():
    model = load("gpt-oss-20b")
    per_layer = 2 * 8 * 64 * 2
    assert count.kv_cache_bytes(model, 100) == 100 * 24 * per_layer
    assert count.kv_cache_bytes(model, 8192) == (12 * 128 + 12 * 8192) * per_layer


def test_llama3_70b_int8_cache_of_the_book():
    assert count.kv_bytes_per_token(LLAMA, "int8") == 163_840
    assert count.kv_cache_bytes(LLAMA, 32768, "int8") == 5_368_709_120


def test_multihead_540b_cache():
    model = ModelConfig.dense(
        n_layers=118, d_model=18432, d_ff=73728, n_heads=48, d_head=128, vocab=256000
    )
    assert 512 * count.kv_cache_bytes(model, 2048) == pytest.approx(3.0404e12, rel=2e-4)


def test_unknown_dtype():
    with pytest.raises(UnknownName, match='unknown dtype "bf17"'):
        count.kv_bytes_per_token(LLAMA, "bf17")


@pytest.mark.parametrize("name", names())
def test_arrays_of_lengths_give_what_each_length_gives(name):
    model, lengths = load(name), [1, 127, 4096, 200_000]
    array = np.array(lengths, dtype=float)
    for function in (count.model_flops_per_token, count.kv_cache_bytes):
        one_by_one = [float(function(model, n)) for n in lengths]
        assert np.broadcast_to(function(model, array), 4).tolist() == one_by_one


@pytest.mark.parametrize("name", names())
def test_parts_add_up_and_grow(name):
    model = load(name)
    counts, short, long = count.parameters(model), count.flops(model, 512), count.flops(model, 8192)
    assert 0 < counts.matmul < counts.active <= counts.total
    assert short.forward < long.forward
    assert short.forward - short.scores == long.forward - long.scores == 2 * counts.matmul
    whole = count.kv_bytes_per_token(model) * 8192
    assert count.kv_cache_bytes(model, 512) < count.kv_cache_bytes(model, 8192) <= whole
