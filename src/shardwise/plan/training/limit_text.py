"""Limits of the runtime as sentences: what is not supported yet, and what is in its place."""

from __future__ import annotations

from shardwise.models.numerics import ACTIVATIONS, ROPE_SCALINGS
from shardwise.search.training.runtime_limits import RuntimeLimit

NOT_YET = "the planner supports it, the runtime does not yet"
GATHER = "Run shardwise plan with --fix context_kind=gather."


def limit_text(limit: RuntimeLimit) -> str:
    """The sentence of a limit that a model, a job or a layout is beyond."""
    value = limit.value
    match limit.kind:
        case "block":
            return f"the model has {limit.part}: {NOT_YET}."
        case "activation":
            supported = ", ".join(dict.fromkeys(ACTIVATIONS.values()))
            return f'the model has activation "{value}": {NOT_YET}. It supports {supported}.'
        case "rope_scaling":
            supported = ", ".join(ROPE_SCALINGS)
            return f'the model has rope scaling "{value}": {NOT_YET}. It supports {supported}.'
        case "positions":
            return (
                f"{value:,} tokens a sequence: the model has {limit.limit:,} learned positions. "
                f"Plan with --batch Nx{limit.limit}, or the model with n_positions={value}."
            )
        case "dtype":
            return (
                f"{limit.part} in {value}: the planner supports it, training does not yet. "
                "Use bf16."
            )
        case "reduce":
            return f"reduce {value}: {NOT_YET}. It supports int8 and 16 bits."
        case "offload":
            return f"offload {limit.part}: {NOT_YET}."
        case "offload_layers":
            return f"offload of {value} layers only: {NOT_YET}. It offloads all layers."
        case "remat_layers":
            return f"remat in {value} layers only: {NOT_YET}."
    return _layout_text(limit)


def _layout_text(limit: RuntimeLimit) -> str:
    """The sentence of a limit that another layout would not be beyond."""
    value = limit.value
    match limit.kind:
        case "stages":
            return (
                f"the model has {value} runs of different layers, which stages cannot share in "
                "equal chunks: run shardwise plan with --max pipe=1."
            )
        case "schedule":
            return f"schedule {value}: {NOT_YET}. Run shardwise plan with --fix schedule=zb-v."
        case "expert_tensor":
            return (
                f"expert_tensor {value}: {NOT_YET}. It supports 1 (whole experts), or the size of "
                "tensor."
            )
        case "offload_pipeline":
            return (
                f"offload of activations with a pipeline: {NOT_YET}. Its stages hold them on the "
                "chip. Run shardwise plan with --max pipe=1, or with --offload optimizer."
            )
        case "int8_rounds":
            return (
                f"reduce int8 under zero 2 would round gradients {value} times per step, once per "
                "microbatch: shardwise plan --fix zero=1 rounds them once."
            )
        case "ring_window":
            return (
                "context_kind ring sends the keys of whole sequences; the model has layers with a "
                f"window of {value:,}. {GATHER}"
            )
        case "ring_chunks":
            return (
                f"context_kind ring cuts sequences into {limit.limit} chunks, which do not divide "
                f"{value:,} tokens. {GATHER}"
            )
        case "scores":
            return (
                f"context_kind {value} with {limit.part}, which the model has: {NOT_YET}. {GATHER}"
            )
        case "loss_chunks":
            return f"loss_chunks {value} does not divide the tokens of a device. Use fewer."
        case "devices":
            return (
                f"a chip is {value} devices, which divide neither its sequences nor its heads. "
                f"Give each chip {value} sequences, or take a smaller tensor."
            )
        case "kv_heads":
            return (
                f"layers with {limit.part} key/value heads: {NOT_YET} over more than tensor "
                f"{limit.limit}."
            )
        case "adafactor":
            return (
                "adafactor takes means over whole arrays, and this layout pads the "
                f"{limit.part} ({value:,}). Plan with --optimizer adamw, or with chips that divide "
                "them."
            )
    raise TypeError(f"no sentence for the limit {limit.kind}")
