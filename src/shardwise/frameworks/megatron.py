"""Megatron-LM: `pretrain_gpt.py` with its flags, in a script for torchrun.

Flags: megatron/training/arguments.py, and the fields of Megatron Core's configuration classes, of
which Megatron-LM makes flags. https://github.com/NVIDIA/Megatron-LM
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from shardwise.errors import BadFile
from shardwise.frameworks import (
    megatron_graphs,
    megatron_layout,
    megatron_notes,
    megatron_overlap,
    megatron_recompute,
    megatron_stages,
)
from shardwise.frameworks.exported import Framework, Settings, TrainingRun, Written
from shardwise.frameworks.launch import TrainingLaunch
from shardwise.frameworks.shell_script import PROGRAM, torchrun_chips
from shardwise.models import Mla, Mlp, ModelConfig, Moe, load, presets, stack
from shardwise.models.count import parameters
from shardwise.models.numerics import Routing

# Field of Megatron Core -> flag, where it is not the field's name with dashes.
_FLAGS = {
    "virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
    "num_layers_per_virtual_pipeline_stage": "--num-layers-per-virtual-pipeline-stage",
    "num_layers_in_last_pipeline_stage": "--decoder-last-pipeline-num-layers",
}
_FIELDS = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
    "sequence_parallel", "micro_batch_size", "global_batch_size", "seq_length",
    "virtual_pipeline_model_parallel_size", "num_layers_per_virtual_pipeline_stage",
    *megatron_stages.ENDS, megatron_stages.LAYOUT, "cp_comm_type",
    "expert_model_parallel_size", "expert_tensor_parallel_size",
    "moe_token_dispatcher_type", megatron_overlap.TENSOR, megatron_overlap.EXPERTS,
    "use_distributed_optimizer",
    "overlap_grad_reduce", "overlap_param_gather", "use_megatron_fsdp",
    "data_parallel_sharding_strategy", "num_distributed_optimizer_instances",
    *megatron_graphs.FIELDS, megatron_stages.MTP, *megatron_recompute.FIELDS,
)  # fmt: skip
_DTYPES = (
    "grad_reduce_in_bf16", "use_precision_aware_optimizer", "main_grads_dtype",
    "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype",
    "megatron_fsdp_main_grads_dtype", "megatron_fsdp_grad_comm_dtype",
)  # fmt: skip
# Flags that change memory or speed, and that plans have no word for.
_UNREAD = (
    "--optimizer", "--optimizer-offload-fraction", "--fp4-format",
    "--fp4-param-gather",
    "--cpu-offloading", "--fine-grained-activation-offloading",
)  # fmt: skip


# Weights that are kept in fp8 alone, beside the master copy of the optimizer, and gathered so.
_FP8_WEIGHTS = ("--fp8-param-gather", "--fp8-param")


def _flag(field: str) -> str:
    return _FLAGS.get(field, f"--{field.replace('_', '-')}")


def write(run: TrainingRun) -> Written:
    """The script of a plan."""
    values, notes = megatron_layout.write(run, "megatron")
    model = run.plan.model
    settings: Settings = {
        PROGRAM: f"{_environment(run)}torchrun --nnodes {run.nodes.count} "
        f"--nproc-per-node {run.nodes.chips} pretrain_gpt.py",
        "--num-layers": model.n_layers,
        "--hidden-size": model.d_model,
        "--ffn-hidden-size": _dense_width(run.model),
        "--num-attention-heads": model.n_heads,
    }
    settings |= _architecture(run)
    if model.n_kv_heads < model.n_heads:
        settings |= {"--group-query-attention": True, "--num-query-groups": model.n_kv_heads}
    if run.model.moe:
        settings |= _experts(run.model, run.model.moe)
        notes += _unsaid_routing(run.model.moe.routing)
    settings["--max-position-embeddings"] = run.job.seq
    settings |= {_flag(field): value for field, value in values.items()}
    settings["--bf16"] = True
    if "--use-megatron-fsdp" in settings:
        settings["--ckpt-format"] = "fsdp_dtensor"  # the only format that Megatron FSDP takes
    if run.job.compute == "fp8":
        settings["--fp8-format"] = "hybrid"
    if run.job.weights == "fp8":
        settings["--fp8-param-gather"] = True
    if run.job.gradients == "bf16":
        settings["--grad-reduce-in-bf16"] = True
    if (run.job.master, run.job.moments) != ("fp32", "fp32"):
        notes.append(f"training state {run.job.precision}: Megatron has fp32-master.")
    ffn = run.model.groups[-1].layer.ffn
    if ffn and ffn.gated and ffn.activation != "silu":
        notes.append(f"gated {ffn.activation}: of gated activations Megatron's flags have SwiGLU.")
    notes.append("the tokenizer, and RoPE scaling or windows if the model has them.")
    notes.append("--train-iters, --lr and its schedule, which pretrain_gpt.py needs.")
    notes.append("torchrun: add --node-rank and --master-addr on several nodes, and the data.")
    return Written(settings=settings, notes=notes, command="bash FILE")


def _environment(run: TrainingRun) -> str:
    """What Megatron-LM's `validate_args` requires of GPUs before Blackwell: one work queue, so that
    collectives start before the kernels that follow them. Megatron FSDP must not have it."""
    mesh = run.layout.mesh
    is_sharded = mesh.tensor > 1 or mesh.context > 1
    if not is_sharded or run.layout.zero in megatron_layout.SHARDING:
        return ""
    return "CUDA_DEVICE_MAX_CONNECTIONS=1 "


def _architecture(run: TrainingRun) -> Settings:
    """Flags of the model's layers, whose defaults in Megatron are those of GPT-2."""
    layer = run.model.groups[-1].layer
    attention = layer.attention
    settings: Settings = {"--attention-dropout": 0.0, "--hidden-dropout": 0.0}
    if attention and attention.mla:
        settings |= _latents(attention.mla)
    elif attention and attention.d_head * attention.n_heads != run.model.d_model:
        settings["--kv-channels"] = attention.d_head
    if layer.ffn and layer.ffn.gated and layer.ffn.activation == "silu":
        settings["--swiglu"] = True
    if run.model.norm.kind == "rms":
        settings["--normalization"] = "RMSNorm"
    settings["--norm-epsilon"] = run.model.norm.eps
    if not run.model.tied_embeddings:
        settings["--untie-embeddings-and-output-weights"] = True
    if layer.ffn and not layer.ffn.bias:
        settings["--disable-bias-linear"] = True
    if attention and attention.q_bias and layer.ffn and not layer.ffn.bias:
        settings["--add-qkv-bias"] = True
    if attention and attention.qk_norm:
        settings["--qk-layernorm"] = True
    if attention and attention.rope:
        settings["--position-embedding-type"] = "rope"
        settings["--rotary-base"] = int(attention.rotary.theta)
    return settings


