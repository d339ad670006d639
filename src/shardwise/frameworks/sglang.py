"""SGLang: the YAML file of `python -m sglang.launch_server --config`, whose keys are its options.

`tp-size` counts all ranks of a layer, attention's data-parallel groups included (`attn-dp-size`);
`ep-size` of them have different experts. The groups share `chunked-prefill-size` and
`max-running-requests`. https://docs.sglang.ai/advanced_features/server_arguments
"""

from __future__ import annotations

from shardwise.errors import BadFile
from shardwise.frameworks import engine_layout
from shardwise.frameworks.engine_layout import Values
from shardwise.frameworks.exported import Engine, Framework, Settings, Written
from shardwise.frameworks.launch import ServingLaunch
from shardwise.frameworks.shell_script import words_of

# Options that change memory or speed, and that plans have no word for.
_UNREAD = (
    "mem_fraction_static", "max_total_tokens", "cpu_offload_gb", "speculative_algorithm",
    "enable_two_batch_overlap", "disable_cuda_graph", "enable_lora", "ep_num_redundant_experts",
    "enable_eplb",
)  # fmt: skip
MAX_DEFAULT_REQUESTS = 4096  # of an engine: SGLang takes as many as fit, up to these
DP_SIZE = ("dp_size", "dp", "data_parallel_size")  # spellings of an option
_KV = {"bf16": "bf16", "fp8": "fp8_e4m3"}


def write(engine: Engine) -> Written:
    """The file of an engine."""
    engine_layout.check(engine, "sglang", "sglang")
    layout, mesh = engine.layout, engine.layout.mesh
    method, notes = engine_layout.quantization(engine)
    ranks = mesh["tensor"] * mesh["expert"] * mesh["context"]
    settings: Settings = {
        "model-path": engine_layout.repository(engine),
        "tp-size": ranks,
        "pp-size": mesh["pipe"],
        "attn-dp-size": mesh["expert"],
    }
    if engine.is_moe:
        settings["ep-size"] = mesh["expert"] * (
            mesh["tensor"] // (layout.expert_tensor or mesh["tensor"])
        )
    shards = engine_layout.decode_context(engine)
    if mesh["context"] > 1:
        # Groups compute copies unless prefill context parallelism is enabled.
        settings |= {
            "attn-cp-size": mesh["context"],
            "enable-prefill-cp": True,
            "cp-strategy": "zigzag",
        }
    settings |= {
        "kv-cache-dtype": engine_layout.kv_dtype(engine, "sglang", _KV),
        "context-length": engine.longest_context,
        "max-running-requests": engine.batch,
        "chunked-prefill-size": engine_layout.chunk(engine) * mesh["expert"],
    }
    if shards > 1:
        settings["dcp-size"] = shards
    if method:
        settings["quantization"] = method
    if engine.plan.workload.cached == 0:
        settings["disable-radix-cache"] = True
    if engine.part:
        settings["disaggregation-mode"] = engine.part
    if engine.layout.n_chips > engine.nodes.chips:
        settings["nnodes"] = -(-engine.layout.n_chips // engine.nodes.chips)
        notes.append("--node-rank and --dist-init-addr: of each node.")
    return Written(
        settings=settings,
        notes=[*notes, *engine_layout.notes_of(engine)],
        command="python -m sglang.launch_server --config FILE",
    )


def read(settings: Settings) -> ServingLaunch:
    """The engine of a file, or of a command `launch_server`."""
    values = Values(settings, "sglang")
    ranks = values.size("tp_size", "tp", "tensor_parallel_size")
    groups = values.size("attn_dp_size", "attention_data_parallel_size")
    if values.get("enable_dp_attention"):  # until 2026, --dp-size counted the groups
        groups = values.size(*DP_SIZE)
    context = values.size("attn_cp_size", "attention_context_parallel_size")
    if ranks % (groups * context):
        raise BadFile(
            f"sglang: tp-size {ranks} is no multiple of the {groups} x {context} groups of "
            "attention. Write a tp-size that they divide."
        )
    if context > 1 and not values.get("enable_prefill_cp"):
        raise BadFile(
            f"sglang: attn-cp-size {context} without enable-prefill-cp has {context} copies of "
            "attention, which plans do not have. Add enable-prefill-cp, or leave out attn-cp-size."
        )
    tensor = ranks // (groups * context)
    degree = values.size("ep_size", "ep", "expert_parallel_size")
    if _has_whole_experts(values):
        degree = tensor * groups
    expert_tensor, expert_note = engine_layout.expert_shards(degree, tensor, groups)
    shared = values.size("dcp_size", "decode_context_parallel_size")
    names = {word: dtype for dtype, word in _KV.items()}
    names |= {"bfloat16": "bf16", "fp8_e5m2": "fp8"}
    kv, unread = engine_layout.kv_cache(values, names)
    # A chain of so many tokens; of a tree, its depth.
    drafted = values.number("speculative_num_steps") or 0
    if not values.get("speculative_algorithm"):
        drafted = 0
    mode = values.get("disaggregation_mode")
    half = mode if mode in ("prefill", "decode") else None
    chunk = values.number("chunked_prefill_size")
    model, dtype = engine_layout.quantized_repository(values.text("model_path", "model"))
    return ServingLaunch(
        sizes={
            "tensor": tensor,
            "expert": groups,
            "context": context,
            "pipe": values.size("pp_size", "pp", "pipeline_parallel_size"),
        },
        fill="data",
        batch=values.number("max_running_requests"),
        default_batch=lambda _: MAX_DEFAULT_REQUESTS,
        context=values.number("context_length"),
        chunk=max(1, chunk // groups) if chunk and chunk > 0 else None,
        weights=engine_layout.weights_dtype(values.get("quantization")) or dtype,
        kv=kv,
        kv_split=engine_layout.kv_split(shared),
        expert_tensor=expert_tensor,
        cache_ranks=shared,
        expert_note=expert_note,
        ignored=values.unread_beside_drafts(_UNREAD, drafted) + unread,
        notes=engine_layout.draft_notes(drafted) + engine_layout.half_notes(half),
        drafted=drafted,
        replicas=1 if values.get("enable_dp_attention") else values.size(*DP_SIZE),
        part=half,
        model=model,
    )


def _has_whole_experts(values: Values) -> bool:
    """Whether `ep-size` becomes `tp-size`, as `ServerArgs` sets it for an AllToAll of experts.

    `--enable-ep-moe` and `--enable-deepep-moe` did so until 2025.
    """
    backend = str(values.get("moe_a2a_backend") or "none")
    return backend != "none" or any(
        values.get(name) is True for name in ("enable_ep_moe", "enable_deepep_moe")
    )


def knows(settings: Settings) -> int:
    """How many options are SGLang's alone."""
    names = (
        "model_path", "tp_size", "pp_size", "attn_dp_size", "ep_size", "context_length",
        "max_running_requests", "chunked_prefill_size", "mem_fraction_static", "dp_size",
        "enable_dp_attention", "tp",
    )  # fmt: skip
    words = [settings.get("-m"), *words_of(settings)]
    is_server = "sglang.launch_server" in words or "dynamo.sglang" in words
    return Values(settings, "sglang").count(names) + 5 * is_server


FRAMEWORK = Framework(
    name="sglang",
    title="SGLang",
    work="serve",
    suffix=".yaml",
    as_of="0.5.23, 2026-11",
    write=write,
    read=read,
    knows=knows,
)
