"""Files of engines in the parsers of vLLM and SGLang: they read the mesh of the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shardwise as sw
from shardwise.errors import BadInput
from shardwise.frameworks import registry
from tests.oracle import framework_parsers
from tests.unit.frameworks import plans

pytestmark = pytest.mark.oracle

PARTS = [(name, None) for name in plans.SERVING]
PARTS += [(name, part) for name in ("dense", "experts") for part in ("prefill", "decode")]
Answers = dict[str, dict[str, Any]]


def plan(name: str, part: str | None) -> sw.ServingPlan:
    return plans.serving(name, disaggregate=part is not None)


def has_experts(name: str) -> bool:
    return sw.model(plans.SERVING[name][0]).moe is not None


def engine(name: str, part: str | None) -> tuple[Any, int]:
    """The layout of an engine, and the sequences that it has at once."""
    strategy, estimate = plan(name, part).strategy, plan(name, part).estimate
    if part == "prefill":
        assert strategy.prefill
        return strategy.prefill, estimate.prefill.prompts
    return strategy.servers, estimate.decode.batch


def cache_ranks(name: str) -> int:
    """Ranks among which the tokens of one KV head are shared out."""
    return {"split-cache": 2, "latent-cache": 4}.get(name, 1)


def answers(framework: str, folder: Path, **faults: str) -> Answers:
    """What a parser reads in the files of all plans, and in those with a fault, name -> line."""
    requests = {}
    for name, part in PARTS:
        path = folder / f"{framework}-{name}-{part}.yaml"
        try:
            path.write_text(registry.export(plan(name, part), framework, part).text)
        except BadInput:
            continue
        requests[f"{name} {part}"] = {"file": str(path), "is_moe": has_experts(name)}
    for fault, line in faults.items():
        path = folder / f"{framework}-{fault}.yaml"
        path.write_text(registry.export(plan("dense", None), framework).text + line + "\n")
        requests[fault] = {"file": str(path), "is_moe": False}
    return framework_parsers.read(framework, requests)


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return answers(
        "vllm",
        tmp_path_factory.mktemp("vllm"),
        option="tensor-parallel-sizes: 8",
        value="tensor-parallel-size: many",
        division="decode-context-parallel-size: 3",
    )


@pytest.fixture(scope="module")
def sglang(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return answers(
        "sglang",
        tmp_path_factory.mktemp("sglang"),
        option="tp-sizes: 8",
        value="tp-size: many",
    )


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_vllm_reads_the_engine_of_the_plan(vllm: Answers, name: str, part: str | None) -> None:
    if name == "context":
        assert f"{name} {part}" not in vllm  # refused by `export`
        return
    args = vllm[f"{name} {part}"]
    servers, batch = engine(name, part)
    mesh = servers.mesh
    assert args.get("error") is None
    assert args["tensor_parallel_size"] == mesh["tensor"]
    assert args["pipeline_parallel_size"] == mesh["pipe"]
    assert args["data_parallel_size"] == mesh["expert"]
    assert args["prefill_context_parallel_size"] == mesh["context"]
    assert args["decode_context_parallel_size"] == cache_ranks(name)
    assert 0 <= args["max_num_seqs"] * mesh["expert"] - batch < mesh["expert"]
    precision = plan(name, part).strategy.precision
    assert args["quantization"] == ("fp8" if precision["weights"] == "fp8" else None)
    assert args["kv_cache_dtype"] == {"bf16": "bfloat16", "fp8": "fp8"}[precision["kv"]]
    assert args["max_model_len"] == 4096
    assert args["kv_role"] == {"prefill": "kv_producer", "decode": "kv_consumer"}.get(part or "")
    whole = (servers.expert_tensor or mesh["tensor"]) == 1 < mesh["expert"] * mesh["tensor"]
    assert args["enable_expert_parallel"] is (has_experts(name) and whole)


def test_vllm_refuses_what_it_does_not_have(vllm: Answers) -> None:
    assert vllm["option"]["error"] == "exit 2"
    assert vllm["value"]["error"] == "exit 2"
    assert "must be divisible by dcp_size=3" in vllm["division"]["error"]


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_sglang_reads_the_engine_of_the_plan(sglang: Answers, name: str, part: str | None) -> None:
    args = sglang[f"{name} {part}"]
    servers, batch = engine(name, part)
    mesh = servers.mesh
    assert args.get("error") is None
    assert args["tp_size"] == mesh["tensor"] * mesh["expert"] * mesh["context"]
    assert args["attn_dp_size"] == mesh["expert"]
    assert args["attn_cp_size"] == mesh["context"]
    assert args["enable_prefill_cp"] is (mesh["context"] > 1)
    assert args["dcp_size"] == cache_ranks(name)
    assert args["pp_size"] == mesh["pipe"]
    assert args["dp_size"] == 1
    assert args["max_running_requests"] == batch
    precision = plan(name, part).strategy.precision
    assert args["quantization"] == ("fp8" if precision["weights"] == "fp8" else None)
    assert args["kv_cache_dtype"] == {"bf16": "bf16", "fp8": "fp8_e4m3"}[precision["kv"]]
    assert args["context_length"] == 4096
    assert args["disaggregation_mode"] == (part or "null")
    if has_experts(name):
        shards = servers.expert_tensor or mesh["tensor"]
        assert args["ep_size"] == mesh["expert"] * mesh["tensor"] // shards


def test_sglang_refuses_what_it_does_not_have(sglang: Answers) -> None:
    assert sglang["option"]["error"] == "exit 2"
    assert sglang["value"]["error"] == "exit 2"
