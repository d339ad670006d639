"""What a serving record computes and holds in which dtype, and what it measured, in SI units."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardwise import units
from shardwise.errors import BadFile, nearest
from shardwise.formulas.flops import compute_s
from shardwise.hardware import Chip
from shardwise.models.count import flops
from shardwise.models.model import ModelConfig
from shardwise.validate.records.fields import Fields

PHASES = ("decode", "prefill", "end-to-end")

# Figures of records -> metric in SI units and the factor between them.
_FIGURES = {
    "ttft_ms": ("ttft_s", units.MS),
    "tpot_ms": ("tpot_s", units.MS),
    "latency_ms": ("latency_s", units.MS),
    "prefill_s": ("prefill_s", 1.0),
    "tokens_per_s": ("tokens_per_s", 1.0),
    "total_tokens_per_s": ("total_tokens_per_s", 1.0),
    "tokens_per_s_per_user": ("tokens_per_s_per_user", 1.0),
    # FasterTransformer's print_mem_usage divides by 1024 three times and writes GB.
    "memory_gb": ("memory_bytes", float(units.GiB)),
}
METRICS = tuple(metric for metric, _ in _FIGURES.values())

# Formats of weights -> the dtype whose bytes come nearest.
_WEIGHTS = {
    "nvfp4": "fp4", "mxfp4": "fp4", "awq": "int4", "gptq-int4": "int4", "q4_k_m": "int4",
    "exl2-4.0": "int4",
}  # fmt: skip

# TensorRT-LLM reads the dtype of the cache from the checkpoint, and ModelOpt's in fp8 and NVFP4 ask
# for fp8; other engines keep the dtype of the activations ("auto").
_FP8_CACHE = ("TensorRT-LLM", "NVIDIA NIM")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dtypes:
    """What weights and the cache are held in, and what the products are computed in."""

    weights: str
    kv: str
    compute: str


def dtypes_of(record: Fields, framework: str, chip: Chip) -> tuple[Dtypes, dict[str, str]]:
    """The dtypes of a record, and what was assumed about them.

    Raises:
        BadFile: no dtype of the weights, or one that is not known.
    """
    stated, assumed = record.inner("precision"), dict[str, str]()
    name = stated.text("weights")
    weights = _known(name)
    half = "fp16" if "fp16" in (name, stated.text("compute", "")) else "bf16"
    compute, reason = _compute(stated.text("compute", name), half, chip)
    if reason:
        assumed["compute"] = f"{compute}: {reason}"
    if stated.states("kv"):
        kv = _known(stated.text("kv"))
    else:
        kv = "fp8" if framework.startswith(_FP8_CACHE) and name in ("fp8", "nvfp4") else half
        assumed["kv"] = f"{kv}, the usual default of the framework"
    return Dtypes(weights=weights, kv=kv, compute=compute), assumed


def _known(name: str) -> str:
    dtype = _WEIGHTS.get(name, name)
    if dtype not in units.BYTES_PER_ELEMENT:
        known = {*_WEIGHTS, *units.BYTES_PER_ELEMENT}
        raise BadFile(f'unknown precision: "{name}". {nearest(name, known)}')
    return dtype


def _compute(name: str, half: str, chip: Chip) -> tuple[str, str]:
    """Dtype of the products, and why it is not the one that the record names."""
    dtype = _known(name)
    if dtype == "int4":
        return half, "4-bit integers are widened before each product"
    if dtype != "fp4":
        return dtype, ""
    if "fp4" not in chip.peak_flops_per_s:
        return half, f"{chip.name} has no 4-bit products; weights are widened"
    # vLLM and TensorRT-LLM multiply gpt-oss's MXFP4 experts with MXFP8 activations there.
    return ("fp8", "MXFP4 experts meet MXFP8 activations") if name == "mxfp4" else (dtype, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What was asked of the engine.

    Args:
        phase: One of `PHASES`.
        batch: Sequences that run together, where fixed.
        concurrency: Requests in flight, where kept up.
        prompt: Tokens of one prompt; under "decode" those in the cache before.
        output: Tokens of one answer; 0 under "prefill".
    """

    phase: str
    batch: int | None
    concurrency: int | None
    prompt: int
    output: int


def measured_of(
    record: Fields, load: Load, config: ModelConfig, chip: Chip, n_chips: int
) -> tuple[dict[str, float], dict[str, str]]:
    """Metrics of `METRICS` in SI units, and what was assumed about them.

    Under "prefill" every figure is one of the time of the prompts, under "decode" a latency is that
    of all answers. Two names for one figure (a rate per user and its reciprocal) count once.

    Raises:
        BadFile: no figure that any metric follows from.
    """
    stated, assumed = record.inner("measured"), dict[str, str]()
    values = {name: stated.maybe_number(name) for name in (*_FIGURES, "mfu")}
    found = {
        metric: value * factor
        for name, (metric, factor) in _FIGURES.items()
        if (value := values[name]) is not None
    }
    if load.phase == "prefill":
        found = _prefill(found, values["mfu"], load, config, chip, n_chips, assumed)
    if load.phase == "decode":
        _decode(found, load, assumed)
    if not found:
        raise BadFile(f"no figure: measured is {', '.join(stated.data) or 'nothing'}.")
    return found, assumed


def _prefill(
    found: dict[str, float],
    mfu: float | None,
    load: Load,
    config: ModelConfig,
    chip: Chip,
    n_chips: int,
    assumed: dict[str, str],
) -> dict[str, float]:
    tokens = load.prompt * (load.batch or load.concurrency or 1)
    if "latency_s" in found:
        return {"prefill_s": found["latency_s"]}
    if "tokens_per_s" in found:
        return {"prefill_s": tokens / found["tokens_per_s"]}
    if mfu and not found:
        work, peak = tokens * float(flops(config, load.prompt).forward), chip.need("peak.bf16")
        assumed["prefill_s"] = f"follows from an MFU of {mfu:g} of the bf16 peak"
        return {"prefill_s": compute_s(work, n_chips, peak, mfu)}
    return found


def _decode(found: dict[str, float], load: Load, assumed: dict[str, str]) -> None:
    if "latency_s" in found:
        found["tpot_s"] = found.pop("latency_s") / load.output
        assumed["tpot_s"] = f"latency over {load.output} tokens"
    rate, step = found.get("tokens_per_s_per_user"), found.get("tpot_s")
    if rate and step and math.isclose(rate * step, 1, rel_tol=1e-3):
        del found["tpot_s"]
    if found.pop("prefill_s", None):
        assumed["prefill_s"] = "left out: the length of the prompts behind it is not stated"
