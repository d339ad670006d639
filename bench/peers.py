"""Predictions of serving beside those of aiconfigurator, on the published rows that both answer.

    python bench/peers.py [--python INTERPRETER] [--seconds S] [--write]

aiconfigurator (PyPI, Apache-2.0) may be installed for another interpreter than Shardwise:
`--python` names it. Where it is not installed, the script says so and ends. Only its function for
one estimate is used, `cli_estimate` in the mode "agg", with the row's lengths, concurrency, layout
and dtypes; a row that its operator tables do not cover is asked again in its mode "HYBRID", which
fills the gaps by formulas. Most of the rows come from its own collection of published runs, so it
may have been made with them in sight.

An answer takes seconds. Each is kept in `bench/peers.json` as soon as it is there, with the
arguments of the call; only calls that were not answered yet are made, for `--seconds` at most (0:
compare those that were answered). Prints the errors of TPOT and TTFT by engine and the seconds of
an answer; `--write` puts the table into `docs/peers.md`. The last line is one JSON document.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kept import cells, write_between

from shardwise.errors import ShardwiseError
from shardwise.estimate.serving.overhead import published_engine
from shardwise.validate.records.files import DATA, read_records
from shardwise.validate.records.scoring import is_calibration_group
from shardwise.validate.serving.predict import predict
from shardwise.validate.serving.runs import ServeRun, read

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "bench" / "peers.json"
PAGE = ROOT / "docs" / "peers.md"
METRICS = ("tpot_s", "ttft_s")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A published run, the call of aiconfigurator for it, and both answers.

    Args:
        theirs: `ttft_s`, `tpot_s`, `mode` and `seconds`, or `problem` and `seconds`; None if the
            call was not made yet.
        ours: `ttft_s`, `tpot_s` and `seconds`, or `problem` and `seconds`.
    """

    run: ServeRun
    call: dict[str, Any]
    theirs: dict[str, Any] | None = None
    ours: dict[str, Any]

    @property
    def both(self) -> bool:
        """Whether both answer."""
        return self.theirs is not None and not ("problem" in self.theirs or "problem" in self.ours)


def calls() -> list[tuple[ServeRun, dict[str, Any]]]:
    """All runs with TPOT and TTFT, and how aiconfigurator is called for each."""
    result = []
    for position, record in enumerate(read_records(DATA / "serving.json")):
        run = read(record, position)
        if not isinstance(run, ServeRun) or run.tier != "core" or run.quality not in "AB":
            continue
        call = call_of(run, str(record["model"]))  # type: ignore[index]
        if call and {*METRICS} <= run.measured.keys():
            result.append((run, call))
    return sorted(result, key=lambda pair: (pair[1]["system_name"], pair[1]["backend_name"]))


def key_of(call: dict[str, Any]) -> str:
    """A call as one text, the same for equal calls."""
    return json.dumps(call, sort_keys=True)


