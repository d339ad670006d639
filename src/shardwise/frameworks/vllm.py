"""vLLM: the YAML file of `vllm serve --config`, whose keys are its options.

A rank of data parallelism has its own sequences. The ranks of data and tensor parallelism together
share the experts: whole ones under expert parallelism, else each has a slice of all.
https://docs.vllm.ai/en/latest/serving/data_parallel_deployment
"""

from __future__ import annotations

import functools
import math

from shardwise.estimate.chip_memory import capacity_bytes
from shardwise.frameworks import engine_layout
from shardwise.frameworks.chip_devices import engine_device_sizes
from shardwise.frameworks.engine_layout import Values
from shardwise.frameworks.exported import Engine, Framework, Settings, Written
from shardwise.frameworks.launch import ServingLaunch
from shardwise.frameworks.shell_script import words_of
from shardwise.hardware import Chip
from shardwise.plan.machine import system_of

_KV = {"bf16": "bfloat16", "fp16": "float16", "fp8": "fp8", "int8": "int8_per_token_head"}
# Options that change memory or speed, and that plans have no word for.
_UNREAD = (
    "gpu_memory_utilization", "kv_cache_memory_bytes", "num_gpu_blocks_override", "cpu_offload_gb",
    "speculative_config", "enforce_eager", "enable_dbo", "enable_lora", "hf_overrides",
    "enable_eplb", "num_redundant_experts",
)  # fmt: skip
LARGE_MEMORY = 70 * 1024**3  # bytes of a GPU from which vLLM runs more sequences by default
_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}


def write(engine: Engine) -> Written:
    """The file of an engine."""
    engine_layout.check(engine, "vllm", "vllm")
    chip = system_of(engine.plan.hardware).chip
    mesh = engine_device_sizes(engine.layout.mesh, chip)
    whole = engine_layout.whole_experts(engine, mesh["tensor"], mesh["expert"])
    method, notes = engine_layout.quantization(engine)
    settings: Settings = {
        "model": engine_layout.repository(engine),
        "tensor-parallel-size": mesh["tensor"],
        "pipeline-parallel-size": mesh["pipe"],
        "data-parallel-size": mesh["expert"],
        "enable-expert-parallel": whole,
        "kv-cache-dtype": engine_layout.kv_dtype(engine, "vllm", _KV),
        "max-model-len": engine.longest_context,
        "max-num-seqs": -(-engine.batch // mesh["expert"]),
        "max-num-batched-tokens": engine_layout.chunk(engine),
        "enable-chunked-prefill": True,
    }
    if engine.plan.workload.cached:
        settings["enable-prefix-caching"] = True
    if method:
        settings["quantization"] = method
    if mesh != engine.layout.mesh:
        n_devices = math.prod(mesh.values())
        notes.append(f"{engine.layout.n_chips} chips of an engine are {n_devices} devices of JAX.")
    if mesh["context"] > 1:
        settings["prefill-context-parallel-size"] = mesh["context"]
        if engine.is_moe:
            notes.append(
                f"the copy of the experts in each of {mesh['context']} ranks of context: vLLM "
                "shards experts over these ranks too."
            )
    if (ranks := engine_layout.decode_context(engine)) > 1:
        settings["decode-context-parallel-size"] = ranks
    if engine.part:
        settings["kv-transfer-config"] = (
            f'{{"kv_connector": "NixlConnector", "kv_role": "{_ROLES[engine.part]}"}}'
        )
    if engine.layout.n_chips > engine.nodes.chips:
        notes.append(
            f"an engine of {engine.layout.n_chips} GPUs spans nodes of {engine.nodes.chips}: add "
            "data-parallel-address and data-parallel-size-local, or nnodes and node-rank."
        )
    return Written(
        settings=settings,
        notes=[*notes, *engine_layout.notes_of(engine)],
        command="vllm serve --config FILE",
    )


def read(settings: Settings) -> ServingLaunch:
    """The engine of a file, or of a command `vllm serve`."""
    values = Values(settings, "vllm")
    tensor = values.size("tensor_parallel_size", "tp", "tp_size")
    ranks = values.size("data_parallel_size", "dp", "dp_size")
    whole = values.get("enable_expert_parallel", "ep") is True
    shards = values.size("decode_context_parallel_size", "dcp")
    sizes = {
        "tensor": tensor,
        "pipe": values.size("pipeline_parallel_size", "pp"),
        "context": values.size("prefill_context_parallel_size", "pcp"),
        "expert": ranks if whole else 1,
    }
    per_rank = values.number("max_num_seqs")
    speculation = values.get("speculative_config", "sc")
    drafted = engine_layout.drafted_tokens(speculation, "num_speculative_tokens")
    transfer = str(values.get("kv_transfer_config"))
    half = next((part for part, role in _ROLES.items() if role in transfer), None)
    names = {word: dtype for dtype, word in _KV.items()} | {"fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}
    kv, unread = engine_layout.kv_cache(values, names)
    model, dtype = engine_layout.quantized_repository(_model(settings, values))
    return ServingLaunch(
        sizes=sizes,
        counts_devices=True,
        fill="data",
        batch=per_rank * sizes["expert"] if per_rank else None,
        default_batch=functools.partial(_default_batch, sizes["expert"]),
        context=values.number("max_model_len"),
        chunk=values.number("max_num_batched_tokens"),
        weights=engine_layout.weights_dtype(values.get("quantization", "q")) or dtype,
        kv=kv,
        kv_split=engine_layout.kv_split(shards),
        expert_tensor=1 if whole else None,
        cache_ranks=shards,
        ignored=values.unread_beside_drafts(_UNREAD, drafted) + unread,
        notes=engine_layout.draft_notes(drafted) + engine_layout.half_notes(half),
        drafted=drafted,
        replicas=1 if whole else ranks,
        shares_experts=True,
        expert_note=_expert_note(ranks) if ranks > 1 and not whole else "",
        part=half,
        model=model,
    )


def _expert_note(ranks: int) -> str:
    return (
        f"without expert parallelism each of the {ranks} data-parallel ranks has slices of all "
        "experts. The plan gives each rank some experts, which takes as much memory and sends "
        "their tokens in other ways."
    )


def _default_batch(ranks: int, chip: Chip) -> int:
    """The default of max-num-seqs (`EngineArgs.get_batch_defaults`), of all data-parallel ranks."""
    is_large = capacity_bytes(chip) >= LARGE_MEMORY and not chip.name.startswith("a100")
    return ranks * (1024 if is_large and not chip.ici else 256)


def _model(settings: Settings, values: Values) -> str | None:
    """The model: an option, or the word after `serve`."""
    named = values.text("model", "model_tag")
    words = words_of(settings)
    if named is None and "serve" in words[:-1]:
        return str(words[words.index("serve") + 1])
    return named


def knows(settings: Settings) -> int:
    """How many options are vLLM's alone, or twice so many words of its command."""
    names = (
        "tensor_parallel_size", "pipeline_parallel_size", "max_model_len", "max_num_seqs",
        "max_num_batched_tokens", "gpu_memory_utilization", "enable_expert_parallel",
        "kv_cache_dtype", "data_parallel_size",
    )  # fmt: skip
    words = [str(settings.get("-m")), *words_of(settings)]
    is_server = any(word in ("vllm", "dynamo.vllm") or word.startswith("vllm.") for word in words)
    return Values(settings, "vllm").count(names) + 5 * is_server


FRAMEWORK = Framework(
    name="vllm",
    title="vLLM",
    work="serve",
    suffix=".yaml",
    as_of="0.33.0, 2026-11",
    write=write,
    read=read,
    knows=knows,
    tpus=True,
)
