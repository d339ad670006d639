"""The framework of a record, and its job as a Train: batch, sequence length, dtypes, remat."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.errors import BadFile, nearest
from shardwise.validate.records.fields import Fields
from shardwise.vocabulary import LAYER
from shardwise.workload import Train

FRAMEWORKS = ("megatron", "deepspeed", "fsdp", "jax")

# Start of the name of a source repository -> the framework of its runs.
_BY_SOURCE = {
    "AI-Hypercomputer/": "jax",
    "NVIDIA/": "megatron",
    "NVIDIA-NeMo/Automodel": "fsdp",
    "NVIDIA-NeMo/": "megatron",
    "calculon-ai/": "megatron",
    "VIA-Research/": "megatron",
    "mlcommons/": "megatron",
    "huggingface/nanotron": "megatron",
    "bigscience-workshop/": "deepspeed",
    "stas00/": "deepspeed",
    "mosaicml/": "fsdp",
    "pytorch/": "fsdp",
    "foundation-model-stack/": "fsdp",
}
_BY_PAPER = {"PaLM": "jax", "The Llama 3 Herd": "fsdp", "OPT": "fsdp", "GPT-NeoX": "deepspeed"}

# Precision of a record -> the dtype of matmuls.
_COMPUTE = {
    "bf16": "bf16", "fp16": "fp16", "int8": "int8", "fp8": "fp8", "fp8-delayed": "fp8",
    "fp8-current": "fp8", "fp8-blockwise": "fp8", "fp8-rowwise": "fp8", "mxfp8": "fp8",
    "nvfp4": "fp4",
}  # fmt: skip

# Recomputed parts -> the remat policy; "auto" for any other.
_REMAT = {(): "none", (LAYER,): "full"}

# Recipes of NeMo and Megatron-Bridge set grad_reduce_in_fp32 (grad_sync_dtype) to bf16.
_BF16_GRADIENTS = ("NVIDIA-NeMo/", "NVIDIA/NeMo", "NVIDIA/dgxc", "mlcommons/")

# FSDP that sends gradients in bf16: `mixed_precision: PURE` of llm-foundry's yamls, `bfSixteen` of
# fms_fsdp/policies.
_BF16_SUMS = ("mosaicml/", "foundation-model-stack/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The origin of a record.

    Args:
        source: Repository, paper or URL; tables group records by it.
        framework: One of `FRAMEWORKS`.
    """

    source: str
    framework: str


def origin_of(record: Fields, tpu: bool) -> tuple[Origin, dict[str, str]]:
    """Source and framework of a record.

    Megatron keeps whole weights and shards the optimizer, DeepSpeed and FSDP shard by ZeRO, JAX
    leaves collectives to the compiler.
    """
    source = record.inner("source")
    repo = source.text("repo", "")
    paper = source.text("paper", "")
    name = repo or paper or source.text("url", "unnamed")
    notes = record.text("notes", "")
    if tpu or "Framework: maxtext" in notes:
        return Origin(source=name, framework="jax"), {}
    for frameworks, text in ((_BY_SOURCE, repo), (_BY_PAPER, paper)):
        for prefix, framework in frameworks.items():
            if text.startswith(prefix):
                return Origin(source=name, framework=framework), {}
    if paper or repo.startswith("arXiv"):
        return Origin(source=name, framework="megatron"), {"framework": "megatron"}
    return Origin(source=name, framework="megatron"), {"framework": "megatron, not stated"}


def train_of(record: Fields, origin: Origin, recomputed: tuple[str, ...]) -> Train:
    """The job of a record, with the dtypes of its framework.

    - megatron, deepspeed: 16-bit weights, fp32 master weights and moments; gradients in fp32 for
      bf16 weights, in fp16 for fp16 weights, and in 16 bits for DeepSpeed, NeMo and Bridge.
    - fsdp, jax: fp32 weights that are cast to the compute dtype, fp32 gradients and moments.

    Raises:
        BadInput: the global batch is missing, the precision unknown, or a size absurd.
    """
    batch = record.optional_integer("global_batch_seqs")
    if batch is None:
        raise BadFile("no global batch: global_batch_seqs is not stated.")
    precision = record.text("precision")
    if precision not in _COMPUTE:
        raise BadFile(f'unknown precision: "{precision}". {nearest(precision, _COMPUTE)}')
    compute = _COMPUTE[precision]
    half = "fp16" if compute == "fp16" else "bf16"
    sharded = origin.framework in ("fsdp", "jax")
    return Train(
        batch=batch,
        seq=record.integer("seq_len"),
        weights="fp32" if sharded else half,
        compute=compute,
        gradients="fp32" if sharded else _gradients(origin, half),
        # DeepSeek-V3 report (arXiv 2412.19437), section 3.3: moments in bf16.
        reduce="bf16" if origin.source.startswith(_BF16_SUMS) else None,
        moments="bf16" if origin.source.startswith("DeepSeek-V3") else "fp32",
        master=None if sharded else "fp32",
        remat=_REMAT.get(recomputed, "auto"),
    )


def _gradients(origin: Origin, half: str) -> str:
    if half == "fp16" or origin.framework == "deepspeed":
        return half
    return half if origin.source.startswith(_BF16_GRADIENTS) else "fp32"
