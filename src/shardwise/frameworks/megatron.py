"""Megatron-LM: `pretrain_gpt.py` with its flags, in a script for torchrun.

Flags: megatron/training/arguments.py, and the fields of Megatron Core's configuration classes, of
which Megatron-LM makes flags. https://github.com/NVIDIA/Megatron-LM
"""

from __future__ import annotations

from shardwise.frameworks import megatron_layout
from shardwise.frameworks.exported import Framework, Settings, TrainingRun, Written
from shardwise.frameworks.launch import TrainingLaunch
from shardwise.frameworks.shell_script import PROGRAM, torchrun_chips

# Field of Megatron Core -> flag, where it is not the field's name with dashes.
_FLAGS = {
    "virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
    "num_layers_per_virtual_pipeline_stage": "--num-layers-per-virtual-pipeline-stage",
}
_FIELDS = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
    "sequence_parallel", "micro_batch_size", "global_batch_size", "seq_length",
    "virtual_pipeline_model_parallel_size", "num_layers_per_virtual_pipeline_stage",
    "cp_comm_type", "expert_model_parallel_size", "expert_tensor_parallel_size",
    "moe_token_dispatcher_type", "tp_comm_overlap", "use_distributed_optimizer",
    "overlap_grad_reduce", "overlap_param_gather", "use_megatron_fsdp",
    "data_parallel_sharding_strategy", "num_distributed_optimizer_instances",
    "recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules",
)  # fmt: skip


def _flag(field: str) -> str:
    return _FLAGS.get(field, f"--{field.replace('_', '-')}")


def write(run: TrainingRun) -> Written:
    """The script of a plan."""
    values, notes = megatron_layout.write(run, "megatron")
    model = run.plan.model
    settings: Settings = {
        PROGRAM: f"torchrun --nnodes {run.nodes.count} --nproc-per-node {run.nodes.chips} "
        "pretrain_gpt.py",
        "--num-layers": model.n_layers,
        "--hidden-size": model.d_model,
        "--ffn-hidden-size": model.d_ff,
        "--num-attention-heads": model.n_heads,
    }
    settings |= _architecture(run)
    if model.n_kv_heads < model.n_heads:
        settings |= {"--group-query-attention": True, "--num-query-groups": model.n_kv_heads}
    if run.is_moe:
        settings |= {
            "--num-experts": model.n_experts,
            "--moe-router-topk": model.experts_per_token,
        }
    settings["--max-position-embeddings"] = run.job.seq
    settings |= {_flag(field): value for field, value in values.items()}
    settings["--bf16"] = True
    if "--use-megatron-fsdp" in settings:
        settings["--ckpt-format"] = "fsdp_dtensor"  # the only format that Megatron FSDP takes
    if run.job.compute == "fp8":
        settings["--fp8-format"] = "hybrid"
    if run.job.precision != "fp32-master":
        notes.append(f"training state {run.job.precision}: Megatron has fp32-master.")
    notes.append("the tokenizer, and RoPE scaling or windows if the model has them.")
    notes.append("torchrun: add --node-rank and --master-addr on several nodes, and the data.")
    return Written(settings=settings, notes=notes, command="bash FILE")


def _architecture(run: TrainingRun) -> Settings:
    """Flags of the model's layers, whose defaults in Megatron are those of GPT-2."""
    layer = run.model.groups[-1].layer
    attention = layer.attention
    settings: Settings = {}
    if attention and attention.d_head * attention.n_heads != run.model.d_model:
        settings["--kv-channels"] = attention.d_head
    if layer.ffn and layer.ffn.gated:
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


def read(settings: Settings) -> TrainingLaunch:
    """The layout of a script."""
    values = {field: settings[flag] for field in _FIELDS if (flag := _flag(field)) in settings}
    return megatron_layout.read(
        values,
        "megatron",
        torchrun_chips(settings),
        compute="fp8" if "--fp8-format" in settings else "bf16",
        precision="fp32-master",
        n_layers=settings.get("--num-layers"),
    )


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
