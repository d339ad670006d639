"""The table of serving engines: names, delays of the first token, and factors of the rates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwise.errors import UnknownName
from shardwise.estimate.serving.overhead import (
    ENGINES,
    IDEAL,
    UNKNOWN,
    engine_overhead,
    published_engine,
)
from shardwise.estimate.serving.steady_state import prompts_s
from shardwise.validate import ServeRun, load_serving
from shardwise.workload import Serve
from tests.unit.estimate.serving.engines import BUSY, REACHED, engine

EIGHT = {"tensor": 8}
INT4 = Serve(context=8192, weights="int4", compute="fp16")


def test_an_engine_has_one_word() -> None:
    assert engine_overhead("vllm") is ENGINES["vllm"]
    assert engine_overhead("unknown") is UNKNOWN
    with pytest.raises(UnknownName, match=r'unknown engine "vlm"\. .*vllm'):
        engine_overhead("vlm")


@pytest.mark.parametrize(
    ("framework", "word"),
    [
        ("vLLM 0.19.0", "vllm"),
        ("vLLM TPU", "vllm"),
        ("SGLang nightly-dev", "sglang"),
        ("NVIDIA NIM (TensorRT-LLM)", "trtllm"),
        ("an engine of ours", "unknown"),
        ("", "unknown"),
    ],
)
def test_published_names(framework: str, word: str) -> None:
    assert published_engine(framework).name == word


def test_every_published_engine_under_traffic_is_known() -> None:
    runs = [run for run in load_serving() if isinstance(run, ServeRun) and run.concurrency]
    assert {published_engine(run.framework).name for run in runs} == {"vllm", "sglang", "trtllm"}


def test_the_first_token_is_late_by_passes() -> None:
    software = replace(UNKNOWN, request_s=0.1, user_s=0.0, hold_passes=2.0, rank_hold_passes=10.0)
    assert float(software.first_token_s(0.03, 1)) == pytest.approx(0.1 + 2 * 0.03)
    assert float(software.first_token_s(0.03, 1, 4)) == pytest.approx(0.1 + 12 * 0.03)
    assert float(IDEAL.first_token_s(0.03, 64, 4)) == 0


def test_the_first_token_waits_behind_those_of_other_users() -> None:
    software = replace(UNKNOWN, request_s=0.1, user_s=5e-4, hold_passes=0.0)
    assert float(software.first_token_s(0.03, 64)) == pytest.approx(0.1 + 64 * 5e-4)


def test_factors_scale_the_rates_of_the_chip() -> None:
    def passes(**factors: float) -> tuple[float, float]:
        software = replace(BUSY, **factors)
        served = engine("llama3-70b", "h100:8", EIGHT, shares=REACHED, software=software)
        decode = served.decode(16, 4096)
        matmuls = served.prefill(1, 8192).matmuls
        return float(decode.kernels), float(matmuls)

    kernels, matmuls = passes()
    assert passes(gap=0.5) == (pytest.approx(kernels / 2), matmuls)
    assert passes(matmuls=0.5) == (kernels, pytest.approx(matmuls * 2, rel=0.01))


def test_matmuls_for_ampere_reach_less_of_newer_chips() -> None:
    def prefill_s(hardware: str, *, warp_matmuls: bool) -> float:
        software = replace(BUSY, warp_matmuls=warp_matmuls)
        served = engine("llama3-8b", hardware, {}, shares=REACHED, software=software)
        return float(served.prefill(1, 4096).matmuls)

    assert prefill_s("a100:1", warp_matmuls=True) == prefill_s("a100:1", warp_matmuls=False)
    hopper = prefill_s("h100:1", warp_matmuls=False)
    assert prefill_s("h100:1", warp_matmuls=True) == pytest.approx(hopper / 0.63, rel=0.1)


def test_unfused_kernels_move_more_bytes() -> None:
    def prefill(elementwise: float) -> tuple[float, float]:
        software = replace(BUSY, elementwise=elementwise)
        served = engine("llama3-70b", "h100:8", EIGHT, shares=REACHED, software=software)
        passed = served.prefill(1, 4096)
        return float(passed.elementwise), float(passed.matmuls)

    fused, matmuls = prefill(1.0)
    assert prefill(4.0) == (pytest.approx(4 * fused), matmuls)


def test_sums_in_16_bits_are_twice_as_fast_on_geforce() -> None:
    def prefill_s(hardware: str, *, half_sums: bool) -> float:
        software = replace(BUSY, half_sums=half_sums)
        served = engine("llama3-8b", hardware, {}, shares=REACHED, software=software)
        return float(served.prefill(1, 4096).matmuls)

    geforce = prefill_s("rtx-4090:1", half_sums=False)
    assert prefill_s("rtx-4090:1", half_sums=True) == pytest.approx(geforce / 2, rel=0.05)
    server = prefill_s("a100:1", half_sums=False)
    assert prefill_s("a100:1", half_sums=True) == pytest.approx(server, rel=0.01)


def test_widened_weights_have_a_factor_of_their_own() -> None:
    def prefill_s(weights: str, narrow: float) -> float:
        job = Serve(context=8192, weights=weights)
        software = replace(BUSY, narrow=narrow)
        served = engine("llama3-8b", "a100:1", {}, job, shares=REACHED, software=software)
        return float(served.prefill(1, 8192).matmuls)

    assert prefill_s("int4", 0.5) == pytest.approx(prefill_s("int4", 1.0) * 2, rel=0.05)
    assert prefill_s("int8", 0.5) == prefill_s("int8", 1.0)


def test_stages_work_on_chunks_of_a_prompt_at_once() -> None:
    def prompt_s(max_tokens: int) -> float:
        software = replace(BUSY, max_tokens=max_tokens)
        served = engine("llama3-8b", "h100:4", {"pipe": 4}, shares=REACHED, software=software)
        return float(prompts_s(served, 1, 2048))

    # Of 4 stages, each of 4 chunks passes all: 7 chunk times instead of 16.
    assert prompt_s(512) == pytest.approx(prompt_s(2048) * 7 / 16)
    assert prompt_s(8192) == pytest.approx(prompt_s(2048))
    served = engine("llama3-8b", "h100:1", {}, shares=REACHED, software=BUSY)
    assert float(prompts_s(served, 1, 2048)) == float(served.prefill(1, 2048).step_s)


def test_a_gpu_without_matrix_units_has_no_tile_of_rows() -> None:
    def flops_share(hardware: str) -> float:
        """Rate of the matmuls of one sequence, relative to those of 128."""
        served = engine("llama3-8b", hardware, {}, INT4, shares=REACHED, software=BUSY)
        chip = served.rates.chip
        matmul = served.program.matmuls[0]
        one, many = (served.rates.matmul(matmul, n, served.mesh, 1.0).flops_per_s for n in (1, 128))
        assert chip.vector_flops_per_s
        return float(one) / float(many)

    assert flops_share("m2-ultra:1") > 0.4
    assert flops_share("rtx-4090:1") < 0.2
