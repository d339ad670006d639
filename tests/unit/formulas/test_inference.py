"""Prefill, decode and serving: worked answers of the book that are not among its cases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.formulas import inference, roofline, stationary
from shardwise.hardware import find_chip
from shardwise.models import count, load

V5E = 8.2e11


def test_a_large_batch_is_bound_by_compute() -> None:
    # Book §7, pop quiz: 30B int8 at batch 256, 8192 tokens of 100 kB each, 16 v5e: about 21 ms.
    step = inference.decode_step(
        256,
        8192 * 100e3,
        30e9,
        n_chips=16,
        hbm_bytes_per_s=8.1e11,
        params=30e9,
        flops_per_s=1.97e14,
    )
    assert step.step_s == pytest.approx(21e-3, rel=5e-3)
    assert step.math_s > step.weights_s


def test_grouped_attention_of_llama2_13b() -> None:
    # Book §7, second table: five times fewer key heads; ms per step on 8 v5e.
    batches = np.array([1, 8, 16, 32, 64, 240])
    steps = inference.decode_step(batches, 1.34e9, 26e9, n_chips=8, hbm_bytes_per_s=V5E)
    printed = [4.17, 5.60, 7.23, 10.50, 17.04, 52.99]
    assert (1e3 * steps.step_s).round(2).tolist() == printed
    assert steps.tokens_per_s[-1] == pytest.approx(4529, abs=1)
    assert steps.tokens_per_s_per_chip[0] == pytest.approx(steps.tokens_per_s[0] / 8)


@given(
    batch=st.integers(1, 4096),
    chips=st.sampled_from([1, 8, 64]),
    params=st.floats(1e8, 1e12),
)
def test_no_step_beats_the_weights(batch: int, chips: int, params: float) -> None:
    step = inference.decode_step(
        batch,
        1e8,
        2 * params,
        n_chips=chips,
        hbm_bytes_per_s=V5E,
        params=params,
        flops_per_s=1.97e14,
    )
    floor = inference.weight_read_s(params, 2, n_chips=chips, hbm_bytes_per_s=V5E)
    assert step.step_s >= floor
    more = inference.decode_step(2 * batch, 1e8, 2 * params, n_chips=chips, hbm_bytes_per_s=V5E)
    assert more.tokens_per_s >= 0.5 * step.tokens_per_s


def test_the_matmuls_turn_at_the_critical_batch() -> None:
    batch = roofline.critical_batch(1.97e14, V5E, "int8")
    step = inference.decode_step(
        batch, 0, 7e9, n_chips=4, hbm_bytes_per_s=V5E, params=7e9, flops_per_s=1.97e14
    )
    assert step.math_s == pytest.approx(step.weights_s)


def test_largest_batches() -> None:
    # Book §8: 70B in bf16 on 16 v5e leaves room for 43 caches of 8192 tokens.
    llama = load("llama3-70b")
    assert inference.max_batch(16, 16e9, 140e9, count.kv_cache_bytes(llama, 8192)) == 43
    # Book §7, question 2: 128k tokens of 262,144 B; with one key head instead of 8, 8 times more.
    assert inference.max_batch(16, 16e9, 18.4e9, 131_072 * 262_144) == 6
    assert inference.max_batch(16, 16e9, 18.4e9, 131_072 * 262_144 / 8) == 55


def test_caches_to_match() -> None:
    assert inference.caches_to_match(26e9, 6.7e9) == 4
    assert inference.caches_to_match(26e9, 13e9) == 3


def test_limits_of_tensor_parallelism() -> None:
    v5e = find_chip("v5e").quoted("book")
    assert inference.beta(v5e) == 9
    assert inference.memory_bound_tensor_limit(16_384, 32, 8) == 64
    degree = inference.latency_bound_degree(
        16, 8192, link_bytes_per_s_one_way=4.5e10, hop_s=1e-6, element_bytes=2
    )
    assert degree == pytest.approx(5.825, abs=1e-3)


def test_prefill_and_prefix() -> None:
    whole = inference.prefill_s(70e9, 8192, n_chips=16, flops_per_s=1.97e14, mfu=0.4)
    assert whole == pytest.approx(0.91, rel=1e-3)
    assert inference.prefill_share(8192, 0) == 1
    assert inference.prefill_share(8192, 8191) == 1 / 8192


def test_the_context_where_reading_caches_outlasts_the_matmuls() -> None:
    context = inference.kv_bound_context(70e9, 163_840, hbm_bytes_per_s=V5E, flops_per_s=1.97e14)
    for batch in (240, 4096):
        step = inference.decode_step(
            batch,
            context * 163_840,
            70e9,
            n_chips=16,
            hbm_bytes_per_s=V5E,
            params=70e9,
            flops_per_s=1.97e14,
        )
        assert step.kv_s == pytest.approx(step.math_s)


def test_the_longest_context_fills_its_share() -> None:
    context = inference.max_context(1e12, 160e3, 32, share=0.3)
    assert context * 160e3 * 32 == pytest.approx(0.3e12)


def test_message_latency() -> None:
    assert inference.message_latency_s(64, 4, 8e-6) == pytest.approx(2.048e-3)


def test_speculative_decoding_yields_at_least_its_own_token() -> None:
    assert inference.speculative_tokens(0.0, 5) == 1
    assert inference.speculative_tokens(1.0, 5) == 6
    closed = (1 - 0.8**6) / (1 - 0.8)
    assert inference.speculative_tokens(0.8, 5) == pytest.approx(closed)
    assert inference.speculative_token_s(0.02, 0.8, 0, 0.1) == 0.02
    assert inference.speculative_token_s(0.02, 1.0, 4, 0.25) == pytest.approx(0.02 * 2 / 5)


def test_service_of_a_full_server() -> None:
    step = inference.full_memory_step_s(16e9, V5E)
    assert inference.decode_s(step, 512) == pytest.approx(9.99, abs=0.01)
    rate = inference.query_rate(43, 0.019, 512)
    assert inference.finished_per_step(43, 512) == pytest.approx(rate * 0.019)
    # Prefill servers that finish as many prompts as the decode server ends answers.
    assert inference.prefill_servers(0.91, 0.019, 32, 512) == pytest.approx(
        0.91 * inference.query_rate(32, 0.019, 512)
    )
    assert inference.evicted_per_step(32, 8192, 4096) == 96


def test_two_dims_pay_from_72_chips_on() -> None:
    assert stationary.chips_for_2d(4) == 72
    for n_chips, better in ((64, False), (80, True)):
        best = stationary.best_2d(n_chips)
        # 2BD/(X W) + 4BF/(YZ W) against 4BD/(3 W). Book §7, app. B.
        two = (2 * 256 * 4096 / best.x + 4 * 256 * 16_384 / best.yz) / 9e10
        one = 4 * 256 * 4096 / (3 * 9e10)
        assert (two < one) is better
        assert two == pytest.approx(best.coefficient * 256 * 4096 / n_chips**0.5 / 9e10)


def test_the_papers_crossover() -> None:
    n = stationary.pope_2d_chips()
    assert n == 4
    assert stationary.pope_2d_s(8, 64, n, 1.0) == stationary.pope_1d_s(8, 64, 1.0)