def _dense_width(model: ModelConfig) -> int:
    """Width of a feed-forward layer without experts, or of an expert if every layer has them."""
    dense = [ffn.d_ff for ffn, _ in model.ffns if isinstance(ffn, Mlp)]
    return dense[0] if dense else model.d_ff


def _latents(mla: Mla) -> Settings:
    """Flags of latent attention."""
    settings: Settings = {
        "--multi-latent-attention": True,
        "--kv-lora-rank": mla.kv_lora_rank,
        "--qk-head-dim": mla.d_nope,
        "--qk-pos-emb-head-dim": mla.d_rope,
        "--v-head-dim": mla.d_v,
    }
    settings["--qk-layernorm"] = True  # of the latents
    if mla.q_lora_rank:
        settings["--q-lora-rank"] = mla.q_lora_rank
    return settings


def _experts(model: ModelConfig, moe: Moe) -> Settings:
    """Flags of routed and shared experts, and of the choice among them."""
    settings: Settings = {
        "--num-experts": moe.n_experts,
        "--moe-ffn-hidden-size": moe.d_ff,
        "--moe-router-topk": moe.experts_per_token,
        "--moe-grouped-gemm": True,
    }
    has_experts = [isinstance(group.layer.ffn, Moe) for group in model.groups]
    if not all(has_experts):
        marks = []
        for segment in stack(model):
            marks += [str(int(has_experts[kind])) for kind in segment.kinds] * segment.repeats
        settings["--moe-layer-freq"] = f"[{','.join(marks)}]"
    if moe.n_shared_experts:
        settings["--moe-shared-expert-intermediate-size"] = moe.d_ff_shared
    if moe.shared_gate:
        settings["--moe-shared-expert-gate"] = True
    routing = moe.routing
    if routing.score != "softmax":
        settings["--moe-router-score-function"] = routing.score
    elif not routing.normalized:
        settings["--moe-router-pre-softmax"] = True
    if routing.correction:
        settings["--moe-router-enable-expert-bias"] = True
    if routing.n_groups > 1:
        settings["--moe-router-num-groups"] = routing.n_groups
        settings["--moe-router-group-topk"] = routing.top_groups
    if routing.scale != 1:
        settings["--moe-router-topk-scaling-factor"] = routing.scale
    return settings


def _unsaid_routing(routing: Routing) -> list[str]:
    """What flags do not say of the choice of experts."""
    notes = []
    if routing.score != "softmax" and not routing.normalized:
        notes.append("weights of experts that are not divided by their sum: Megatron divides them.")
    if routing.on_input:
        notes.append("weights that multiply an expert's input: Megatron weighs the outputs.")
    return notes


