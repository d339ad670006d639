"""Framework of a training record, and conversion of its job to a Train: batch, dtypes, remat."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.errors import BadFile, nearest
from shardwise.validate.records.fields import JsonReader
from shardwise.vocabulary import LAYER
from shardwise.workload import Train

FRAMEWORKS = ("megatron", "deepspeed", "fsdp", "jax")

# Start of the name of a repository -> the framework of its runs.
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
# Start of the name of a paper -> the framework of its runs.
_BY_PAPER = {"PaLM": "jax", "The Llama 3 Herd": "fsdp", "OPT": "fsdp", "GPT-NeoX": "deepspeed"}

# Precision of a record -> the dtype of matmuls.
_COMPUTE = {
    "bf16": "bf16", "fp16": "fp16", "int8": "int8", "fp8": "fp8", "fp8-delayed": "fp8",
    "fp8-current": "fp8", "fp8-blockwise": "fp8", "fp8-rowwise": "fp8", "mxfp8": "fp8",
    "nvfp4": "fp4",
}  # fmt: skip

# Recomputed parts of a layer -> `Train.remat`; "auto" for any other parts.
_REMAT = {(): "none", (LAYER,): "full"}

# Sources with gradients in bf16: NeMo and Megatron-Bridge turn off grad_reduce_in_fp32.
_BF16_GRADIENTS = ("NVIDIA-NeMo/", "NVIDIA/NeMo", "NVIDIA/dgxc", "mlcommons/")

# Sources whose FSDP reduces gradients in bf16: `mixed_precision: PURE` in llm-foundry's yaml files,
# `bfSixteen` in fms_fsdp/policies.
_BF16_REDUCE = ("mosaicml/", "foundation-model-stack/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Source and framework of a record.

    Args:
        source: Repository, paper or URL.
        framework: One of `FRAMEWORKS`.
    """

    source: str
    framework: str


def origin_of(record: JsonReader, tpu: bool) -> tuple[Origin, dict[str, str]]:
    """Return source and framework of a record, and the assumption about the framework, if any.

    Megatron keeps whole weights and shards the optimizer state; DeepSpeed and FSDP shard by ZeRO;
    in JAX the compiler chooses collectives.

    Args:
        tpu: Whether it ran on TPUs, which implies JAX.
    """
    source = record.section("source")
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


def train_of(record: JsonReader, origin: Origin, recomputed: tuple[str, ...]) -> Train:
    """Return the job of a record, with the dtypes that its framework uses.

    - megatron, deepspeed: 16-bit weights, fp32 master weights and moments. Gradients are in fp16
      for fp16 weights; for bf16 weights in bf16 with DeepSpeed, NeMo and Bridge, else in fp32.
    - fsdp, jax: fp32 weights that are cast to the compute dtype, fp32 gradients and moments.

    Args:
        origin: Source and framework of the record.
        recomputed: Recomputed parts of a layer.

    Raises:
        BadInput: the global batch is missing, the precision is unknown, or a size is implausible.
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
        reduce="bf16" if origin.source.startswith(_BF16_REDUCE) else None,
        moments="bf16" if origin.source.startswith("DeepSeek-V3") else "fp32",
        master=None if sharded else "fp32",
        remat=_REMAT.get(recomputed, "auto"),
        mtp_layers=record.section("model").optional_integer("mtp_layers", 0) or 0,
    )


def _gradients(origin: Origin, half: str) -> str:
    """Return the dtype of gradients in Megatron and DeepSpeed; `half` is that of the weights."""
    if half == "fp16" or origin.framework == "deepspeed":
        return half
    return half if origin.source.startswith(_BF16_GRADIENTS) else "fp32"
