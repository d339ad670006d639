"""Predictions of serving beside those of aiconfigurator, on the published rows that both answer.

    python bench/peers.py [--python INTERPRETER] [--every N]

aiconfigurator (PyPI, Apache-2.0) may be installed for another interpreter than Shardwise:
`--python` names it. Where it is not installed, the script says so and ends. Only its function for
one estimate is used, `cli_estimate` in the mode "agg", with the row's lengths, concurrency, layout
and dtypes; a row that its operator tables do not cover is asked again in its mode "HYBRID", which
fills the gaps by formulas. Most of the rows come from its own collection of published runs, so it
may have been made with them in sight. Prints the median errors of TPOT and TTFT by engine, the
seconds of an answer, and as the last line one JSON document.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from shardwise.errors import ShardwiseError
from shardwise.estimate.serving.overhead import published_engine
from shardwise.validate.records.files import DATA, read_records
from shardwise.validate.records.scoring import is_calibration_group
from shardwise.validate.serving.predict import predict
from shardwise.validate.serving.runs import ServeRun, read

ENGINES = ("vllm", "sglang", "trtllm")
SYSTEMS = {"h100": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm", "b300": "b300_sxm"}
# Name of a model in the records -> dtype of its weights -> model of aiconfigurator; "" for others.
MODELS = {
    "DeepSeek-R1": {"": "deepseek-ai/DeepSeek-R1"},
    "gpt-oss-120b": {"": "openai/gpt-oss-120b"},
    "GLM-5": {"fp4": "nvidia/GLM-5-NVFP4", "": "zai-org/GLM-5-FP8"},
    "Kimi-K2.5 (text)": {"fp4": "nvidia/Kimi-K2.5-NVFP4", "": "moonshotai/Kimi-K2.5"},
    "Llama-3.x-70B": {"": "meta-llama/Meta-Llama-3.1-70B"},
    "Llama-3.x-8B": {"": "meta-llama/Meta-Llama-3.1-8B"},
    "MiniMax-M2.5": {"fp4": "nvidia/MiniMax-M2.5-NVFP4", "": "MiniMaxAI/MiniMax-M2.5"},
    "Qwen3-235B-A22B": {"fp8": "Qwen/Qwen3-235B-A22B-FP8", "": "Qwen/Qwen3-235B-A22B"},
    "Qwen3-32B": {"fp8": "Qwen/Qwen3-32B-FP8", "": "Qwen/Qwen3-32B"},
    "Qwen3.5-397B-A17B": {"": "Qwen/Qwen3.5-397B-A17B"},
}
# Models whose file does not state the dtype of these rows' weights.
PLAIN = ("Llama-3.x-70B", "Llama-3.x-8B", "Qwen3.5-397B-A17B")
MATMULS = {"fp8": "fp8", "fp4": "nvfp4", "bf16": "bfloat16"}

# Runs under the other interpreter: reads calls from stdin, writes one answer per line.
WORKER = """
import json, logging, os, sys, time
logging.disable(logging.CRITICAL)
from aiconfigurator.cli.api import cli_estimate
answers, sys.stdout = sys.stdout, open(os.devnull, "w")
for line in sys.stdin:
    call = json.loads(line)
    start = time.perf_counter()
    for mode in ("SILICON", "HYBRID"):
        try:
            estimate = cli_estimate(**call, database_mode=mode)
            answer = {"ttft_s": estimate.ttft / 1e3, "tpot_s": estimate.tpot / 1e3, "mode": mode}
            break
        except Exception as error:
            answer = {"problem": f"{type(error).__name__}: {error}"[:200]}
    answer["seconds"] = time.perf_counter() - start
    print(json.dumps(answer), file=answers, flush=True)