def read(settings: Settings) -> TrainingLaunch:
    """The layout of a script."""
    values = {field: settings[flag] for field in _FIELDS if (flag := _flag(field)) in settings}
    values |= {field: settings[flag] for field in _DTYPES if (flag := _flag(field)) in settings}
    if "--checkpoint-activations" in settings:  # Megatron-DeepSpeed's, and older Megatron's
        values.setdefault("recompute_granularity", "full")
    if settings.get("--recompute-activations"):
        values.setdefault("recompute_granularity", "selective")
    if "--activations-checkpoint-method" in settings:  # of 2021 to 2022
        granularity = settings.get("--activations-checkpoint-granularity", "full")
        values.setdefault("recompute_granularity", granularity)
    compute, notes = "fp8" if "--fp8-format" in settings else "bf16", []
    if "--fp16" in settings:
        compute = "fp16"
    elif "--bf16" not in settings:
        notes.append(
            "neither --bf16 nor --fp16, without which Megatron is in fp32; bf16 is planned."
        )
    notes += megatron_notes.notes(settings)
    alike = _presets(settings)
    launch = megatron_layout.read(
        values,
        "megatron",
        torchrun_chips(settings),
        notes,
        compute=compute,
        precision="fp32-master",
        n_layers=settings.get("--num-layers"),
        n_experts=settings.get("--num-experts"),
        ignored=tuple(flag for flag in _UNREAD if flag in settings),
        presets=alike,
        sized_like=_sized_like(alike),
    )
    if compute == "fp8" and any(settings.get(flag) for flag in _FP8_WEIGHTS):
        launch = replace(launch, dtypes={**launch.dtypes, "weights": "fp8"})
    if "--optimizer-cpu-offload" in settings:
        launch = replace(launch, offload=("optimizer",))
    return _sharded_by_deepspeed(launch, settings)


def _sharded_by_deepspeed(launch: TrainingLaunch, settings: Settings) -> TrainingLaunch:
    """The launch under the ZeRO stage of Megatron-DeepSpeed, the fork whose flag it is."""
    stage = settings.get("--zero-stage")
    if "--deepspeed" not in settings or not isinstance(stage, int):
        return launch
    if stage not in range(4):
        raise BadFile(f"megatron: --zero-stage is {stage}; it must be 0, 1, 2 or 3.")
    notes = [*launch.notes, "Megatron-DeepSpeed: its file --deepspeed_config is not read."]
    fill = "fsdp" if stage == 3 else "data"
    return replace(launch, zero=stage, fill=fill, notes=tuple(notes))


@functools.cache
def _models() -> dict[str, ModelConfig]:
    return {name: load(name) for name in presets.names()}


def _presets(settings: Settings) -> tuple[str, ...]:
    """Names of the models that have the sizes of a script; of its vocabulary, if any has."""
    heads = settings.get("--num-attention-heads")
    sizes = (
        settings.get("--num-layers"),
        settings.get("--hidden-size"),
        heads,
        settings.get("--num-query-groups", heads),
        settings.get("--num-experts") or 0,
        settings.get("--moe-ffn-hidden-size") or _width(settings),
    )
    of_sizes = [
        model
        for model in _models().values()
        if sizes
        == (
            sum(group.count for group in model.groups),
            model.d_model,
            model.n_heads,
            model.n_kv_heads,
            model.moe.n_experts if model.moe else 0,
            model.d_ff,
        )
    ]
    vocab = settings.get("--vocab-size")
    same = [model for model in of_sizes if model.vocab == vocab]
    return tuple(model.name for model in same or of_sizes)


def _width(settings: Settings) -> Any:
    """Width of a feed-forward layer, by default as in `validate_args` of Megatron-LM."""
    width, hidden = settings.get("--ffn-hidden-size"), settings.get("--hidden-size")
    if width or not isinstance(hidden, int):
        return width
    return 4 * hidden * 2 // 3 // 64 * 64 if "--swiglu" in settings else 4 * hidden


def _sized_like(names: tuple[str, ...]) -> str | None:
    """The first of some models if all have as many parameters, so that their plans are equal."""
    counts = {parameters(_models()[name]).total for name in names}
    return names[0] if len(counts) == 1 else None


def knows(settings: Settings) -> int:
    """How many flags are Megatron's."""
    return sum(_flag(field) in settings for field in _FIELDS)


FRAMEWORK = Framework(
    name="megatron",
    title="Megatron-LM",
    work="train",
    suffix=".sh",
    as_of="Megatron Core 0.16.1, 2026-11",
    write=write,
    read=read,
    knows=knows,
)
