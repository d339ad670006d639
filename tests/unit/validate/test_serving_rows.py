"""The serving rows that come with the package: what is read from each source."""

from __future__ import annotations

import functools
import json
from fnmatch import fnmatchcase
from typing import Any

import pytest

from shardwise import units
from shardwise.hardware import chip_names
from shardwise.models import count
from shardwise.models.model import ModelConfig
from shardwise.strategy.mesh import Mesh
from shardwise.validate import ServeRun, SkippedRecord, load_serving
from shardwise.validate.records.files import DATA
from shardwise.validate.records.systems import CATALOG_NAMES
from shardwise.validate.serving.figures import METRICS
from shardwise.validate.serving.runs import read
from shardwise.validate.serving.server import ServerFlags

# Rows that state neither what was asked nor how it was split.
UNTOLD = {"mlpinf41": "lengths not stated", "jetstreampt": "lengths not stated"}
PRODUCTION = {"deepseek-prod-decode": "load not stated", "deepseek-prod-prefill": "lengths not"}

DRAFTED = [
    entry["match"]
    for entry in json.loads((DATA / "serving_stated.json").read_text())
    if entry.get("refused", "").startswith("multi-token prediction")
]


@functools.cache
def records() -> dict[str, dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((DATA / "serving.json").read_text("utf-8"))
    return {row["id"]: row for row in rows}


@functools.cache
def rows() -> dict[str, ServeRun | SkippedRecord]:
    return {row.id: row for row in load_serving()}


def known(family: str) -> bool:
    return CATALOG_NAMES.get(family, family.lower()) in chip_names()


def run_of(name: str, **changes: Any) -> ServeRun:
    """A carried row, read again with entries of it changed."""
    found = read({**records()[name], **changes})
    assert isinstance(found, ServeRun), found
    return found


def on(name: str, family: str) -> ServeRun:
    """A carried row as if its chip were another: what else it says does not follow from it."""
    return run_of(name, hardware={**records()[name]["hardware"], "family": family})


def test_every_row_is_a_run_or_has_a_reason() -> None:
    assert len(rows()) == len(records()) == 1009
    for name, row in rows().items():
        kind = name.split("-")[0]
        if not known(records()[name]["hardware"]["family"]):
            assert isinstance(row, SkippedRecord)
            assert row.kind == "unknown chip"
        elif any(fnmatchcase(name, pattern) for pattern in DRAFTED):
            assert isinstance(row, SkippedRecord)
            assert row.reason.startswith("multi-token prediction")
        elif kind in UNTOLD or name in PRODUCTION:
            assert isinstance(row, SkippedRecord)
            assert row.reason.startswith(UNTOLD.get(kind) or PRODUCTION[name])
        else:
            assert isinstance(row, ServeRun), row
            assert row.measured.keys() <= set(METRICS)
            assert all(0 < value < float("inf") for value in row.measured.values())
            assert row.mesh.n_chips == row.system.n_chips
    assert sum(any(fnmatchcase(name, pattern) for pattern in DRAFTED) for name in rows()) == 6
    assert sum(name.split("-")[0] in UNTOLD for name in rows()) + len(PRODUCTION) == 38


def test_parameters_are_those_that_the_models_are_named_after() -> None:
    named = {
        "DeepSeek-R1": 671e9, "GLM-5": 744e9, "gpt-oss-120b": 117e9, "gpt-oss-20b": 20.9e9,
        "Kimi-K2.5 (text)": 1.03e12, "Qwen3.5-397B-A17B": 397e9, "MiniMax-M2.5": 229e9,
        "Llama-4-Maverick (text)": 400e9, "Mixtral-8x7B": 46.7e9, "PaLM-540B": 540e9,
        "Qwen3-Coder-480B-A35B": 480e9, "Megatron-530B": 530e9,
    }  # fmt: skip
    found: dict[str, ModelConfig] = {}
    for name, record in records().items():
        if record["model"] in named and record["model"] not in found:
            row = read({**records()[name], "hardware": {"family": "H100", "count": 1},
                        "parallelism": {}})  # fmt: skip
            if isinstance(row, ServeRun):
                found[record["model"]] = row.config
    assert found.keys() == named.keys()
    for name, total in named.items():
        assert count.parameters(found[name]).total == pytest.approx(total, rel=0.01), name


def test_aiconfigurator_sglang() -> None:
    run = run_of("aic-deepseek-r1-h200-sglang-fp8-i1024o1024-tp8dp1ep1-c4")
    assert run.measured == {"ttft_s": pytest.approx(0.259911), "tpot_s": pytest.approx(0.0102923)}
    assert (run.mesh, run.expert_tensor) == (Mesh(tensor=8), None)
    assert (run.weights, run.kv, run.compute) == ("fp8", "bf16", "fp8")
    assert (run.batch, run.concurrency, run.prompt_tokens, run.output_tokens) == (None, 4, 922, 922)
    assert run.assumed["lengths"] == "0.9 of the nominal 1,024 and 1,024 tokens"
    assert run.assumed["kv"] == "bf16, the usual default of the framework"
    assert (run.quality, run.tier, run.framework) == ("A", "core", "SGLang 0.5.9")
    # An in-house sweep states its lengths as they are.
    sweep = run_of("aic-llama3-8b-h200-sglang-fp8-i1000o100-tp1dp1ep1-c160")
    assert (sweep.prompt_tokens, sweep.output_tokens, sweep.quality) == (1000, 100, "B")


@pytest.mark.parametrize(
    ("name", "mesh", "cut"),
    [
        ("aic-gpt-oss-120b-b200-trtllm-mxfp4-i1024o1024-tp1dp4ep4-c64", Mesh(expert=4), None),
        ("aic-gpt-oss-120b-b200-trtllm-mxfp4-i1024o1024-tp1dp4ep1-c32", Mesh(expert=4), None),
        ("aic-qwen3.5-397b-h200-sglang-fp8-i8192o1024-tp8dp1ep8-c64", Mesh(tensor=8), 1),
    ],
)
def test_aiconfigurator_shares_experts(name: str, mesh: Mesh, cut: int | None) -> None:
    run = run_of(name)
    assert (run.mesh, run.expert_tensor) == (mesh, cut)
    assert ("experts" in run.assumed) == name.endswith("tp1dp4ep1-c32")


def test_what_the_scripts_of_a_source_state() -> None:
    dated = [run for name, run in rows().items() if name.startswith("aic-minimax-m2.5-b200")]
    told = {(run.date >= "2026-04-01", run.kv) for run in dated if isinstance(run, ServeRun)}
    assert told == {(False, "bf16"), (True, "fp8")}
    llama = [run for name, run in rows().items() if name.startswith("aic-llama3-70b-")]
    assert {run.kv for run in llama if isinstance(run, ServeRun)} == {"fp8"}
    own = run_of(llama[0].id, precision={"weights": "fp8", "kv": "bf16"})
    assert own.kv == "bf16"
    held = "aic-llama3-70b-b200-trtllm-fp8-i1024o1024-tp{}dp1ep1-c4".format
    assert run_of(held(4)).server == ServerFlags(max_tokens=16384, wait_passes=20)
    few_users = "aic-qwen3.5-397b-b300-sglang-nvfp4-i1024o1024-tp4dp1ep1-c4"
    few = run_of(few_users).server
    many = run_of("aic-qwen3.5-397b-b300-sglang-nvfp4-i1024o1024-tp4dp1ep1-c16").server
    assert (few, many) == tuple(
        ServerFlags(max_tokens=32768, poll_passes=passes) for passes in (10, 30)
    )
    assert run_of(few_users, server={"poll_passes": 1}).server.poll_passes == 1
    assert run_of(few_users, server=None).server == few
    assert run_of(held(4), server={"wait_passes": 0}).server.wait_passes == 0


def test_four_bit_experts_by_chip() -> None:
    name = "aic-gpt-oss-120b-b200-trtllm-mxfp4-i1024o1024-tp1dp4ep4-c64"
    assert (run_of(name).weights, run_of(name).compute) == ("fp4", "fp8")
    assert on(name, "H200").compute == "bf16"
    assert "h200 has no 4-bit matmuls" in on(name, "H200").assumed["compute"]


def test_linear_and_sparse_attention() -> None:
    linear = run_of("aic-qwen3.5-397b-h200-sglang-fp8-i8192o1024-tp8dp1ep8-c64")
    (mamba, n), ((attention, full),) = linear.config.mambas[0], linear.config.attentions
    assert (n, full, attention.n_kv_heads, attention.d_head) == (45, 15, 2, 256)
    assert (mamba.d_inner, mamba.d_scanned, mamba.d_state) == (64 * 128, 8192 + 2 * 16 * 128, 128)
    assert "Mamba-2" in linear.assumed["linear_attention"]
    sparse = next(r for name, r in rows().items() if name.startswith("aic-glm-5-b200"))
    assert isinstance(sparse, ServeRun)
    (dense, first), (attention, rest) = sparse.config.attentions
    assert (dense.window, attention.window, first, rest) == (2048, 2048, 3, 75)
    assert attention.mla is not None
    assert "2,048 keys" in sparse.assumed["sparse"]


def test_gpt_fast() -> None:
    run = run_of("gptfast-llama2-7b-a100-80-bf16-1")
    assert (run.phase, run.batch, run.measured) == ("decode", 1, {"tokens_per_s": 104.9})
    assert run.system.chip.power_w == 330


def test_faster_transformer() -> None:
    run = run_of("ft-megatron-530b-tp16pp1-b1-i20o8")
    assert (run.mesh, run.measured) == (Mesh(tensor=16), {"latency_s": pytest.approx(0.565)})
    assert run.system.chip.need("scale_out.bytes_per_s_per_gpu_one_way") == 25e9
    memory = run_of("ft-gpt-6.7b-tp1-b64-i512o32").measured["memory_bytes"]
    assert memory == pytest.approx(41.84 * units.GiB)
    stages = [r for n, r in rows().items() if n.startswith("ft-") and "pp3" in n]
    assert {r.mesh for r in stages if isinstance(r, ServeRun)} == {Mesh(tensor=8, pipe=3)}


def test_qwen_counts_prompt_and_output() -> None:
    run = on("qwenspeed-qwen3-0.6b-bf16-i1-1gpu", "H200")
    assert run.measured == {"total_tokens_per_s": 414.17}
    assert (run.batch, run.prompt_tokens, run.output_tokens) == (1, 1, 2048)
    awq = next(name for name, r in records().items() if r["precision"]["weights"] == "awq")
    assert (on(awq, "H200").weights, on(awq, "H200").compute) == ("int4", "bf16")


def test_llama_cpp() -> None:
    run = on("llamacpp-llama3-8b-q4_k_m-rtx3070-1-decode", "A100-80")
    assert (run.weights, run.compute, run.weight_bytes) == ("int4", "fp16", 4.58 * units.GiB)
    assert (run.phase, run.prompt_tokens, run.measured) == ("decode", 0, {"tokens_per_s": 70.94})
    prefill = on("llamacpp-llama3-8b-fp16-m3max-1-prefill", "A100-80")
    assert prefill.measured == {"prefill_s": pytest.approx(1024 / 751.49)}
    assert prefill.output_tokens == 0
    staged = [r for n, r in rows().items() if n.startswith("llamacpp-") and "-a100-80-4-" in n]
    assert {r.mesh for r in staged if isinstance(r, ServeRun)} <= {Mesh(pipe=4)}


def test_jax_llm_examples() -> None:
    run = run_of("jaxllm-llama3-70b-v5e16-dp1tp16-b8-c2048")
    assert run.measured == {"tokens_per_s_per_user": 159}  # TPOT is its reciprocal
    assert (run.mesh, run.kv, run.prompt_tokens, run.output_tokens) == (
        Mesh(tensor=16),
        "int8",
        2048,
        1,
    )
    assert run.assumed["prefill_s"].startswith("left out")
    two = run_of("jaxllm-llama3-70b-v5e16-dp2tp8-b8-c2048")
    assert two.mesh == Mesh(data=2, tensor=8)
    r1 = run_of("jaxllm-deepseek-r1-v5e64-b128-c512")
    assert (r1.mesh, r1.expert_tensor) == (Mesh(tensor=64), 16)  # experts dealt out 4 ways
    assert str(r1.system.topology) == "8x8"


def test_vllm_on_tpu() -> None:
    run = run_of("tpuvllm-llama3.3-70b-v6e8-c64")
    assert run.measured == {
        "tokens_per_s": 2494.8, "ttft_s": pytest.approx(0.25104), "tpot_s": pytest.approx(0.02535)
    }  # fmt: skip
    cores = run_of("tpuvllm-qwen3-coder-480b-tpu7x-i1024o1024")
    assert (cores.mesh, cores.system.n_chips) == (Mesh(tensor=4), 4)
    assert cores.assumed["tensor"] == "4 chips, 8 devices are stated"


def test_tensorrt_llm_at_saturation() -> None:
    run = run_of("trtllm10-llama3-70b-b200-nvfp4-tp1pp1-i128o128")
    assert run.saturated
    assert (run.weights, run.kv, run.compute) == ("fp4", "fp8", "fp4")
    assert run.measured == {"tokens_per_s": 11147}
    maverick = run_of("trtllm10-llama4-maverick-h200-fp8-tp8pp1-i5000o500")
    assert (maverick.mesh, maverick.expert_tensor) == (Mesh(expert=8), None)
    assert maverick.assumed["experts"] == "spread over all 8 ranks, not stated"


def test_nim_inferencex_and_arc() -> None:
    nim = run_of("nim-llama3.3-70b-h100x2-i5000o500-c1")
    assert (nim.mesh, nim.kv, nim.concurrency) == (Mesh(tensor=2), "fp8", 1)
    assert nim.measured["tokens_per_s"] == 51.67
    trial = run_of("inferx-exp-minimax-m2.5-i1024o128-c16")
    assert (trial.mesh, trial.expert_tensor, trial.flags) == (Mesh(tensor=8), 1, ("E",))
    arc = on("vllmarc-gpt-oss-120b-i5120", "A100-80")
    assert (arc.concurrency, arc.mesh) == (20, Mesh(tensor=4))
    assert arc.measured["ttft_s"] == pytest.approx(8.6)


def test_palm() -> None:
    decode = run_of("palminf-540b-decode-abstract")
    assert (decode.measured, decode.weights) == ({"tpot_s": 0.029}, "int8")
    # 76 % of the peak is the 85.2 s that the paper's table has beside it.
    share = run_of("palminf-540b-prefill-abstract").measured["prefill_s"]
    assert share == pytest.approx(run_of("palminf-540b-prefill-b512").measured["prefill_s"], 0.005)
    steps = run_of("palminf-540b-decode-b64")
    assert steps.measured == {"tpot_s": pytest.approx(1.82 / 64)}


def test_exllama() -> None:
    run = on("exl2-llama2-13b-gptq-int4-rtx4090", "A100-80")
    assert (run.weights, run.prompt_tokens, run.output_tokens) == ("int4", 0, 1)
    assert run.assumed["prompt"] == "0 tokens, not stated"