"""


def call_of(run: ServeRun, model: str) -> dict[str, Any] | None:
    """Arguments of `cli_estimate` for a run; None if it has no such model, chip or engine."""
    engine = published_engine(run.framework).name
    models = MODELS.get(model)
    system = SYSTEMS.get(run.system.chip.name)
    if engine not in ENGINES or models is None or system is None or not run.concurrency:
        return None
    mesh = run.mesh
    call = {
        "model_path": models.get(run.weights, models[""]),
        "system_name": system,
        "backend_name": engine,
        "isl": run.prompt_tokens,
        "osl": run.output_tokens,
        # Of one rank of data-parallel attention.
        "batch_size": max(1, round(run.concurrency / (mesh.data * mesh.expert))),
        "tp_size": mesh.tensor,
        "pp_size": mesh.pipe,
        "attention_dp_size": mesh.expert,
    }
    if run.config.is_moe:
        call["moe_tp_size"] = run.expert_tensor or mesh.tensor
        call["moe_ep_size"] = mesh.tensor * mesh.expert // call["moe_tp_size"]
    if model in PLAIN and run.weights in MATMULS:
        call["gemm_quant_mode"] = MATMULS[run.weights]
        if run.config.is_moe:
            call["moe_quant_mode"] = MATMULS[run.weights]
    if run.kv in ("fp8", "bf16"):
        call["kvcache_quant_mode"] = {"fp8": "fp8", "bf16": "bfloat16"}[run.kv]
    return call


def rows(every: int) -> list[tuple[ServeRun, dict[str, Any]]]:
    """One in `every` runs with TPOT and TTFT, and how aiconfigurator is called for it."""
    result = []
    for position, record in enumerate(read_records(DATA / "serving.json")):
        run = read(record, position)
        if not isinstance(run, ServeRun) or run.tier != "core" or run.quality not in "AB":
            continue
        call = call_of(run, str(record["model"]))  # type: ignore[index]
        if call and {"ttft_s", "tpot_s"} <= run.measured.keys():
            result.append((run, call))
    return result[::every]


def theirs(python: str, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answers of aiconfigurator, in the order of the calls."""
    lines = "".join(json.dumps(call) + "\n" for call in calls)
    done = subprocess.run(
        [python, "-c", WORKER], input=lines, capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def ours(run: ServeRun) -> dict[str, Any]:
    """Our answer for a run."""
    start = time.perf_counter()
    try:
        figures = predict(run)
    except ShardwiseError as error:
        return {"problem": str(error), "seconds": time.perf_counter() - start}
    seconds = time.perf_counter() - start
    return {**{name: figures[name].expected for name in ("ttft_s", "tpot_s")}, "seconds": seconds}


def summary(pairs: list[tuple[ServeRun, dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    """Median errors and seconds of both, on runs with (our answer, their answer)."""
    result: dict[str, Any] = {"n": len(pairs)}
    for side, index in (("ours", 1), ("theirs", 2)):
        for metric in ("tpot_s", "ttft_s"):
            errors = [abs(pair[index][metric] / pair[0].measured[metric] - 1) for pair in pairs]
            result[f"{side}_{metric}"] = statistics.median(errors)
        result[f"{side}_seconds"] = statistics.median(pair[index]["seconds"] for pair in pairs)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="interpreter of aiconfigurator")
    parser.add_argument("--every", type=int, default=1, help="take one row in N")
    options = parser.parse_args()
    probe = [options.python, "-c", "import aiconfigurator"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        print(f"skipped: {options.python} has no aiconfigurator. Install it, or name its --python.")
        print(json.dumps({"skipped": True}))
        return
    asked = rows(options.every)
    answers = theirs(options.python, [call for _, call in asked])
    pairs = []
    problems: dict[str, str] = {}
    for (run, _), answer in zip(asked, answers, strict=True):
        own = ours(run)
        if "problem" in answer or "problem" in own:
            problems[run.id] = answer.get("problem") or own["problem"]
        else:
            pairs.append((run, own, answer))
    by_name = {}
    for engine in ENGINES:
        by_name[engine] = [p for p in pairs if published_engine(p[0].framework).name == engine]
    by_name["all"] = pairs
    by_name["held back"] = [p for p in pairs if not is_calibration_group(p[0].group)]
    result = {name: summary(some) for name, some in by_name.items() if some}
    print(f"{len(asked)} rows asked, {len(pairs)} answered by both")
    print(f"{'':10} {'rows':>5} {'TPOT':>15} {'TTFT':>15} {'seconds':>17}")
    print(f"{'':10} {'':5} {'ours  theirs':>15} {'ours  theirs':>15} {'ours   theirs':>17}")
    for name, row in result.items():
        print(
            f"{name:10} {row['n']:5}"
            f" {row['ours_tpot_s']:7.1%} {row['theirs_tpot_s']:7.1%}"
            f" {row['ours_ttft_s']:7.1%} {row['theirs_ttft_s']:7.1%}"
            f" {row['ours_seconds']:8.3f} {row['theirs_seconds']:8.3f}"
        )
    modes = [answer.get("mode") for answer in answers]
    print(json.dumps({**result, "hybrid": modes.count("HYBRID"), "not_answered": problems}))


if __name__ == "__main__":
    main()
