"""Predictions of published serving runs: engines, intervals, and what does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from shardwise.errors import DoesNotFit
from shardwise.estimate.serving.launches import INDEXER, LATENT_ATTENTION, kernel_launches
from shardwise.estimate.serving.load import decode_load
from shardwise.estimate.serving.overhead import ENGINES
from shardwise.estimate.serving.spread import SPREADS, UNKNOWN_SPREADS
from shardwise.validate import ServeRun
from shardwise.validate.serving.predict import job_of, predict
from shardwise.validate.serving.runs import read
from tests.unit.validate.serving_record import serving


def served(**changes: Any) -> ServeRun:
    run = read(serving(**changes))
    assert isinstance(run, ServeRun), run
    return run


def test_a_run_is_predicted_for_its_engine() -> None:
    assert job_of(served()).engine == "vllm"
    assert job_of(served(framework="someone's own")).engine == "unknown"
    vllm = predict(served())["ttft_s"].expected
    sglang = predict(served(framework="SGLang 0.5"))["ttft_s"].expected
    assert ENGINES["sglang"].request_s > ENGINES["vllm"].request_s
    assert sglang > vllm


@pytest.mark.parametrize(
    ("framework", "spreads"), [("vLLM 0.19.0", SPREADS), ("someone's own", UNKNOWN_SPREADS)]
)
def test_intervals_go_by_kind_and_engine(framework: str, spreads: dict[str, float]) -> None:
    figures = predict(served(framework=framework))
    kinds = {"ttft_s": "ttft", "tpot_s": "decode", "tokens_per_s": "throughput"}
    assert figures.keys() == kinds.keys()
    for metric, kind in kinds.items():
        figure = figures[metric]
        assert figure.upper / figure.expected == pytest.approx(1 + spreads[kind])
        assert figure.expected / figure.lower == pytest.approx(1 + spreads[kind])


def test_a_server_that_looks_for_requests_less_often_answers_later() -> None:
    usual = predict(served())
    rare = predict(served(server={"poll_passes": 31}))
    assert rare["tpot_s"] == usual["tpot_s"]
    waiting_s = rare["ttft_s"].expected - usual["ttft_s"].expected
    assert waiting_s == pytest.approx(15 * usual["tpot_s"].expected)
    # The first prompt waits 10 passes, those that come in these 5: 10 x 8 users / 256 tokens.
    held = predict(served(server={"wait_passes": 10}))
    others = 10 * 8 / 256
    waiting_s = held["ttft_s"].expected - usual["ttft_s"].expected
    passes = 10 * (1 + others / 2) / (1 + others)
    assert waiting_s == pytest.approx(passes * usual["tpot_s"].expected)


def test_passes_of_fewer_tokens_delay_prompts() -> None:
    usual = predict(served())
    small = predict(served(server={"max_tokens": 256}))
    assert small["ttft_s"].expected > 1.05 * usual["ttft_s"].expected


def test_an_unknown_engine_is_farther_off() -> None:
    assert SPREADS.keys() == UNKNOWN_SPREADS.keys()
    assert all(UNKNOWN_SPREADS[kind] >= SPREADS[kind] for kind in SPREADS)
    assert UNKNOWN_SPREADS["ttft"] > SPREADS["ttft"]


def test_what_does_not_fit_is_refused() -> None:
    large = {"model": "DeepSeek-R1", "parallelism": {"tp": 1}, "hardware__count": 1}
    for changes in (
        {},
        {"phase": "decode", "batch": 1},
        {"phase": "prefill", "batch": 1, "measured": {"latency_ms": 100.0}},
        {"batch": 1, "concurrency": None},
        {"concurrency": None, "load": "saturated", "measured": {"tokens_per_s": 100.0}},
    ):
        with pytest.raises(DoesNotFit, match=r"weights of 67\d GB and one sequence .* of h100"):
            predict(served(**large, **changes))


def test_sparse_attention_launches_the_kernels_of_its_indexer() -> None:
    config = served(model="GLM-5", parallelism={"tp": 8}).config
    dense_layers, routed_layers = 3, 75
    attention = LATENT_ATTENTION + INDEXER
    expected = 4 + dense_layers * (attention + 4) + routed_layers * (attention + 9 + 3)
    assert kernel_launches(config, decode_load(1, 1000)) == expected
