"""An engine under steady traffic: identities, and the book's serving chapter."""

from __future__ import annotations

import pytest

from shardwise.estimate.serving.memory import engine_memory, max_batch
from shardwise.estimate.serving.steady_state import (
    colocated,
    decode_only,
    decode_token_s,
    prefill_only,
)
from shardwise.formulas.inference import prefill_servers
from shardwise.models.count import kv_cache_bytes, parameters
from shardwise.models.weights import layer_weights
from shardwise.workload import Serve
from tests.unit.estimate.serving.engines import BUSY, REACHED, engine

JOB = Serve(prompt=1024, output=512, weights="fp8", kv="bf16", compute="fp8")


def test_tokens_come_from_the_batch_and_its_step() -> None:
    e = engine("llama3-70b", "h100:4", {"tensor": 4}, JOB, shares=REACHED, software=BUSY)
    found = colocated(e, JOB, 64)
    assert found.tokens_per_s == pytest.approx(64 / found.tpot_s)
    assert found.requests_per_s * 512 == pytest.approx(found.tokens_per_s)
    assert found.tpot_s > found.pass_s == decode_only(e, JOB, 64).tpot_s
    assert found.ttft_s > found.prefill_s
    # Prompts take the share of the time that their arrival needs.
    assert found.busy == pytest.approx(1 - found.pass_s / found.tpot_s)


def test_three_prefill_servers_to_one_that_decodes() -> None:
    """Book §8: prompts of 8,192, answers of 512, int8, batch 43 on 4x4: 3 to 1 at 40 % MFU."""
    job = Serve(prompt=8192, output=512, weights="bf16", kv="bf16", compute="bf16")
    e = engine("llama3-70b", "v5e:4x4", {"tensor": 16}, job, kv="batch")
    step = e.decode(32, 8192).local_s
    assert step == pytest.approx(0.017, abs=0.001)
    reading = e.prefill(1, 8192).matmuls / 0.4
    assert reading == pytest.approx(0.91, abs=0.01)
    assert prefill_servers(reading, step, 32, 512) == pytest.approx(3.3, abs=0.2)


def test_drafts_pay_when_they_are_kept() -> None:
    e = engine("llama3-70b", "h100:4", {"tensor": 4}, JOB, shares=REACHED, software=BUSY)

    def tpot(acceptance: float) -> float:
        job = Serve(prompt=1024, output=512, drafted=4, acceptance=acceptance, draft_cost=0.05)
        return float(decode_token_s(e, job, 8))

    assert tpot(0.8) < decode_token_s(e, JOB, 8) < tpot(0.0)


def test_prompts_read_elsewhere_leave_the_step_alone() -> None:
    e = engine("llama3-70b", "h100:4", {"tensor": 4}, JOB, shares=REACHED, software=BUSY)
    rate, ttft = prefill_only(e, JOB, 0.5)
    assert rate == pytest.approx(0.5 / e.prefill(1, 1024).step_s)
    assert ttft > e.prefill(1, 1024).step_s


@pytest.mark.parametrize("mesh", [{"tensor": 8}, {"tensor": 4, "expert": 2}, {"tensor": 16}])
def test_memory_is_weights_and_caches(mesh: dict[str, int]) -> None:
    name = "mixtral-8x7b" if "expert" in mesh else "llama3-70b"
    e = engine(name, "v5e:4x4" if mesh["tensor"] == 16 else "v5e:2x4", mesh, kv="batch")
    job, sizes = e.rates.job, e.layout.sizes
    n = e.layout.n_chips
    held = engine_memory(e.config, e.layout, sizes, job, 16, 16e9, ideal=True)
    assert held.kv_cache * n == pytest.approx(16 * kv_cache_bytes(e.config, 8192))
    whole = 2 * parameters(e.config).total
    assert whole <= held.weights * n <= whole * (1.35 if "expert" in mesh else 1.02)
    assert held.total == held.weights + held.kv_cache


def test_embedding_and_head_of_quantized_weights_take_16_bits() -> None:
    e = engine("llama3-70b", "v5e:2x4", {"tensor": 8}, Serve(context=1024, weights="int8"))
    memory = engine_memory(e.config, e.layout, e.layout.sizes, e.rates.job, 16, 16e9, ideal=True)
    outer = 2 * e.config.vocab * e.config.d_model
    layers = parameters(e.config).total - outer
    assert layers + 2 * outer <= memory.weights * 8 <= 1.001 * (layers + 2 * outer)


def test_biases_of_experts_are_sharded_as_the_experts_are() -> None:
    e = engine("gpt-oss-20b", "v5e:2x4", {"expert": 8}, kv="batch")
    n_experts = 0
    for group in e.config.groups:
        for weight in layer_weights(e.config, group.layer):
            n_experts += group.count * weight.size * weight.per_expert
    dense = parameters(e.config).total - n_experts
    memory = engine_memory(e.config, e.layout, e.layout.sizes, e.rates.job, 16, 16e9, ideal=True)
    assert memory.weights == 2 * (dense + n_experts / 8)


def test_the_books_largest_batch() -> None:
    e = engine("llama3-70b", "v5e:4x4", {"tensor": 16}, kv="batch")
    found = max_batch(e.config, e.layout, e.layout.sizes, e.rates.job, 16e9, ideal=True)
    assert found == 41  # 42 in the book, which has each key and value head once; here 16 on 8
    real = max_batch(e.config, e.layout, e.layout.sizes, e.rates.job, 16e9)
    assert 0 < real < found


def test_a_model_that_does_not_fit_serves_nobody() -> None:
    e = engine("llama3-70b", "v5e:2x4", {"tensor": 8}, kv="batch")
    assert max_batch(e.config, e.layout, e.layout.sizes, e.rates.job, 16e9) == 0
