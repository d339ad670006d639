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
from shardwise.validate import ServeRun, load_serving
from tests.unit.estimate.serving.engines import BUSY, REACHED, engine

EIGHT = {"tensor": 8}


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
    software = replace(UNKNOWN, request_s=0.1, hold_passes=2.0, rank_hold_passes=10.0)
    assert float(software.first_token_s(0.03)) == pytest.approx(0.1 + 2 * 0.03)
    assert float(software.first_token_s(0.03, 4)) == pytest.approx(0.1 + 12 * 0.03)
    assert float(IDEAL.first_token_s(0.03, 4)) == 0


def test_factors_scale_the_rates_of_the_chip() -> None:
    def passes(**factors: float) -> tuple[float, float, float]:
        software = replace(BUSY, **factors)
        served = engine("llama3-70b", "h100:8", EIGHT, shares=REACHED, software=software)
        decode = served.decode(16, 4096)
        matmuls = served.prefill(1, 8192).matmuls
        return float(decode.kernels), float(decode.decode_attention), float(matmuls)

    kernels, attention, matmuls = passes()
    assert passes(gap=0.5)[0] == pytest.approx(kernels / 2)
    assert passes(stream=0.5)[1] == pytest.approx(attention * 2)
    assert passes(matmuls=0.5)[2] == pytest.approx(matmuls * 2, rel=0.01)
    assert passes(grouped=0.5) == (kernels, attention, matmuls)  # no routed experts
