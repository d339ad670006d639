"""Dtypes of matmuls that a plan assumes, and what follows from them."""

from __future__ import annotations

import pytest

import shardwise as sw
from shardwise.plan.serving.time_parts import usual_compute


@pytest.mark.parametrize(
    ("weights", "chip", "compute"),
    [
        ("mxfp4", "b200", "fp8"),
        ("mxfp4", "h200", "bf16"),
        ("fp4", "b200", "fp4"),
        ("int4", "b200", "bf16"),
        ("fp8", "h100", "fp8"),
        ("bf16", "cpu", "fp32"),
    ],
)
def test_dtype_of_matmuls(weights: str, chip: str, compute: str) -> None:
    assert usual_compute(weights, sw.chip(chip)) == compute


def test_a_chip_with_more_of_everything_is_not_slower() -> None:
    steps = []
    for chip in ("h200", "b200"):
        job = sw.Serve(
            prompt=2048, output=512, batch=768, weights="mxfp4", kv="bf16", engine="vllm",
            compute=usual_compute("mxfp4", sw.chip(chip)),
        )  # fmt: skip
        plan = sw.plan(sw.model("gpt-oss-120b"), sw.hardware(f"{chip}:8"), job, {"expert": 4})
        steps.append((plan.estimate.prefill.step_s.expected, plan.estimate.decode.step_s.expected))
    assert steps[1][0] < steps[0][0]
    assert steps[1][1] < steps[0][1]
