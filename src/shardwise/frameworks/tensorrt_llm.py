"""TensorRT-LLM: the YAML file of `trtllm-serve MODEL --config`, the fields of `LlmArgs`.

`tensor_parallel_size` counts all ranks of a layer. With `enable_attention_dp` each of them has its
own sequences, and attention is not sharded. https://nvidia.github.io/TensorRT-LLM
"""

from __future__ import annotations

from shardwise.errors import BadFile
from shardwise.frameworks import engine_layout
from shardwise.frameworks.engine_layout import Values
from shardwise.frameworks.exported import Engine, Framework, Settings, Written, setting
from shardwise.frameworks.launch import ServingLaunch
from shardwise.frameworks.shell_script import words_of
from shardwise.frameworks.watched import as_watched

COMMAND = "trtllm-serve"
BUILD = "trtllm-build"  # of an engine, from what convert_checkpoint.py or quantize.py has written
BENCH = "trtllm-bench"
DEFAULT_BATCH = 2048  # max_batch_size of a rank
_KV = {"bf16": "auto", "fp8": "fp8"}


def write(engine: Engine) -> Written:
    """The file of an engine."""
    engine_layout.check(engine, "tensorrt-llm", "trtllm")
    layout, mesh = engine.layout, engine.layout.mesh
    tensor, groups = mesh["tensor"], mesh["expert"]
    method, notes = engine_layout.quantization(engine)
    if method:
        notes.append(f"weights in {method}: load a checkpoint that is quantized so.")
    settings: Settings = {
        "tensor_parallel_size": tensor * groups,
        "pipeline_parallel_size": mesh["pipe"],
        "enable_attention_dp": groups > 1,
        "max_batch_size": -(-engine.batch // groups),
        "max_seq_len": engine.longest_context,
        "max_num_tokens": engine_layout.chunk(engine),
        "enable_chunked_prefill": True,
        "kv_cache_config": {
            "dtype": engine_layout.kv_dtype(engine, "tensorrt-llm", _KV),
            "enable_block_reuse": engine.plan.workload.cached > 0,
        },
    }
    if engine.is_moe:
        shards = layout.expert_tensor or tensor
        settings["moe_expert_parallel_size"] = groups * (tensor // shards)
        settings["moe_tensor_parallel_size"] = shards
    if engine.nodes.chips:
        settings["gpus_per_node"] = engine.nodes.chips
    if engine.part:
        settings["cache_transceiver_config"] = {"backend": "DEFAULT"}
        notes.append(f"this engine is for {engine.part}: name it so to trtllm-serve disaggregated.")
    repository = engine_layout.repository(engine)
    notes.append(f"the model, {repository}: an argument of trtllm-serve.")
    return Written(
        settings=settings,
        notes=[*notes, *engine_layout.notes_of(engine)],
        command=f"trtllm-serve {repository} --config FILE",
    )


def read(settings: Settings) -> ServingLaunch:
    """The engine of a file; some launchers keep fields of `LlmArgs` in `llm_api_args`."""
    settings = as_watched(settings, {**settings, **(settings.get("llm_api_args") or {})})
    values = Values(settings, "tensorrt-llm")
    ranks = values.size("tensor_parallel_size", "tp_size", "tp")
    groups = ranks if values.get("enable_attention_dp") else 1
    degree = _expert_degree(values, ranks)
    if values.size("context_parallel_size", "cp_size") > 1:
        raise BadFile(
            f"tensorrt-llm: context_parallel_size {values.size('context_parallel_size')} shards "
            "the KV cache by Helix, which plans do not have. They have tensor, expert and pipe."
        )
    if ranks % degree:
        raise BadFile(
            f"tensorrt-llm: moe_expert_parallel_size {degree} does not divide "
            f"tensor_parallel_size {ranks}. Write one that divides it."
        )
    tensor = ranks // groups
    expert_tensor, expert_note = engine_layout.expert_shards(degree, tensor, groups)
    per_rank = values.number("max_batch_size")
    drafted = engine_layout.drafted_tokens(
        values.get("speculative_config"), "max_draft_len", "num_nextn_predict_layers"
    )
    model, dtype = engine_layout.quantized_repository(values.text("model") or _model(settings))
    cache = str(setting(settings, "kv_cache_config.dtype") or values.get("kv_cache_dtype"))
    return ServingLaunch(
        sizes={
            "tensor": tensor,
            "expert": groups,
            "pipe": values.size("pipeline_parallel_size", "pp_size", "pp"),
        },
        fill="data",
        batch=per_rank * groups if per_rank else None,
        default_batch=lambda _: DEFAULT_BATCH * groups,
        context=values.number("max_seq_len"),
        chunk=values.number("max_num_tokens"),
        weights=_weights(settings, values) or dtype,
        kv="fp8" if cache == "fp8" else "bf16",  # "auto" is the dtype of activations
        expert_tensor=expert_tensor,
        expert_note=expert_note,
        ignored=values.unread_beside_drafts(("speculative_config",), drafted),
        notes=engine_layout.draft_notes(drafted),
        drafted=drafted,
        model=model,
    )


def _expert_degree(values: Values, ranks: int) -> int:
    """Ranks with different experts; of the two sizes of experts, one follows from the other."""
    shards = values.number("moe_tensor_parallel_size")
    names = ("moe_expert_parallel_size", "ep_size", "ep")
    if values.number(*names) is None and shards and shards > 0 and ranks % shards == 0:
        return ranks // shards
    return values.size(*names)


def _weights(settings: Settings, values: Values) -> str | None:
    """The dtype of weights: of the file, or of what the checkpoint of a build is made by."""
    if values.get("use_fp8") or str(values.get("qformat")).startswith("fp8"):
        return "fp8"
    return engine_layout.weights_dtype(setting(settings, "quant_config.quant_algo"))


def knows(settings: Settings) -> int:
    """How many options are TensorRT-LLM's."""
    names = (
        "tensor_parallel_size", "pipeline_parallel_size", "enable_attention_dp", "max_batch_size",
        "max_seq_len", "max_num_tokens", "kv_cache_config", "moe_expert_parallel_size",
        "cuda_graph_config", "tp_size", "pp_size", "ep_size", "backend", "llm_api_args",
        "kv_cache_free_gpu_mem_fraction", "kv_cache_free_gpu_memory_fraction",
    )  # fmt: skip
    count = Values(settings, "tensorrt-llm").count(names)
    if {COMMAND, BUILD, BENCH} & {*words_of(settings)} or settings.get("-m") == "dynamo.trtllm":
        return 5 + count
    has_dashes = any("-" in key for key in settings)
    return 0 if has_dashes else count


def _model(settings: Settings) -> str | None:
    """The model that a script serves: `trtllm-serve [serve] MODEL`, `trtllm-bench -m MODEL`."""
    words = words_of(settings)
    if BENCH in words and "-m" in settings:
        return str(settings["-m"])
    if COMMAND not in words:
        return None
    after = [word for word in words[words.index(COMMAND) + 1 :] if word != "serve"]
    return after[0] if after and not after[0].startswith("$") else None


FRAMEWORK = Framework(
    name="tensorrt-llm",
    title="TensorRT-LLM",
    work="serve",
    suffix=".yaml",
    as_of="1.2.1, 2026-11",
    write=write,
    read=read,
    knows=knows,
)
