"""One question has one answer, whichever verb it is put to."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from shardwise.search.serving.rule import USUAL_TTFT_S
from tests.golden.terminal import run
from tests.unit.runtime.scripts import rows

TRAINING = (
    "deepseek-v3 v5p:4x8x8 --batch 1024x4096 --dtype fp8",
    "llama3-8b v5e:4x8 --batch 128x4096 --remat full",
    "qwen3-30b-a3b h100:64 --batch 1024x4096",
)
SERVING = (
    "deepseek-v3 h200 --prompt 4096 --output 512",
    "deepseek-v3 h200:16 --prompt 4096 --output 1024 --dtype fp8 --tpot 50ms",
    "llama3-70b v5e:4x4 --context 8192",
)
RATES = (
    "deepseek-v3 h200 --prompt 4096 --output 512 --rate 10/s",
    "llama3-70b h100:8 --prompt 2048 --output 256 --rate 5/s",
    "llama3-8b v5e --prompt 2048 --output 256 --rate 20/s --ttft 1s --tpot 30ms",
)


def answer(verb: str, question: str) -> Any:
    result = run(verb, *shlex.split(question), "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)


@pytest.mark.parametrize("question", rows(TRAINING, {TRAINING[1]}))
def test_training(question: str) -> None:
    plan = answer("plan", f"{question} --train")
    (row,) = answer("sweep", f"{question} --train")["rows"]
    explained = answer("explain", question)["plan"]
    strategy = plan["strategy"]
    for other in (row, explained):
        assert other["step_s"] == plan["estimate"]["step_s"]
        for name in ("mesh", "schedule", "zero", "n_microbatches", "remat"):
            assert other[name] == strategy[name]


@pytest.mark.parametrize("question", rows(SERVING + RATES, {*SERVING[1:], *RATES[1:]}))
def test_serving(question: str) -> None:
    plan = answer("plan", f"{question} --serve")
    (row,) = answer("sweep", f"{question} --serve")["rows"]
    explanation = answer("explain", f"{question} --serve")
    (explained,) = [batch for batch in explanation["batches"] if batch["here"]]
    decode = plan["estimate"]["decode"]
    for other in (row, explanation):
        assert other["mesh"] == plan["strategy"]["mesh"]
        assert other["batch"] == decode["batch"]
    assert row["step_s"] == explained["step_s"] == decode["step_s"]
    assert explanation["disaggregated"] == plan["strategy"]["disaggregated"]
    assert row["n_chips"] == plan["strategy"]["n_chips"]
    prefill = plan["strategy"]["prefill"]
    assert row["prefill_mesh"] == (prefill and prefill["mesh"])
    traffic = plan["estimate"]["traffic"]
    assert bool(traffic) == ("--rate" in question)
    if traffic:
        assert row["tpot_s"] == traffic["tpot_s"]["p50"]
        assert row["ttft_s"] == traffic["ttft_s"]["p50"]


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(RATES[0], marks=pytest.mark.oracle),
        RATES[1],
        "llama3-8b h100:1 --prompt 40000 --output 128 --rate 0.01/s",
    ],
)
def test_bounds_typed_out_are_those_that_a_plan_assumes(question: str) -> None:
    """Everything but the rule, which says that they were assumed, and the command to type."""
    assumed = answer("plan", f"{question} --serve")
    workload = assumed["workload"]
    assert (workload["ttft_s"] > USUAL_TTFT_S) == ("40000" in question)  # then looser ones
    assert assumed["strategy"]["rule"]["usual"] == ["ttft", "tpot"]
    bounds = f"--ttft {workload['ttft_s']}s --tpot {workload['tpot_s']}s"
    typed = answer("plan", f"{question} --serve {bounds}")
    for part in ("mesh", "servers", "prefill", "n_chips", "disaggregated"):
        assert typed["strategy"][part] == assumed["strategy"][part]
    for part in ("model", "hardware", "workload", "estimate", "operations", "alternatives"):
        assert typed[part] == assumed[part]
