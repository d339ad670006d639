"""What a search for an engine proposes, the engine's exporter writes."""

from __future__ import annotations

import pytest

import shardwise as sw
from shardwise.errors import BadInput, NoPlan
from shardwise.frameworks import registry

EXPORTERS = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
MODELS = {
    "llama3-8b": "bf16", "llama3-70b": "bf16", "mixtral-8x7b": "bf16", "qwen3-235b-a22b": "fp8",
    "deepseek-v3": "fp8",
}  # fmt: skip
MACHINES = ("h100:8", "h200:8", "h100:16", "gb200:72")
JOBS = {"throughput": {}, "fast": {"tpot_s": 0.02}, "rate": {"rate": 2.0}}


@pytest.mark.parametrize("engine", EXPORTERS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("machine", MACHINES)
def test_every_plan_for_an_engine_is_exported_to_it(machine: str, model: str, engine: str) -> None:
    dtype = MODELS[model]
    for bounds in JOBS.values():
        job = sw.Serve(
            prompt=2048,
            output=512,
            engine=engine,
            weights=dtype,
            kv=dtype,
            compute=dtype,
            **bounds,  # type: ignore[arg-type]
        )
        try:
            plans = sw.search(sw.model(model), sw.hardware(machine), job)
        except NoPlan:
            continue
        for plan in plans:
            parts = ("prefill", "decode") if plan.strategy.disaggregated else (None,)
            for part in parts:
                assert registry.export(plan, EXPORTERS[engine], part)


def test_layouts_that_the_user_fixed_are_planned_and_not_exported() -> None:
    job = sw.Serve(prompt=2048, output=512, engine="trtllm")
    machine = sw.hardware("h100:8")
    plan = sw.plan(sw.model("mixtral-8x7b"), machine, job, {"tensor": 4, "expert": 2})
    with pytest.raises(BadInput, match="expert 2 with tensor 4"):
        registry.export(plan, "tensorrt-llm")


@pytest.mark.parametrize("machine", ["v6e:2x4", "v6e:4x4", "7x:2x2x2"])
@pytest.mark.parametrize("model", ["llama3-70b", "qwen3-30b-a3b"])
def test_every_plan_for_vllm_on_tpus_is_exported(machine: str, model: str) -> None:
    job = sw.Serve(prompt=8192, output=512, engine="vllm", tpot_s=0.05)
    for plan in sw.search(sw.model(model), sw.hardware(machine), job):
        for part in ("prefill", "decode") if plan.strategy.disaggregated else (None,):
            assert registry.export(plan, "vllm", part)