def ask(python: str, asked: Sequence[dict[str, Any]], kept: dict[str, Any], seconds: float) -> None:
    """Have calls answered, and keep each answer at once, until `seconds` are over."""
    start = time.perf_counter()
    command = [python, "-c", WORKER]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    # A worker that has ended reads no further call.
    with contextlib.suppress(BrokenPipeError), subprocess.Popen(command, **pipes) as worker:
        assert worker.stdin
        assert worker.stdout
        for call in asked:
            if time.perf_counter() - start > seconds:
                break
            worker.stdin.write(json.dumps(call) + "\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
            if not line:
                break  # the worker has ended
            kept[key_of(call)] = json.loads(line)
            KEPT.write_text(json.dumps(kept, indent=0, sort_keys=True) + "\n")
        worker.stdin.close()


def ours(run: ServeRun) -> dict[str, Any]:
    """Our answer for a run."""
    start = time.perf_counter()
    try:
        figures = predict(run)
    except ShardwiseError as error:
        return {"problem": str(error), "seconds": time.perf_counter() - start}
    seconds = time.perf_counter() - start
    return {**{name: figures[name].expected for name in METRICS}, "seconds": seconds}


def off(predicted: float, measured: float) -> float:
    """Error as a factor either way, less 1: twice and half the measured value are both off by 1."""
    return math.exp(abs(math.log(predicted / measured))) - 1


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Median errors and seconds of both, on how many rows ours is nearer, and answers of each."""
    both = [row for row in rows if row.both]
    result: dict[str, Any] = {
        "asked": len(rows),
        "both": len(both),
        "ours_answers": sum("problem" not in row.ours for row in rows),
        "theirs_answers": sum("problem" not in (row.theirs or {"problem": ""}) for row in rows),
    }
    if not both:
        return result
    for metric in METRICS:
        errors = {}
        for side in ("ours", "theirs"):
            errors[side] = [off(getattr(r, side)[metric], r.run.measured[metric]) for r in both]
            result[f"{side}_{metric}"] = statistics.median(errors[side])
        nearer = [a < b for a, b in zip(errors["ours"], errors["theirs"], strict=True)]
        result[f"nearer_{metric}"] = sum(nearer) / len(both)
    for side in ("ours", "theirs"):
        result[f"{side}_seconds"] = statistics.median(getattr(r, side)["seconds"] for r in both)
    return result


def by_name(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Name of some rows -> summary: each engine, all, and those of groups that were not fitted."""
    parts = {
        engine: [row for row in rows if published_engine(row.run.framework).name == engine]
        for engine in ENGINES
    }
    parts["all"] = list(rows)
    parts["not fitted"] = [row for row in rows if not is_calibration_group(row.run.group)]
    return {name: summary(part) for name, part in parts.items()}


def table(result: dict[str, dict[str, Any]]) -> str:
    """The summaries as Markdown."""
    head = ("rows", "both answer", "TPOT: ours", "theirs", "nearer", "TTFT: ours", "theirs")
    lines = [cells(("", *head, "nearer", "seconds: ours", "theirs"))]
    lines.append("|---" * (len(head) + 4) + "|")
    for name, row in result.items():
        values = [f"{row['asked']}", f"{row['both']}"]
        if row["both"]:
            for metric in METRICS:
                values += [f"{row[f'{side}_{metric}']:.1%}" for side in ("ours", "theirs")]
                values.append(f"{row[f'nearer_{metric}']:.0%}")
            values += [f"{row[f'{side}_seconds']:.2f}" for side in ("ours", "theirs")]
        lines.append(cells((name, *values)))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="interpreter of aiconfigurator")
    parser.add_argument("--seconds", type=float, default=math.inf, help="most seconds of calls")
    parser.add_argument("--write", action="store_true", help="write the table into docs/peers.md")
    options = parser.parse_args()
    pairs = calls()
    kept: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    missing = [call for _, call in pairs if key_of(call) not in kept]
    if missing and options.seconds > 0:
        probe = [options.python, "-c", "import aiconfigurator"]
        if subprocess.run(probe, capture_output=True, check=False).returncode:
            print(f"skipped: {options.python} has no aiconfigurator; name its --python.")
            print(json.dumps({"skipped": True}))
            return
        ask(options.python, missing, kept, options.seconds)
    missing = [call for _, call in pairs if key_of(call) not in kept]
    if missing:
        print(f"{len(pairs) - len(missing)} of {len(pairs)} calls are answered: run it again.")
    if missing and options.seconds > 0:
        print(json.dumps({"waiting": len(missing)}))
        return
    rows = [
        Row(run=run, call=call, theirs=kept[key_of(call)], ours=ours(run))
        for run, call in pairs
        if key_of(call) in kept
    ]
    result = by_name(rows)
    text = table(result)
    print(text)
    if options.write:
        counted = f"{len(rows)} of {len(pairs)} rows have been asked."
        write_between("bench/peers.py", f"{counted}\n\n{text}", PAGE)
    refused: dict[str, str] = {}
    for row in rows:
        if not row.both:
            refused[row.run.id] = (row.theirs or {}).get("problem") or row.ours.get("problem", "")
    print(json.dumps({**result, "waiting": len(missing), "not_answered": refused}))


if __name__ == "__main__":
    main()
