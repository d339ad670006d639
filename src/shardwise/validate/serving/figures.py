"""Dtypes and measured values of a serving record, in SI units."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardwise import units
from shardwise.errors import BadFile, nearest
from shardwise.formulas.flops import compute_s
from shardwise.hardware import Chip
from shardwise.models.count import flops
from shardwise.models.model import ModelConfig
from shardwise.validate.records.fields import JsonReader

PHASES = ("decode", "prefill", "end-to-end")

# Name of a value in records -> (metric, factor from the value to SI units).
_FIGURES = {
    "ttft_ms": ("ttft_s", units.MS),
    "tpot_ms": ("tpot_s", units.MS),
    "latency_ms": ("latency_s", units.MS),
    "prefill_s": ("prefill_s", 1.0),
    "tokens_per_s": ("tokens_per_s", 1.0),
    "total_tokens_per_s": ("total_tokens_per_s", 1.0),
    "tokens_per_s_per_user": ("tokens_per_s_per_user", 1.0),
    # In GiB: FasterTransformer's print_mem_usage divides by 1024 three times and writes "GB".
    "memory_gb": ("memory_bytes", float(units.GiB)),
}
METRICS = tuple(metric for metric, _ in _FIGURES.values())

# Format of weights -> the dtype with about the same bytes per weight.
_WEIGHTS = {
    "nvfp4": "fp4", "mxfp4": "fp4", "awq": "int4", "gptq-int4": "int4", "q4_k_m": "int4",
    "exl2-4.0": "int4",
}  # fmt: skip

# Engines whose KV cache is in fp8 if the weights are in fp8 or NVFP4: TensorRT-LLM takes its dtype
# from the checkpoint, and ModelOpt's checkpoints say fp8. Other engines use the dtype of the
# activations.
_FP8_CACHE = ("TensorRT-LLM", "NVIDIA NIM")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dtypes:
    """Dtypes of the weights, of the KV cache, and of matmuls."""

    weights: str
    kv: str
    compute: str


def dtypes_of(record: JsonReader, framework: str, chip: Chip) -> tuple[Dtypes, dict[str, str]]:
    """Return the dtypes of a record, and the assumptions about them.

    Raises:
        BadFile: the dtype of the weights is missing or unknown.
    """
    precision = record.section("precision")
    assumed: dict[str, str] = {}
    name = precision.text("weights")
    weights = _dtype(name)
    half = "fp16" if "fp16" in (name, precision.text("compute", "")) else "bf16"
    compute, reason = _compute(precision.text("compute", name), half, chip)
    if reason:
        assumed["compute"] = f"{compute}: {reason}"
    if precision.has("kv"):
        kv = _dtype(precision.text("kv"))
    else:
        kv = half
        if framework.startswith(_FP8_CACHE) and name in ("fp8", "nvfp4"):
            kv = "fp8"
        assumed["kv"] = f"{kv}, the usual default of the framework"
    return Dtypes(weights=weights, kv=kv, compute=compute), assumed


def _dtype(name: str) -> str:
    """Return the dtype of a format of weights, or of a dtype."""
    dtype = _WEIGHTS.get(name, name)
    if dtype not in units.BYTES_PER_ELEMENT:
        formats = {*_WEIGHTS, *units.BYTES_PER_ELEMENT}
        raise BadFile(f'unknown precision: "{name}". {nearest(name, formats)}')
    return dtype


def _compute(name: str, half: str, chip: Chip) -> tuple[str, str]:
    """Return the dtype of matmuls, and the reason if it is not the record's, else ""."""
    dtype = _dtype(name)
    if dtype == "int4":
        return half, "4-bit integers are widened before each matmul"
    if dtype != "fp4":
        return dtype, ""
    if "fp4" not in chip.peak_flops_per_s:
        return half, f"{chip.name} has no 4-bit matmuls; weights are widened"
    # vLLM and TensorRT-LLM multiply the MXFP4 experts of gpt-oss with MXFP8 activations.
    if name == "mxfp4":
        return "fp8", "MXFP4 experts are multiplied with MXFP8 activations"
    return dtype, ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """The requests of a measurement.

    Args:
        phase: One of `PHASES`.
        batch: Sequences that start and run together, or None.
        concurrency: Constant number of requests in flight, or None.
        prompt_tokens: Tokens per prompt; under "decode" tokens that are in the cache already.
        output_tokens: Tokens per answer; 0 under "prefill".
    """

    phase: str
    batch: int | None
    concurrency: int | None
    prompt_tokens: int
    output_tokens: int


def measured_of(
    record: JsonReader, requests: Requests, config: ModelConfig, chip: Chip, n_chips: int
) -> tuple[dict[str, float], dict[str, str]]:
    """Return measured values by metric, in SI units, and the assumptions about them.

    Under "prefill", every value is converted to `prefill_s`. Under "decode", a latency is the time
    of all output tokens, and is converted to `tpot_s`. If a rate per user and its reciprocal
    `tpot_s` are both stated, only the rate is kept.

    Raises:
        BadFile: no metric follows from the published values.
    """
    measured = record.section("measured")
    assumed: dict[str, str] = {}
    metrics = {}
    for name, (metric, factor) in _FIGURES.items():
        value = measured.optional_number(name)
        if value is not None:
            metrics[metric] = value * factor
    mfu = measured.optional_number("mfu")
    if requests.phase == "prefill":
        n_tokens = requests.prompt_tokens * (requests.batch or requests.concurrency or 1)
        if mfu and not metrics:
            flops_per_token = float(flops(config, requests.prompt_tokens).forward)
            peak = chip.need("peak.bf16")
            metrics["prefill_s"] = compute_s(n_tokens * flops_per_token, n_chips, peak, mfu)
            assumed["prefill_s"] = f"follows from an MFU of {mfu:g} of the bf16 peak"
        metrics = _prefill_metrics(metrics, n_tokens)
    if requests.phase == "decode":
        _convert_decode(metrics, requests, assumed)
    if not metrics:
        raise BadFile(f"no figure: measured is {', '.join(measured.data) or 'nothing'}.")
    return metrics, assumed


def _prefill_metrics(metrics: dict[str, float], n_tokens: int) -> dict[str, float]:
    """Return `prefill_s` from the metrics of a run over `n_tokens` prompt tokens."""
    if "latency_s" in metrics:
        return {"prefill_s": metrics["latency_s"]}
    if "tokens_per_s" in metrics:
        return {"prefill_s": n_tokens / metrics["tokens_per_s"]}
    return metrics


def _convert_decode(metrics: dict[str, float], requests: Requests, assumed: dict[str, str]) -> None:
    """Convert the metrics of a run of decode steps, in place."""
    if "latency_s" in metrics:
        metrics["tpot_s"] = metrics.pop("latency_s") / requests.output_tokens
        assumed["tpot_s"] = f"latency over {requests.output_tokens} tokens"
    user_rate = metrics.get("tokens_per_s_per_user")
    tpot_s = metrics.get("tpot_s")
    if user_rate and tpot_s and math.isclose(user_rate * tpot_s, 1, rel_tol=1e-3):
        del metrics["tpot_s"]
    if metrics.pop("prefill_s", None):
        assumed["prefill_s"] = "left out: the length of the prompts behind it is not stated"
